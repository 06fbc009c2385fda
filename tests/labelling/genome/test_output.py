"""Genes and probabilities as files: translated, and read back with the field's own parsers."""

import warnings
from itertools import pairwise

import numpy as np
import pytest

from tapeless import TapelessError
from tapeless.labelling.genome.dna import opposite_bases
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.labelling.genome.gff import read_annotation
from tapeless.labelling.genome.output import output_paths, strands_found, writing
from tapeless.labelling.genome.synthetic import Synthetic

LENGTHS = {"chr1": 400, "a,b;c": 120}
CODE = GeneticCode()
LENGTH = 30_000
MADE = Synthetic(2).chromosome(1, LENGTH)
GENES = [Gene(gene.strand, gene.exons, probability=0.75) for gene in MADE.genes]


def split_codons():
    """A gene on either strand whose start and stop codons an intron divides."""
    gene = "AT" + "GT" + "C" * 30 + "AG" + "G" + "GCC" * 5 + "T" + "GT" + "C" * 30 + "AG" + "GA"
    exons = ((0, 2), (36, 53), (87, 89))
    turned = tuple((len(gene) - end, len(gene) - start) for start, end in reversed(exons))
    plus = np.frombuffer(gene.encode(), np.uint8)
    return ((plus, Gene("+", exons)), (opposite_bases(plus), Gene("-", turned)))


@pytest.fixture
def written(tmp_path):
    """The genes of a chromosome that was made up, and one that is cut short at either end."""
    partial = Gene("-", ((0, 31),), 1, False, False), Gene("-", ((LENGTH - 50, LENGTH),), 2, False, False)
    genes = [partial[0], *(gene for gene in GENES if gene.left > 31 and gene.right < LENGTH - 50), partial[1]]
    with writing(tmp_path / "out", {"chr1": LENGTH}, "CDS", CODE) as writer:
        writer.genes("chr1", MADE.bases, genes[:3])
        writer.genes("chr1", MADE.bases, genes[3:])
        writer.track("chr1", 0, np.zeros((2, LENGTH)))
        writer.end(LENGTH)
    assert {gene.strand for gene in genes} == {"+", "-"}
    assert writer.written == len(genes)
    return genes


def proteins(path):
    from Bio import SeqIO

    with path.open() as file:
        return {record.id: str(record.seq) for record in SeqIO.parse(file, "fasta")}


