"""Exon labels from GFF3, against coordinates counted by hand."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless import TapelessError
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.gff import labels, read_annotation
from tapeless.labelling.genome.intervals import mask, merged, runs
from tests.random_cases import cases

LENGTHS = {"chr1": 20, "chr2": 10}


def feature(kind="exon", start=3, end=5, strand="+", sequence="chr1", attributes="ID=x"):
    return f"{sequence}\tme\t{kind}\t{start}\t{end}\t.\t{strand}\t.\t{attributes}"


def write(tmp_path, *lines, end="\n"):
    path = tmp_path / "a.gff3"
    path.write_bytes(end.join(["##gff-version 3", *lines, ""]).encode())
    return path


def marked(path, **named):
    found = labels(read_annotation(path, LENGTHS, **named), LENGTHS)
    return {key: "".join(map(str, each)) for key, each in found.items() if (each == 1).any()}


def test_coordinates_count_from_one_and_include_both_ends(tmp_path):
    path = write(tmp_path, feature(start=3, end=5), feature(start=20, end=20, strand="-"), feature(sequence="chr2"))
    assert marked(path) == {
        ("chr1", "+"): "00111" + "0" * 15,
        ("chr1", "-"): "0" * 19 + "1",
        ("chr2", "+"): "0011100000",
    }
    found = labels(read_annotation(path, LENGTHS), LENGTHS)
    assert {key: (len(each), each.dtype) for key, each in found.items()} == {
        (name, strand): (LENGTHS[name], np.dtype(np.int8)) for name in LENGTHS for strand in "+-"
    }


def test_coding_parts_before_exons_unless_asked(tmp_path):
    both = write(tmp_path, feature(start=1, end=5), feature("CDS", start=2, end=3), feature("gene", 1, 20))
    assert marked(both) == {("chr1", "+"): "011" + "0" * 17}
    assert marked(both, feature="exon") == {("chr1", "+"): "11111" + "0" * 15}
    assert read_annotation(write(tmp_path, feature("exon")), LENGTHS).feature == "exon"


def test_features_of_one_parent_are_one_gene_and_transcripts_that_say_the_same_are_one(tmp_path):
    lines = [("CDS", 3, 5, "+", "chr1", "ID=c;Parent=m1"), ("CDS", 9, 12, "+", "chr1", "ID=c;Parent=m1")]
    lines += [(*each[:5], "ID=d;Parent=m2") for each in lines]
    lines += [("CDS", 14, 19, "-", "chr1", "ID=alone"), ("CDS", 16, 19, "-", "chr1", "ID=e;pseudo=true")]
    path = write(tmp_path, *(feature(*each) for each in lines))
    genes = read_annotation(path, LENGTHS).genes["chr1"]
    assert genes == (Gene("+", ((2, 5), (8, 12))), Gene("-", ((13, 19),)))


def test_what_lies_in_a_pseudogene_is_unknown_whatever_is_asked_for(tmp_path):
    lines = feature("CDS"), feature("pseudogene", 8, 9), feature("mRNA", 11, 12, "-", attributes="ID=m;pseudo=true")
    path = write(tmp_path, *lines, feature("pseudogene", 15, 99))  # the last one is on another assembly
    found = labels(read_annotation(path, LENGTHS), LENGTHS)
    assert "".join("?01"[value + 1] for value in found["chr1", "+"]) == "00111" + "00??" + "0" * 11
    assert "".join("?01"[value + 1] for value in found["chr1", "-"]) == "0" * 10 + "??" + "0" * 8
    longer = LENGTHS | {"chr1": 99}
    named = labels(read_annotation(path, longer, "pseudogene"), longer)
    assert np.flatnonzero(named["chr1", "+"] == 1).tolist() == [7, 8, *range(14, 99)]


def test_overlapping_features_are_merged_with_a_note(tmp_path):
    path = write(
        tmp_path,
        feature(start=8, end=12),
        feature(start=1, end=3),
        feature(start=2, end=3),
        feature(start=4, end=5),
        feature(start=9, end=10),
        feature(start=9, end=10, strand="-"),
    )
    annotation = read_annotation(path, LENGTHS)
    np.testing.assert_array_equal(annotation.intervals["chr1", "+"], [[0, 5], [7, 12]])
    np.testing.assert_array_equal(annotation.intervals["chr1", "-"], [[8, 10]])
    assert annotation.notes == (
        "2 of the exon features overlap another one on their strand: merged.",
        "the annotation says nothing of 1 of 2 sequences (chr2): unknown.",
    )
    plain = write(tmp_path, feature(), feature(sequence="chr2"))
    assert read_annotation(plain, LENGTHS).notes == ()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_comments_and_what_follows_the_features(tmp_path, end):
    path = write(tmp_path, "# note", "", feature(), "###", "##FASTA", ">chr1", "ACGT", end=end)
    assert marked(path) == {("chr1", "+"): "00111" + "0" * 15}
    path.write_bytes(gzip.compress(path.read_bytes().replace(b"##FASTA" + end.encode(), b"")))
    assert marked(path) == {("chr1", "+"): "00111" + "0" * 15}


def test_mixed_line_ends_and_no_version(tmp_path):
    path = tmp_path / "a.gff3"
    path.write_bytes(f"{feature(end=3)}\r\n{feature(start=5)}\r{feature(start=7, end=7)}".encode())
    assert marked(path) == {("chr1", "+"): "0010101" + "0" * 13}


def test_escaped_names(tmp_path):
    path = write(tmp_path, feature(sequence="a%2Cb"))
    assert list(read_annotation(path, {"a,b": 9}).intervals) == [("a,b", "+"), ("a,b", "-")]


MALFORMED = {
    "": "holds no features",
    "# only a remark": "holds no features",
    ">chr1\nACGT": "holds no features",
    "##gff-version 2": "line 2: this is GFF version 2",
    "##gff-version": "GFF version unknown",
    "##gff-version 30": "GFF version 30",
    "chr1\t3\t5": "line 2: 3 columns where GFF3 has 9",
    "chr1 me exon 3 5 . + . ID=x": "line 2: 1 column where GFF3 has 9, separated by tabs",
    feature() + "\tmore": "line 2: 10 columns",
    feature() + "\nACGT": "line 3: 1 column where",
    feature(start=6, end=5): "line 2: start 6 comes after end 5",
    feature(end=21): "line 2: end 21 lies beyond the 20 bases of 'chr1'",
    feature(sequence="chr2", end=11): "beyond the 10 bases of 'chr2'",
    feature(start=0): "line 2: start '0' is no whole number of at least 1",
    feature(start=-3): "start '-3' is no whole number",
    feature(start="3.0"): "start '3.0' is no whole number",
    feature(start="."): "start '.' is no whole number",
    feature(start=""): "start '' is no whole number",
    feature(end="²"): "end '²' is no whole number",
    feature(end="1_0"): "end '1_0' is no whole number",
    feature(end="9" * 5000): "end '99999999999999999999' … is too large",
    feature(end=10**15): "end '1000000000000000' is too large: no sequence is that long",
    feature(end=10**30): "end '10000000000000000000' … is too large",
    feature(sequence="chrX"): r"every exon lies on a sequence that is not in the FASTA file \(chrX\), which has chr",
    feature(
        sequence="scaffold_7"
    ): r"not in the FASTA file \(scaffold_7\), which has chr1, chr2: names must be the same",
    feature(sequence=""): r"not in the FASTA file \(\), which has",
    feature(strand="x"): r"line 2: strand 'x' is none of \+ - \. \?",
    feature(strand=""): "strand '' is none of",
    feature(strand="1"): "strand '1' is none of",
    feature(strand="."): "no exon can be learned from: of 1, 1 have no strand and 0 belong to pseudogenes",
    feature("CDS", strand="?"): "no CDS can be learned from: of 1, 1 have no strand",
    feature(attributes="ID=x;pseudo=true"): "of 1, 0 have no strand and 1 belong to pseudogenes",
    feature(end=21, attributes="Is_circular=false"): "end 21 lies beyond the 20 bases of 'chr1', which no line calls",
    feature("region", 1, 20, attributes="Is_circular=true") + "\n" + feature(start=3, end=23): "line 3: end 23 lies",
    feature("region", 1, 20, attributes="Is_circular=true") + "\n" + feature(start=21, end=22): "line 3: end 22 lies",
    feature(kind=""): "line 2: the feature has no type",
    feature("gene") + "\n" + feature("mRNA"): r"no feature of type CDS or exon, but gene \(1\), mRNA \(1\)",
    feature(attributes='gene_id "g1"; transcript_id "t1";'): "not key=value as in GFF3 .is this GTF",
    feature(attributes=""): "attributes '' are not key=value",
    "track name=x\nchr1\t3\t5": "line 2: 1 column where",
    "\x00\x01": "line 2: 1 column where",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_no_annotation(tmp_path, text):
    path = write(tmp_path, text)
    with pytest.raises(TapelessError, match=MALFORMED[text]) as caught:
        read_annotation(path, LENGTHS)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TapelessError, match="No such file"):
        read_annotation(tmp_path / "absent", LENGTHS)
    (tmp_path / "empty").touch()
    with pytest.raises(TapelessError, match="holds no features"):
        read_annotation(tmp_path / "empty", LENGTHS)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(feature().encode())[:-8])
    with pytest.raises(TapelessError, match="damaged"):
        read_annotation(tmp_path / "cut.gz", LENGTHS)


def test_a_type_that_is_not_there(tmp_path):
    with pytest.raises(TapelessError, match=r"no feature of type intron, but exon \(1\): name one"):
        read_annotation(write(tmp_path, feature()), LENGTHS, feature="intron")


def test_many_names_are_not_all_listed(tmp_path):
    with pytest.raises(TapelessError, match=r"which has s0, s1, s2, … \(1000 in all\)"):
        read_annotation(write(tmp_path, feature(sequence="elsewhere")), {f"s{k}": 9 for k in range(1000)})


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 12)), max_size=12))
@cases(200)
def test_intervals_by_their_definition(spans):
    pairs = np.array([(start, min(start + size, 40)) for start, size in spans], np.int64).reshape(-1, 2)
    covered = np.zeros(40, np.uint8)
    overlapping = 0
    for start, end in sorted(pairs.tolist()):
        overlapping += bool(covered[start])
        covered[start:end] = 1
    found, overlaps = merged(pairs)
    np.testing.assert_array_equal(mask(found, 40), covered)
    np.testing.assert_array_equal(runs(covered), found)
    assert overlaps == overlapping
