"""`make labelling`: the figures of three seeds, written where the docs have room for them."""

import sys
from importlib import import_module

import numpy as np
import pytest

from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.synthetic import Synthetic
from tapeless.labelling.source import LabelledSequence

labelling = import_module("labelling")  # of benchmarks/, which is no package


def agreement(bases, exact):
    counts = {"right": 9, "predicted": 11, "true": 13}
    return {kind: {"f1": f1, **counts} for kind, f1 in (("bases", bases), ("exact", exact), ("genes", exact))}


RUN = {
    **agreement(0.9, 0.8),
    "seconds": 93.4,
    "baselines": {"codon statistics": agreement(0.5, 0.25), "longest open frames": agreement(0.7, 0.5)},
}


def test_the_figures_stand_between_the_markers_and_nothing_else_changes(tmp_path, monkeypatch):
    docs = tmp_path / "docs.md"
    docs.write_text(f"before\n{labelling.BEGIN}\nold\n{labelling.END}\nafter\n")
    genome = Synthetic(1).write(tmp_path, 1, 20_000)
    asked = []

    def told(fasta, gff, seed, folder):
        asked.append((fasta, gff, seed))
        return {**RUN, "better_than_baselines": seed != 1}

    monkeypatch.setattr(labelling, "trained", told)
    monkeypatch.setattr(labelling, "DOCS", docs)
    monkeypatch.setattr(sys, "argv", ["x", "--fasta", str(genome.fasta), "--gff", str(genome.gff)])
    labelling.main()
    assert asked == [(genome.fasta, genome.gff, seed) for seed in (0, 1, 2)]
    before, _, rest = docs.read_text("utf-8").partition(labelling.BEGIN)
    written, _, after = rest.partition(labelling.END)
    assert (before, after) == ("before\n", "\nafter\n")
    assert "old" not in written
    assert "on chr1 (20,000 bases)" in written
    assert "No better than a rule: seed 1." in written
    assert "| model, seed 2 | 0.9000 | 0.8000 | 0.8000 | 9 of 13, 11 found | 93 |" in written
    assert "| codon statistics | 0.5000 | 0.2500 | 0.2500 | 9 of 13, 11 found | – |" in written
    assert "| longest open frames | 0.7000 | 0.5000 | 0.5000 | 9 of 13, 11 found | – |" in written


def test_augustus_is_given_genes_with_what_is_none_beside_them():
    """The second gene lies where the first one's surroundings end, and a gene that is cut short is left out."""
    letters = np.frombuffer(b"ACGT" * 500, np.uint8)
    genes = Gene("+", ((700, 760), (800, 830))), Gene("-", ((900, 960),)), Gene("+", ((1990, 2000),), 0, True, False)
    records = labelling.genbank(LabelledSequence("x", letters, {}, genes)).split("//\n")
    assert [len(record.split("ORIGIN")) for record in records] == [2, 2, 1]
    assert "CDS             join(501..560,601..630)" in records[0]
    assert "1..700\n" in records[0]
    assert "CDS             complement(71..130)" in records[1]
    assert "        1 gtacgt" in records[1]


def test_without_paths_it_says_what_to_give(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "--fasta", "", "--gff", "a.gff3"])
    with pytest.raises(SystemExit, match=r"make labelling FASTA=genome\.fa GFF=genes\.gff3"):
        labelling.main()


def test_docs_without_room_are_told_and_stay(tmp_path):
    docs = tmp_path / "docs.md"
    docs.write_text(labelling.BEGIN)
    with pytest.raises(SystemExit, match="put both back"):
        labelling.write(docs, "x")
    assert docs.read_text("utf-8") == labelling.BEGIN


def test_the_docs_have_room():
    content = labelling.DOCS.read_text("utf-8")
    assert content.count(labelling.BEGIN) == content.count(labelling.END) == 1
