"""Synthetic genomes: what is promised about their genes, checked base by base; and the whole way round."""

import time
from itertools import pairwise

import numpy as np
import pytest
from Bio.Seq import Seq

from tapeless import TapelessError
from tapeless.labelling.genome.fasta import read_records
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.labelling.genome.gff import labels, read_annotation
from tapeless.labelling.genome.intervals import runs
from tapeless.labelling.genome.output import strands_found, writing
from tapeless.labelling.genome.synthetic import EXON, INTRON, LETTERS, Synthetic, codon_usage

LENGTH = 200_000


@pytest.fixture(scope="module")
def chromosome():
    return Synthetic(3).chromosome(1, LENGTH)


def spliced(chromosome, gene):
    """Its exons' letters joined in the direction of its strand, and its introns' letters."""
    letters = chromosome.bases.tobytes().decode()
    exons = [Seq(letters[start:end]) for start, end in gene.exons]
    introns = [Seq(letters[left[1] : right[0]]) for left, right in pairwise(gene.exons)]
    if gene.strand == "-":
        exons, introns = ([each.reverse_complement() for each in reversed(parts)] for parts in (exons, introns))
    return "".join(map(str, exons)), [str(intron) for intron in introns]


def test_genes_are_read_from_start_to_stop(chromosome):
    for gene in chromosome.genes:
        coding, introns = spliced(chromosome, gene)
        protein = str(Seq(coding).translate())  # Biopython, by the standard genetic code
        assert protein.startswith("M")
        assert protein.index("*") == len(protein) - 1
        for intron in introns:
            assert intron.startswith("GT")
            assert intron.endswith("AG")


def test_genes_keep_their_distance_and_sizes(chromosome):
    everything = [exon for gene in chromosome.genes for exon in gene.exons]
    assert everything == sorted(everything)
    for gene in chromosome.genes:
        assert all(end - start >= EXON[2] - 2 for start, end in gene.exons)
        assert all(right[0] - left[1] >= INTRON[2] for left, right in pairwise(gene.exons))
    for left, right in pairwise(chromosome.genes):
        assert right.exons[0][0] - left.exons[-1][1] >= 300
    assert everything[-1][1] <= LENGTH
    assert {gene.strand for gene in chromosome.genes} == {"+", "-"}
    assert {len(gene.exons) for gene in chromosome.genes} >= {1, 2, 3, 4}
    assert 0.10 < sum(gene.length for gene in chromosome.genes) / LENGTH < 0.25


def test_codons_are_used_as_the_species_does(chromosome):
    codons, shares = codon_usage()
    assert len(codons) == 61
    counts = dict.fromkeys((codon.tobytes().decode() for codon in codons), 0)
    for gene in chromosome.genes:
        coding, _ = spliced(chromosome, gene)
        for start in range(3, len(coding) - 3, 3):
            counts[coding[start : start + 3]] += 1
    drawn = sum(counts.values())
    off = (np.array(list(counts.values())) - drawn * shares) / np.sqrt(drawn * shares)
    assert np.abs(off).max() < 5
    assert (off**2).mean() < 1.6


def test_the_background_has_no_such_codons(chromosome):
    """Without its genes, a chromosome has no memory: triplets are as frequent as their letters make them."""
    free = np.ones(LENGTH, bool)
    for gene in chromosome.genes:
        free[gene.exons[0][0] : gene.exons[-1][1]] = False
    letters = np.searchsorted(LETTERS, chromosome.bases)
    at = np.flatnonzero(free[:-2] & free[1:-1] & free[2:])
    triplets = np.bincount(16 * letters[at] + 4 * letters[at + 1] + letters[at + 2], minlength=64) / len(at)
    shares = np.bincount(letters[free], minlength=4) / free.sum()
    expected = np.einsum("i,j,k->ijk", shares, shares, shares).ravel()
    assert np.abs(triplets / expected - 1).max() < 0.2
    assert 0.40 < shares[1] + shares[2] < 0.48


