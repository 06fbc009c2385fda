"""Genomes made up, with their truth known: genes on both strands in a background without any.

A gene is a start codon, codons and a stop codon, cut into exons by introns that begin with GT and end with AG. Codons
are used unevenly, as one species would, and the letters at their three places differ: that is what tells an exon. Over
the three places together, exons have almost the composition of the background, which drifts along a chromosome by more
than the difference: counting letters alone does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import make_folder, rename, write_file
from tapeless.inputs import check_seed
from tapeless.labelling.genome.genes import Gene
from tapeless.models.config import check_size
from tapeless.ops.contract import Array

LETTERS = np.frombuffer(b"ACGT", np.uint8)
STOPS = (b"TAA", b"TAG", b"TGA")
# The share of A, C, G, T at the three places of a codon: first A, then G, then C or T. As a signal they turn by a third
# of a circle from place to place, at an angle that the opposite strand, the conjugate, does not show.
PLACES = np.array([[0.53, 0.06, 0.12, 0.29], [0.20, 0.24, 0.46, 0.10], [0.11, 0.35, 0.09, 0.45]])
SPREAD = 0.3  # how unevenly codons of like letters are used: by factors around exp(±SPREAD)
USAGE_SEED = 61  # the codon usage belongs to the species, not to the genome drawn: one model fits all seeds

# Letters of the background: A and T, G and C alike, with a share of G and C that drifts from stretch to stretch.
MEAN_GC, DRIFT_GC, STRETCH = 0.44, 0.05, 1500
# Length of exons, of introns and of what lies between genes: medians and spreads of log-normals, and the least.
EXON, INTRON, BETWEEN = (220.0, 0.45, 60), (110.0, 0.45, 50), (2200.0, 0.6, 300)
MORE_EXONS = 2.0  # how many exons a gene has on average beyond its first
MOST_EXONS = 10
DONOR = ("G", "T", "AAAG", "A", "GGGA", "T")  # an intron's first letters, each drawn from those named
TRACT = ("CCTTTTAG",) * 12  # before its end: mostly C and T
ACCEPTOR = (*TRACT, "ACGT", "CCT", "A", "G")
SHORTEST_CHROMOSOME = 10_000
TRIES = 50
LINE = 60  # bases on a line of FASTA


@dataclass(frozen=True)
class Chromosome:
    name: str
    bases: Array
    genes: tuple[Gene, ...]


@dataclass(frozen=True)
class WrittenGenome:
    fasta: Path
    gff: Path


@dataclass(frozen=True)
class Synthetic:
    """A genome by its seed; each chromosome depends on the seed and its number alone."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def chromosome(self, number: int, length: int) -> Chromosome:
        """Chromosome `number`, from 1."""
        check_size("chromosome", number)
        check_size("length", length)
        if length < SHORTEST_CHROMOSOME:
            raise TapelessError(f"a chromosome needs {SHORTEST_CHROMOSOME} bases to hold a gene, not {length}.")
        random = np.random.default_rng([self.seed, number])
        bases = _background(random, length)
        codons, shares = codon_usage()
        genes = []
        at = int(random.integers(BETWEEN[2], 2 * BETWEEN[2]))
        while gene := _drawn_gene(random, at, length):
            _put(random, bases, gene, codons, shares)
            genes.append(gene)
            at = gene.exons[-1][1] + _drawn_length(random, *BETWEEN)
        return Chromosome(f"chr{number}", bases, tuple(genes))

    def write(self, folder: Path, chromosomes: int, length: int) -> WrittenGenome:
        """genome.fa and genes.gff3 in `folder`: chr1, chr2, … of `length` bases each."""
        check_size("chromosomes", chromosomes)
        drawn = [self.chromosome(number, length) for number in range(1, chromosomes + 1)]
        written = WrittenGenome(folder / "genome.fa", folder / "genes.gff3")
        try:
            make_folder(folder)
            for path, pieces in ((written.fasta, map(_fasta, drawn)), (written.gff, _gff(drawn))):
                beside = path.with_name(path.name + ".part")
                try:
                    write_file(beside, pieces)
                    rename(beside, path)
                finally:
                    beside.unlink(missing_ok=True)
        except OSError as error:
            raise TapelessError(f"cannot write into {folder}: {error.strerror}.") from None
        return written


def codon_usage() -> tuple[Array, Array]:
    """The 61 codons that are no stop, (61, 3) letters, and their shares."""
    codons = np.array([list("".join(each).encode()) for each in product("ACGT", repeat=3)], np.uint8)
    digits = np.array(list(product(range(4), repeat=3)))
    likelihood = PLACES[0, digits[:, 0]] * PLACES[1, digits[:, 1]] * PLACES[2, digits[:, 2]]
    shares = likelihood * np.exp(SPREAD * np.random.default_rng(USAGE_SEED).standard_normal(len(codons)))
    goes_on = np.array([codon.tobytes() not in STOPS for codon in codons])
    return codons[goes_on], shares[goes_on] / shares[goes_on].sum()


