"""The reading frame of coding stretches: against the frames that genes were made with, and as GFF3 wants it."""

import numpy as np
import pytest

from tapeless import TapelessError
from tapeless.labelling.genome.baseline import fit
from tapeless.labelling.genome.codons import codon_indices, codons_in_frame, phase, stop_odds
from tapeless.labelling.genome.dna import opposite_bases
from tapeless.labelling.genome.fasta import read_records
from tapeless.labelling.genome.gff import labels, read_annotation
from tapeless.labelling.genome.output import FeatureKind, Segmentation, writing
from tapeless.labelling.genome.synthetic import Synthetic

LENGTH = 60_000


@pytest.fixture(scope="module")
def genome(tmp_path_factory):
    written = Synthetic(4).write(tmp_path_factory.mktemp("genome"), 2, LENGTH)
    records = {record.name: record.bases for record in read_records(written.fasta)}
    lines = [line.split("\t") for line in written.gff.read_text().splitlines() if "\tCDS\t" in line]
    lengths = dict.fromkeys(records, LENGTH)
    return records, labels(read_annotation(written.gff, lengths, "CDS"), lengths), lines


def written_lines(folder, records, known, kind, moved=0):
    """What is found where the probabilities are the truth, moved by some bases."""
    with writing(folder / "out", dict.fromkeys(records, LENGTH), Segmentation(shortest=1, gap=0), kind) as writer:
        for name, bases in records.items():
            plus, minus = (np.roll((known[name, strand] == 1).astype(float), moved) for strand in "+-")
            writer.add(name, bases, [plus], [minus[::-1]])
    return [line.split("\t") for line in (folder / "out.gff3").read_text().splitlines() if line[0] != "#"]


@pytest.mark.parametrize("moved", [0, 4])
def test_coding_stretches_come_with_the_frame_they_were_made_in(tmp_path, genome, moved):
    """Also where a stretch is off by a few bases, as those of a model are: the codons stay where they are."""
    records, known, lines = genome
    learned = fit({"chr1": records["chr1"]}, known)
    assert learned is not None
    found = written_lines(tmp_path, {"chr2": records["chr2"]}, known, FeatureKind("CDS", learned.odds), moved)
    truth = {(line[3], line[4], line[6]): int(line[7]) for line in lines if line[0] == "chr2"}
    assert len(found) == len(truth) > 20
    right = 0
    for line in found:
        assert line[2] == "CDS"
        assert line[7] in ("0", "1", "2")
        start, end = int(line[3]) - moved, int(line[4]) - moved
        shift = -moved if line[6] == "+" else moved
        right += int(line[7]) == (truth[str(start), str(end), line[6]] + shift) % 3
    assert right >= 0.95 * len(found)


def test_without_statistics_stop_codons_tell(tmp_path, genome):
    records, known, lines = genome
    found = written_lines(tmp_path, records, known, FeatureKind("CDS"))
    right = sum(line[7] == true[7] for line, true in zip(found, sorted_like(lines), strict=True))
    assert right > 0.8 * len(found)


def sorted_like(lines):
    return sorted(lines, key=lambda line: (line[0], int(line[3]), int(line[4]), line[6]))


def test_other_features_have_no_frame_and_their_own_name(tmp_path, genome):
    records, known, _ = genome
    for kind in (FeatureKind(), FeatureKind("tRNA")):
        found = written_lines(tmp_path, records, known, kind)
        assert {(line[2], line[7]) for line in found} == {(kind.feature, ".")}
        assert found[0][8].startswith(f"ID={kind.feature}1;")


def test_gffutils_reads_coding_stretches_with_their_frame(tmp_path, genome):
    import gffutils

    records, known, _ = genome
    found = written_lines(tmp_path, records, known, FeatureKind("CDS"))
    database = gffutils.create_db(str(tmp_path / "out.gff3"), ":memory:")
    try:
        read = {(each.seqid, each.start, each.end, each.strand): each.frame for each in database.all_features()}
    finally:
        database.conn.close()
    assert read == {(line[0], int(line[3]), int(line[4]), line[6]): line[7] for line in found}


def test_the_frame_of_one_stretch_by_hand():
    gene = np.frombuffer(b"ATGAAACTAACTGACTAGAT", np.uint8)  # in frame 0 ATG AAA CTA ACT GAC TAG: one stop, at the end
    open_frame = gene[:15]
    assert phase(open_frame) == 0
    assert phase(open_frame[1:]) == 2
    assert phase(open_frame[2:]) == 1
    assert codons_in_frame(codon_indices(open_frame), np.array([[0, 15]]), stop_odds()).sum() == 5
    assert FeatureKind("CDS").phase(opposite_bases(open_frame[1:]), "-") == "2"
    for short in (b"", b"A", b"AC"):
        assert phase(np.frombuffer(short, np.uint8)) == 0


@pytest.mark.parametrize("feature", ["", " ", "a\tb", "a\n"])
def test_names_that_are_none(feature):
    with pytest.raises(TapelessError, match="no type of feature"):
        FeatureKind(feature)


def test_letters_and_length_must_agree(tmp_path):
    with pytest.raises(TapelessError, match="with 9 bases, and 8 came"), writing(tmp_path / "o", {"a": 9}) as writer:
        writer.add("a", np.full(8, 65, np.uint8), [np.zeros(9)], [np.zeros(9)])
