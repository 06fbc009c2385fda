"""Annotation as NCBI writes it: features across the origin, without a strand, of pseudogenes, and of no interest."""

import warnings

import numpy as np
import pytest

from tapeless import TapelessError
from tapeless.labelling.genome.gff import labels, read_annotation

CHROMOSOME, PLASMID = "NC_000001.9", "NC_000002.1"
LENGTHS = {CHROMOSOME: 600, PLASMID: 200}


def line(kind, start, end, strand, attributes, phase=".", sequence=CHROMOSOME):
    return f"{sequence}\tRefSeq\t{kind}\t{start}\t{end}\t.\t{strand}\t{phase}\t{attributes}"


# The structure of a RefSeq file, and the letters that it escapes; coordinates are our own.
FILE = [
    "##gff-version 3",
    "#!gff-spec-version 1.21",
    "#!processor NCBI annotwriter",
    "##sequence-region NC_000001.9 1 600",
    "##species https://www.ncbi.nlm.nih.gov/Taxonomy/Browser/wwwtax.cgi?id=559292",
    line("region", 1, 600, "+", "ID=NC_000001.9:1..600;Dbxref=taxon:559292;Name=I;gbkey=Src;mol_type=genomic DNA"),
    line("telomere", 1, 30, "-", "ID=id-1;Note=TEL01L%3B left%2C short;gbkey=telomere"),
    line("origin_of_replication", 20, 29, ".", "ID=id-2;gbkey=rep_origin"),
    line("sequence_feature", 5, 9, "?", "ID=id-3;gbkey=misc_feature"),
    line("long_terminal_repeat", 50, 60, "-", "ID=id-4;gbkey=LTR"),
    line("gene", 41, 100, "+", "ID=gene-A;gene_biotype=protein_coding;partial=true;start_range=.,41"),
    line("mRNA", 41, 100, "+", "ID=rna-A;Parent=gene-A;gbkey=mRNA"),
    line("exon", 41, 100, "+", "ID=exon-A-1;Parent=rna-A;gbkey=mRNA"),
    line("CDS", 41, 60, "+", "ID=cds-A;Parent=rna-A;Note=two%3B parts;gbkey=CDS;protein_id=A.1", 0),
    line("CDS", 80, 100, "+", "ID=cds-A;Parent=rna-A;Note=two%3B parts;gbkey=CDS;protein_id=A.1", 1),
    line("gene", 150, 240, "?", "ID=gene-B;exception=trans-splicing;gbkey=Gene;part=1"),
    line("CDS", 150, 179, "+", "ID=cds-B;Parent=gene-B;exception=trans-splicing;gbkey=CDS", 0),
    line("CDS", 211, 240, "-", "ID=cds-B;Parent=gene-B;exception=trans-splicing;gbkey=CDS", 0),
    line("CDS", 300, 329, "+", "ID=cds-C;exception=ribosomal slippage;gbkey=CDS", 0),
    line("CDS", 329, 350, "+", "ID=cds-C;exception=ribosomal slippage;gbkey=CDS", 0),
    line("pseudogene", 400, 429, "-", "ID=gene-D;gene_biotype=pseudogene;pseudo=true"),
    line("CDS", 400, 429, "-", "ID=cds-D;Parent=gene-D;gbkey=CDS;pseudo=true", 0),
    line("tRNA", 500, 520, "-", "ID=rna-E;gbkey=tRNA"),
    "###",
    line("region", 1, 200, "+", "ID=NC_000002.1:1..200;Is_circular=true;gbkey=Src", sequence=PLASMID),
    line("gene", 181, 230, "-", "ID=gene-F;gbkey=Gene", sequence=PLASMID),
    line("CDS", 181, 230, "-", "ID=cds-F;Parent=gene-F;gbkey=CDS", 0, PLASMID),
    line("CDS", 91, 120, "+", "ID=cds-G;gbkey=CDS", 0, PLASMID),
    line("CDS", 101, 110, "?", "ID=cds-H;gbkey=CDS", 0, PLASMID),
]


