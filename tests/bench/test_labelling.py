"""`make labelling`: the figures of three seeds, written where the docs have room for them."""

import sys
from importlib import import_module

import pytest

from tapeless.labelling.genome.synthetic import Synthetic

labelling = import_module("labelling")  # of benchmarks/, which is no package

SCORE = {"precision": 0.75, "recall": 0.6, "f1": 2 / 3}
RUN = {
    "classes": [SCORE, SCORE],
    "average_precision": 0.71,
    "seconds": 93.4,
    "shortest_open_frame": 510,
    "baselines": {"codon statistics": {**SCORE, "f1": 0.5}, "open frames": {**SCORE, "f1": 0.7}},
    "stretches": {"both": {"half": {**SCORE, "precision": None}}},
}


def test_the_figures_stand_between_the_markers_and_nothing_else_changes(tmp_path, monkeypatch):
    docs = tmp_path / "docs.md"
    docs.write_text(f"before\n{labelling.BEGIN}\nold\n{labelling.END}\nafter\n")
    genome = Synthetic(1).write(tmp_path, 1, 20_000)
    asked = []

    def told(fasta, gff, seed, folder):
        asked.append((fasta, gff, seed))
        return {**RUN, "classes": [SCORE, {**SCORE, "f1": (0.71, 0.5, 2 / 3)[seed]}]}

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
    assert "open frames from 510 bases on." in written
    assert "No better than codon statistics: seed 1. No better than open frames: seed 1, 2." in written
    assert "| model, seed 2, bases in CDS | 0.7500 | 0.6000 | 0.6667 | 0.7100 | 93 |" in written
    assert "| codon statistics, bases in CDS | 0.7500 | 0.6000 | 0.5000 | – | – |" in written
    assert "| open frames, bases in CDS | 0.7500 | 0.6000 | 0.7000 | – | – |" in written
    assert "| model, seed 0, CDS with half in common | – | 0.6000 | 0.6667 | – | – |" in written


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