def test_a_seed_is_a_genome():
    one, same = Synthetic(5).chromosome(2, 20_000), Synthetic(5).chromosome(2, 20_000)
    assert one.bases.tobytes() == same.bases.tobytes()
    assert one.genes == same.genes
    for other in (Synthetic(6).chromosome(2, 20_000), Synthetic(5).chromosome(1, 20_000)):
        assert np.mean(one.bases == other.bases) < 0.3


def test_the_whole_way_round(tmp_path):
    """Genome → FASTA and GFF3 → letters and labels → exons → GFF3 → the same labels."""
    written = Synthetic(1).write(tmp_path / "new" / "genome", 3, 20_011)
    drawn = [Synthetic(1).chromosome(number, 20_011) for number in (1, 2, 3)]
    records = list(read_records(written.fasta))
    assert [(record.name, record.bases.tobytes()) for record in records] == [
        (each.name, each.bases.tobytes()) for each in drawn
    ]
    lengths = {record.name: len(record.bases) for record in records}
    for feature in ("exon", "CDS"):
        annotation = read_annotation(written.gff, lengths, feature)
        for each in drawn:
            for strand in "+-":
                exons = [exon for gene in each.genes if gene.strand == strand for exon in gene.exons]
                assert annotation.intervals[each.name, strand].tolist() == [list(exon) for exon in exons]
    truth = labels(annotation, lengths)
    with writing(tmp_path / "out", lengths, "exon", GeneticCode()) as writer:
        for record in records:
            rows = np.stack([truth[record.name, strand] for strand in "+-"]).astype(float)
            writer.stretches(record.name, strands_found((runs(rows[0]), runs(rows[1])), rows))
    again = labels(read_annotation(tmp_path / "out.gff3", lengths), lengths)
    for key, mask in truth.items():
        np.testing.assert_array_equal(again[key], mask)
        np.testing.assert_array_equal(runs(mask), annotation.intervals[key])


def test_phases_lead_to_the_codons(tmp_path, chromosome):
    """Every coding part, read from its phase on, is stops-free up to the gene's end."""
    written = Synthetic(3).write(tmp_path, 1, LENGTH)
    rows = [line.split("\t") for line in written.gff.read_text().splitlines() if "\tCDS\t" in line]
    letters = chromosome.bases.tobytes().decode()
    assert {row[7] for row in rows} == {"0", "1", "2"}
    for row in rows:
        part = Seq(letters[int(row[3]) - 1 : int(row[4])])
        part = part if row[6] == "+" else part.reverse_complement()
        part = part[int(row[7]) :]
        assert "*" not in str(part[: len(part) // 3 * 3].translate())[:-1]


def test_two_million_bases_in_seconds():
    begin = time.process_time()
    bases = sum(len(Synthetic(0).chromosome(number, 500_000).bases) for number in range(1, 5))
    assert bases == 2_000_000
    assert time.process_time() - begin < 10


def test_the_shortest_chromosome_holds_a_gene():
    for seed in range(30):
        assert Synthetic(seed).chromosome(1, 10_000).genes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0, 20_000), "chromosomes must be"),
        ((1, 9_999), "needs 10000 bases to hold a gene, not 9999"),
        ((1, 2.5), "length must be"),
    ],
)
def test_sizes_that_make_no_genome(tmp_path, arguments, sentence):
    with pytest.raises(TapelessError, match=sentence):
        Synthetic(0).write(tmp_path / "genome", *arguments)
    assert not list(tmp_path.iterdir())


def test_seeds_and_folders_that_do_not_do(tmp_path):
    with pytest.raises(TapelessError, match="seed must be"):
        Synthetic(-1)
    (tmp_path / "file").touch()
    with pytest.raises(TapelessError, match="cannot write into"):
        Synthetic(0).write(tmp_path / "file", 1, 10_000)