def write(path, lines, end="\n"):
    path.write_bytes(end.join([*lines, ""]).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_coding_bases_are_those_of_the_file_whatever_else_it_holds(tmp_path, end):
    annotation = read_annotation(write(tmp_path / "ncbi.gff", FILE, end), LENGTHS, "CDS")
    assert {key: each.tolist() for key, each in annotation.intervals.items()} == {
        (CHROMOSOME, "+"): [[40, 60], [79, 100], [149, 179], [299, 350]],
        (CHROMOSOME, "-"): [[210, 240]],
        (PLASMID, "+"): [[90, 120]],
        (PLASMID, "-"): [[0, 30], [180, 200]],  # across the origin
    }
    found = labels(annotation, LENGTHS)
    unknown = {key: np.flatnonzero(each < 0).tolist() for key, each in found.items()}
    assert unknown == {
        (CHROMOSOME, "+"): [],
        (CHROMOSOME, "-"): list(range(399, 429)),  # a pseudogene, on its strand
        (PLASMID, "+"): [],  # another CDS is known to be there
        (PLASMID, "-"): list(range(100, 110)),  # the one without a strand
    }
    assert annotation.notes == (
        "1 of the CDS features overlap another one on their strand: merged.",
        "1 of the CDS features have no strand: unknown on both.",
        "1 of the CDS features belong to pseudogenes: unknown.",
    )


def test_gffutils_and_bcbio_read_the_same_bases(tmp_path):
    import gffutils

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # BCBio-GFF speaks of its own imports
        from BCBio import GFF
    path = write(tmp_path / "ncbi.gff", FILE)
    found = labels(read_annotation(path, LENGTHS, "CDS"), LENGTHS)
    database = gffutils.create_db(str(path), ":memory:", merge_strategy="create_unique")
    try:
        read = [
            (each.seqid, each.strand, each.start - 1, each.end)
            for each in database.features_of_type("CDS")
            if each.strand in "+-" and "pseudo" not in each.attributes
        ]
    finally:
        database.conn.close()
    with path.open() as file:
        parsed = [
            (record.id, {1: "+", -1: "-"}[part.location.strand], int(part.location.start), int(part.location.end))
            for record in GFF.parse(file)
            for part in nested(record.features)
            if part.type == "CDS" and part.location.strand and "pseudo" not in part.qualifiers
        ]
    for spans in (read, parsed):
        expected = {key: np.zeros(LENGTHS[key[0]], bool) for key in found}
        for name, strand, start, end in spans:
            expected[name, strand][np.arange(start, end) % LENGTHS[name]] = True
        for key, here in expected.items():
            np.testing.assert_array_equal(found[key] == 1, here, str(key))


def nested(features):
    for each in features:
        yield each
        yield from nested(each.sub_features)


def test_what_nobody_asked_for_does_not_refuse_a_file(tmp_path):
    odd = [
        line("gene", 590, 700, "+", "ID=a"),
        line("match", 9, 3, "x", "no attributes"),
        line("region", 0, "?", "1", ".", sequence="elsewhere"),
    ]
    annotation = read_annotation(write(tmp_path / "odd.gff", [*FILE, *odd]), LENGTHS, "CDS")
    assert annotation.intervals[CHROMOSOME, "-"].tolist() == [[210, 240]]
    spoilt = write(tmp_path / "spoilt.gff", [*FILE, line("CDS", 590, 700, "+", "ID=a")])
    assert read_annotation(spoilt, LENGTHS, "exon").feature == "exon"  # so that a CDS does not matter
    with pytest.raises(TapelessError, match=r"line 30: end 700 lies beyond the 600 bases of 'NC_000001\.9', which no"):
        read_annotation(spoilt, LENGTHS, "CDS")


def test_whoever_asks_for_pseudogenes_gets_them(tmp_path):
    annotation = read_annotation(write(tmp_path / "ncbi.gff", FILE), LENGTHS, "pseudogene")
    assert annotation.intervals[CHROMOSOME, "-"].tolist() == [[399, 429]]


def test_a_circle_may_be_called_one_after_its_features(tmp_path):
    circle = FILE[-5:]
    path = write(tmp_path / "late.gff", [*circle[1:], circle[0]])
    assert read_annotation(path, {PLASMID: 200}, "CDS").intervals[PLASMID, "-"].tolist() == [[0, 30], [180, 200]]


def test_more_annotation_than_sequences_and_more_sequences_than_annotation(tmp_path):
    path = write(tmp_path / "ncbi.gff", FILE)
    one = read_annotation(path, {CHROMOSOME: 600}, "CDS")
    assert one.notes[-1] == (
        "3 of the CDS features lie on sequences that the FASTA file does not have (NC_000002.1): left out."
    )
    more = {**LENGTHS, "NC_000003.1": 50}
    annotation = read_annotation(path, more, "CDS")
    assert annotation.notes[-1] == "the annotation says nothing of 1 of 3 sequences (NC_000003.1): unknown."
    assert (labels(annotation, more)["NC_000003.1", "+"] == -1).all()
    bare = read_annotation(write(tmp_path / "bare.gff", ["##sequence-region NC_000003.1 1 50", *FILE]), more, "CDS")
    assert bare.notes[-1] == "no CDS on 1 of 3 sequences (NC_000003.1): all of it counts as background."
    assert not labels(bare, more)["NC_000003.1", "-"].any()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("NC_000001", "x"), r"\(NC_000001\.9, NC_000002\.1\), which has NC_000001: names must be the same, versions"),
        (("NC_000001.8",), r"which has NC_000001\.8: names must be the same, versions included"),
        (("chrI", "chrII", "chrIII", "chrIV"), r"which has chrI, chrII, chrIII, … \(4 in all\): names must be"),
    ],
)
def test_names_that_differ_are_told_with_both(tmp_path, names, sentence):
    with pytest.raises(TapelessError, match=sentence):
        read_annotation(write(tmp_path / "ncbi.gff", FILE), dict.fromkeys(names, 600), "CDS")