def _background(random: np.random.Generator, length: int) -> Array:
    stretches = -(-length // STRETCH)
    strong = np.clip(random.normal(MEAN_GC, DRIFT_GC, stretches), 0.2, 0.8)
    is_strong = random.random(length) < np.repeat(strong, STRETCH)[:length]
    first = random.random(length) < 0.5
    return LETTERS[np.where(is_strong, np.where(first, 1, 2), np.where(first, 0, 3))]


def _drawn_length(random: np.random.Generator, median: float, spread: float, least: int) -> int:
    return max(least, round(random.lognormal(np.log(median), spread)))


def _drawn_gene(random: np.random.Generator, at: int, length: int) -> Gene | None:
    """A gene that begins at `at`, or None where the chromosome has no room for one."""
    for _ in range(TRIES):
        exons = []
        end = at
        for number in range(min(1 + random.poisson(MORE_EXONS), MOST_EXONS)):
            start = end + (_drawn_length(random, *INTRON) if number else 0)
            end = start + _drawn_length(random, *EXON)
            exons.append((start, end))
        extra = sum(end - start for start, end in exons) % 3  # a gene is whole codons
        exons[-1] = (exons[-1][0], exons[-1][1] - extra)
        strand = "+-"[random.integers(2)]
        if exons[-1][1] <= length:
            return Gene(strand, tuple(exons))
    return None


def _put(random: np.random.Generator, bases: Array, gene: Gene, codons: Array, shares: Array) -> None:
    """Write the gene over the background; what its introns are not told to be stays background."""
    start, end = gene.exons[0][0], gene.exons[-1][1]
    here = bases[start:end] if gene.strand == "+" else bases[start:end][::-1]
    exons = [(first - start, last - start) for first, last in gene.exons]
    if gene.strand == "-":
        exons = [(end - start - last, end - start - first) for first, last in reversed(exons)]
    coding = codons[random.choice(len(codons), gene.length // 3, p=shares)]
    coding[0] = list(b"ATG")
    coding[-1] = list(STOPS[random.integers(len(STOPS))])
    spliced = coding.ravel()
    used = 0
    for index, (first, last) in enumerate(exons):
        if index:
            intron = here[exons[index - 1][1] : first]
            intron[: len(DONOR)] = _drawn_letters(random, DONOR)
            intron[-len(ACCEPTOR) :] = _drawn_letters(random, ACCEPTOR)
        here[first:last] = spliced[used : used + last - first]
        used += last - first
    if gene.strand == "-":
        here[:] = _complement(here)


def _drawn_letters(random: np.random.Generator, choices: tuple[str, ...]) -> Array:
    return np.array([ord(letters[random.integers(len(letters))]) for letters in choices], np.uint8)


def _complement(bases: Array) -> Array:
    return LETTERS[::-1][np.searchsorted(LETTERS, bases)]


def _fasta(chromosome: Chromosome) -> bytes:
    bases = chromosome.bases
    whole = len(bases) // LINE * LINE
    lines = np.full((whole // LINE, LINE + 1), ord("\n"), np.uint8)
    lines[:, :LINE] = bases[:whole].reshape(-1, LINE)
    rest = bases[whole:].tobytes()
    return b">" + chromosome.name.encode() + b"\n" + lines.tobytes() + (rest + b"\n" if rest else b"")


def _gff(chromosomes: list[Chromosome]) -> list[bytes]:
    lines = ["##gff-version 3"]
    lines += [f"##sequence-region {each.name} 1 {len(each.bases)}" for each in chromosomes]
    for chromosome in chromosomes:
        for number, gene in enumerate(chromosome.genes, 1):
            lines += _gene_lines(chromosome.name, f"{chromosome.name}.{number}", gene)
    return [("\n".join(lines) + "\n").encode()]


def _gene_lines(sequence: str, identity: str, gene: Gene) -> list[str]:
    def line(feature: str, start: int, end: int, phase: str, attributes: str) -> str:
        return f"{sequence}\tsynthetic\t{feature}\t{start + 1}\t{end}\t.\t{gene.strand}\t{phase}\t{attributes}"

    start, end = gene.exons[0][0], gene.exons[-1][1]
    lines = [
        line("gene", start, end, ".", f"ID=gene.{identity}"),
        line("mRNA", start, end, ".", f"ID=mRNA.{identity};Parent=gene.{identity}"),
    ]
    phases = dict(zip(gene.ordered(), gene.phases(), strict=True))
    for number, exon in enumerate(gene.exons, 1):
        lines.append(line("exon", *exon, ".", f"ID=exon.{identity}.{number};Parent=mRNA.{identity}"))
        lines.append(line("CDS", *exon, str(phases[exon]), f"ID=CDS.{identity};Parent=mRNA.{identity}"))
    return lines