def translated(letters, spans, strand, phase):
    from Bio.Seq import Seq

    spliced = np.concatenate([letters[start:end] for start, end in sorted(spans)]).tobytes().decode()
    coding = str(Seq(spliced).reverse_complement()) if strand == "-" else spliced
    coding = coding[phase:]
    return str(Seq(coding[: len(coding) // 3 * 3]).translate())


def test_every_cds_translates_by_what_gffutils_reads(tmp_path, written):
    import gffutils

    told = proteins(tmp_path / "out.faa")
    database = gffutils.create_db(str(tmp_path / "out.gff3"), ":memory:", merge_strategy="create_unique")
    try:
        genes = list(database.features_of_type("gene"))
        assert [(each.start - 1, each.end, each.strand) for each in genes] == [
            (gene.left, gene.right, gene.strand) for gene in written
        ]
        for gene, true in zip(genes, written, strict=True):
            (mrna,) = database.children(gene, level=1)
            assert (mrna.featuretype, mrna.attributes["Parent"]) == ("mRNA", [gene.id])
            coding = list(database.children(mrna, featuretype="CDS", order_by="start"))
            assert tuple((each.start - 1, each.end) for each in coding) == true.exons
            phases = [int(each.frame) for each in (coding if true.strand == "+" else reversed(coding))]
            before = -true.frame
            for (start, end), phase in zip(true.ordered(), phases, strict=True):
                assert phase == -before % 3
                before += end - start
            protein = translated(MADE.bases, true.exons, true.strand, phases[0])
            assert protein.removesuffix("*") == told[mrna.id]
            if true.has_stop:
                assert protein.index("*") == len(protein) - 1
            for kind, there in (("start_codon", true.has_start), ("stop_codon", true.has_stop)):
                codon = list(database.children(mrna, featuretype=kind))
                assert sum(each.end - each.start + 1 for each in codon) == 3 * there
            assert ("partial" in gene.attributes) is not (true.has_start and true.has_stop)
    finally:
        database.conn.close()


def test_bcbio_and_our_own_reader_read_it(tmp_path, written):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # BCBio-GFF speaks of its own imports
        from BCBio import GFF
    with (tmp_path / "out.gff3").open() as file:
        (record,) = GFF.parse(file)
    assert [(int(each.location.start), int(each.location.end)) for each in record.features] == [
        (gene.left, gene.right) for gene in written
    ]
    read = read_annotation(tmp_path / "out.gff3", {"chr1": LENGTH}).genes["chr1"]
    assert {gene.ends for gene in read} == {gene.ends for gene in written}
    assert {gene.ended(MADE.bases, CODE).has_start for gene in read if len(gene.exons) > 1} == {True}


def test_gtf_has_the_stop_codon_beside_the_cds_and_bed_has_blocks(tmp_path, written):
    rows = [line.split("\t") for line in (tmp_path / "out.gtf").read_text().splitlines()]
    lines = [line.split("\t") for line in (tmp_path / "out.bed").read_text().splitlines()]
    assert len(lines) == len(written)
    for number, (gene, bed) in enumerate(zip(written, lines, strict=True), 1):
        mine = [row for row in rows if f'gene_id "gene{number}"; transcript_id "mRNA{number}";' in row[8]]
        coding = sum(int(row[4]) - int(row[3]) + 1 for row in mine if row[2] == "CDS")
        assert coding == gene.length - 3 * gene.has_stop
        assert (int(bed[1]), int(bed[2]), bed[5]) == (gene.left, gene.right, gene.strand)
        sizes, starts = ([int(each) for each in bed[column].split(",")] for column in (10, 11))
        assert tuple((gene.left + s, gene.left + s + size) for s, size in zip(starts, sizes, strict=True)) == gene.exons
        assert int(bed[9]) == len(gene.exons)


@pytest.mark.parametrize(("letters", "gene"), split_codons(), ids="+-")
def test_codons_that_an_intron_divides(tmp_path, letters, gene):
    with writing(tmp_path / "out", {"x": len(letters)}, "CDS", CODE) as writer:
        writer.genes("x", letters, [gene])
    assert proteins(tmp_path / "out.faa") == {"mRNA1": "MAAAAA"}
    rows = [line.split("\t") for line in (tmp_path / "out.gff3").read_text().splitlines() if line[0] != "#"]
    spans = {kind: [(int(row[3]), int(row[4])) for row in rows if row[2] == kind] for kind in {row[2] for row in rows}}
    starts, stops = spans["start_codon"], spans["stop_codon"]
    assert (starts, stops) == (
        ([(1, 2), (37, 37)], [(53, 53), (88, 89)]) if gene.strand == "+" else ([(53, 53), (88, 89)], [(1, 2), (37, 37)])
    )
    gtf = [line.split("\t") for line in (tmp_path / "out.gtf").read_text().splitlines()]
    assert sum(int(row[4]) - int(row[3]) + 1 for row in gtf if row[2] == "CDS") == gene.length - 3


def test_bedgraph_holds_every_base_rounded_and_runs_merged(tmp_path):
    """Whatever the pieces."""
    random = np.random.default_rng(0)
    made = {name: np.sin(np.cumsum(random.normal(size=(2, length)), 1)) / 2 + 0.5 for name, length in LENGTHS.items()}
    read = []
    for size in (37, 400):
        with writing(tmp_path / f"{size}", LENGTHS, "exon", CODE) as writer:
            for name, values in made.items():
                for first in range(0, LENGTHS[name], size):
                    writer.track(name, first, values[:, first : first + size])
                writer.end(LENGTHS[name])
        read.append([path.read_text() for path in output_paths(tmp_path / f"{size}", "exon")])
    assert read[0] == read[1]
    for strand, text in enumerate(read[0][1:]):
        rows = [line.split("\t") for line in text.splitlines()]
        for name, values in made.items():
            spans = [(int(start), int(end), float(value)) for at, start, end, value in rows if at == name]
            written = np.concatenate([np.full(end - start, value) for start, end, value in spans])
            np.testing.assert_allclose(written, values[strand], atol=0.005 + 1e-6)
            assert all(left[1] == right[0] and left[2] != right[2] for left, right in pairwise(spans))


def test_stretches_of_both_strands_in_order(tmp_path):
    probabilities = np.full((2, 120), 0.5)
    found = strands_found((np.array([[3, 9], [50, 60]]), np.array([[7, 20]])), probabilities)
    with writing(tmp_path / "out", LENGTHS, "exon", CODE) as writer:
        writer.stretches("a,b;c", found)
    lines = (tmp_path / "out.gff3").read_text().splitlines()
    assert lines[:3] == ["##gff-version 3", "##sequence-region chr1 1 400", "##sequence-region a%2Cb%3Bc 1 120"]
    rows = [line.split("\t") for line in lines[3:]]
    assert [(int(row[3]), int(row[4]), row[6], row[5]) for row in rows] == [
        (4, 9, "+", "0.5000"),
        (8, 20, "-", "0.5000"),
        (51, 60, "+", "0.5000"),
    ]
    assert {(row[0], row[1], row[2], row[7]) for row in rows} == {("a%2Cb%3Bc", "tapeless", "exon", ".")}
    assert rows[0][8] == "ID=exon1;probability=0.5000"


def test_nothing_is_left_of_what_went_wrong(tmp_path, written):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    broken = Gene("+", (("x", "y"),))  # type: ignore[arg-type]
    with pytest.raises(TypeError), writing(tmp_path / "out", {"chr1": LENGTH}, "CDS", CODE) as writer:
        writer.genes("chr1", MADE.bases, [written[0], broken])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(before) == 6


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "taken.plus.bedgraph").mkdir()
    (tmp_path / "file").touch()
    for prefix, sentence in (
        (tmp_path / "absent" / "out", "No such file"),
        (tmp_path / "file" / "out", "Not a directory"),
        (tmp_path / "taken", "it is a folder"),
        (tmp_path / "a\0b", "no name for output"),
    ):
        with pytest.raises(TapelessError, match=sentence), writing(prefix, LENGTHS, "CDS", CODE):
            raise RuntimeError("the block must not begin")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken.plus.bedgraph"]


@pytest.mark.parametrize("name", ["#1", "track", "browser"])
def test_names_that_bedgraph_cannot_hold(tmp_path, name):
    with pytest.raises(TapelessError, match="reads as a comment"), writing(tmp_path / "out", {name: 3}, "CDS", CODE):
        raise RuntimeError("the block must not begin")
