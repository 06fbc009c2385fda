"""Labelling as a user does it: a genome or a signal in, a run out, and with it other genomes and signals labelled."""

import json
import re
import sys

import numpy as np
import pytest

from tapeless import cli, load
from tapeless.errors import TapelessError
from tapeless.labelling import source as labelled
from tapeless.labelling.genome.fasta import read_lengths, read_records
from tapeless.labelling.genome.found import Finder
from tapeless.labelling.genome.gff import read_annotation
from tapeless.labelling.genome.scores import Agreement, Matched
from tapeless.labelling.genome.synthetic import Synthetic
from tapeless.labelling.report import farewell
from tapeless.labelling.scores import LabelReport
from tapeless.tasks.task import Ended
from tapeless.train.run import Run
from tests.labelling.signal.made import bursts

TINY = ("--set", "layers=1", "--set", "channels=8", "--set", "heads=2", "--time", "64", "--batch", "8")
GENOME = ("--fasta", "genome.fa", "--gff", "genes.gff3", "--feature", "exon")
GENES = GENOME[:4]
SIGNAL = ("--signal", "signal.npy", "--labels", "labels.npy")


@pytest.fixture
def tapeless(capfd, monkeypatch):
    """The command in this process: exit status, stdout, stderr."""

    def call(*words, folder):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["tapeless", "label", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        said, complained = capfd.readouterr()
        return left.value.code, said, complained

    return call


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A genome of two chromosomes, a signal, and what else can be handed in by mistake."""
    folder = tmp_path_factory.mktemp("place")
    Synthetic(3).write(folder, 2, 20_000)
    second = Synthetic(4).write(folder / "other", 2, 40_000)
    for path, name in ((second.fasta, "second.fa"), (second.gff, "second.gff3")):
        (folder / name).write_text(path.read_text().replace("chr1", "one").replace("chr2", "two"))
    made = bursts(6000, seed=1)
    np.save(folder / "signal.npy", 20 * made.signal)
    np.save(folder / "labels.npy", made.labels)
    np.save(folder / "short.npy", made.labels[:-1])
    np.save(folder / "zeros.npy", 0 * made.labels)
    np.save(folder / "floats.npy", made.labels.astype(float))
    np.save(folder / "flat.npy", np.ones(6000))
    np.save(folder / "square.npy", np.ones((60, 100)))
    np.save(folder / "nan.npy", np.where(np.arange(6000) == 17, np.nan, made.signal))
    np.save(folder / "objects.npy", np.array([1, "x", None], object), allow_pickle=True)
    (folder / "torn.npy").write_bytes((folder / "signal.npy").read_bytes()[:-100])
    (folder / "text.npy").write_text("1 2 3")
    (folder / "empty").write_text("")
    (folder / "protein.fa").write_text(">p\nMEEPQSDPSV\n")
    (folder / "other.gff3").write_text("##gff-version 3\nchrX\tx\texon\t1\t9\t.\t+\t.\tID=a\n")
    (folder / "not-a-run").mkdir()
    return folder


@pytest.fixture
def genome_run(place, tapeless):
    if not (place / "dna").exists():
        code, said, complained = tapeless(
            "train", *GENOME, "--held-out", "chr2", *TINY, "--steps", 12, "--out", "dna", "--json", folder=place
        )
        assert code == 0, complained
        (place / "dna.json").write_text(said)
    return place / "dna", json.loads((place / "dna.json").read_text())


@pytest.fixture
def signal_run(place, tapeless):
    if not (place / "tones").exists():
        code, said, complained = tapeless(
            "train",
            *SIGNAL,
            *TINY,
            "--scales",
            "3,10",
            "--steps",
            80,
            "--lr",
            "1e-2",
            "--out",
            "tones",
            "--json",
            folder=place,
        )
        assert code == 0, complained
        (place / "tones.json").write_text(said)
    return place / "tones", json.loads((place / "tones.json").read_text())


def test_a_run_on_a_genome_has_scores_a_picture_and_the_held_out_exons(place, genome_run):
    folder, found = genome_run
    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "source.json",
        "decoder.json",
        "metrics.jsonl",
        "record.jsonl",
        "snapshots",
        "checkpoints",
        "scores.json",
        "precision-recall.svg",
        "reliability.svg",
        "held-out.gff3",
        "held-out.plus.bedgraph",
        "held-out.minus.bedgraph",
    }
    scores = json.loads((folder / "scores.json").read_text())
    assert {name: found[name] for name in scores} == scores
    lengths = read_lengths(place / "genome.fa")
    exons = read_annotation(place / "genes.gff3", lengths, "exon").intervals
    assert found["exact"]["true"] == len(exons["chr2", "+"]) + len(exons["chr2", "-"])
    assert found["bases"]["true"] == sum(np.diff(exons["chr2", strand]).sum() for strand in "+-")
    assert found["steps"] == 12


def test_predicting_writes_every_base_of_both_strands_as_training_did(place, genome_run, tapeless):
    folder, _ = genome_run
    code, said, complained = tapeless("predict", "dna", "--fasta", "genome.fa", "-o", "all", "--json", folder=place)
    assert code == 0, complained
    assert json.loads(said)["bases"] == 40_000
    assert json.loads(said)["feature"] == "exon"
    for name in ("plus", "minus"):
        lines = (place / f"all.{name}.bedgraph").read_text().splitlines()
        second = [line for line in lines if line.startswith("chr2\t")]
        assert second == (folder / f"held-out.{name}.bedgraph").read_text().splitlines()
        spans = np.array([line.split("\t")[1:3] for line in second], int)
        assert spans[0, 0] == 0
        assert spans[-1, 1] == 20_000
        assert (spans[1:, 0] == spans[:-1, 1]).all()

    def of_second(path):
        lines = (line.split("\t") for line in path.read_text().splitlines())
        return [line[:8] for line in lines if line[0] == "chr2"]

    assert of_second(place / "all.gff3") == of_second(folder / "held-out.gff3")
    (bases,) = (each.bases for each in read_records(place / "genome.fa") if each.name == "chr2")
    loaded, calibration = load(folder, "newest"), Finder.read(folder).calibration
    for name, of_strand in zip(("plus", "minus"), calibration(loaded.label(bases.tobytes().decode())), strict=True):
        track = (line.split() for line in (folder / f"held-out.{name}.bedgraph").read_text().splitlines())
        written = np.concatenate([np.full(int(end) - int(start), float(value)) for _, start, end, value in track])
        assert np.allclose(of_strand, written, rtol=0, atol=0.00501)  # two decimals
    for wrong, said in (
        ("", "is empty"),
        ("ACGE", "looks like a protein"),
        ([1.0], "this run labels DNA"),
        ("€", "'?'"),
    ):
        with pytest.raises(TapelessError, match=re.escape(said)):
            loaded.label(wrong)


def test_the_threshold_decides_and_what_is_there_stays_unless_forced(place, genome_run, tapeless):
    words = ("predict", "dna", "--fasta", "genome.fa", "-o", "low", "--threshold", "0.0001")
    assert tapeless(*words, folder=place)[0] == 0
    before = (place / "low.gff3").read_bytes()
    whole = read_annotation(place / "low.gff3", read_lengths(place / "genome.fa"), "exon").intervals
    assert whole["chr1", "+"].tolist() == [[0, 20_000]]
    code, _, complained = tapeless(*words[:-1], "1", folder=place)
    assert code == 2
    assert "low.gff3 exists already" in complained
    assert (place / "low.gff3").read_bytes() == before
    assert tapeless(*words[:-1], "1", "--force", folder=place)[0] == 0
    assert "exon" not in (place / "low.gff3").read_text()


def test_a_signal_is_learned_and_another_labelled_with_the_last_weights(place, signal_run, tapeless, monkeypatch):
    _, trained = signal_run
    assert trained["classes"][1]["f1"] > 0.85
    assert trained["average_precision"] > 0.9
    taken = []
    plain = Run.model

    def watched(self, which, **how):
        taken.append(which)
        return plain(self, which, **how)

    monkeypatch.setattr(Run, "model", watched)
    other = bursts(2500, seed=9)
    np.save(place / "other.npy", 20 * other.signal)
    code, said, complained = tapeless("predict", "tones", "--signal", "other.npy", "-o", "found.npy", folder=place)
    assert code == 0, complained
    assert "2,500 samples" in said
    assert taken == ["newest"]
    found = np.load(place / "found.npy")
    assert found.shape == (2500, 2)
    assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    assert np.mean((found[:, 1] >= trained["threshold"]) == (other.labels == 1)) > 0.85


def test_a_run_goes_on_from_any_folder_and_is_scored_again(tmp_path, signal_run, tapeless):
    folder, _ = signal_run
    code, said, complained = tapeless("train", "--resume", folder, "--steps", 90, "--json", folder=tmp_path)
    assert code == 0, complained
    assert json.loads(said)["steps"] == 90
    assert json.loads((folder / "scores.json").read_text())["threshold"] == json.loads(said)["threshold"]
    (folder / "scores.json").unlink()  # as if it had been killed before its report
    code, said, complained = tapeless("train", "--resume", folder, "--steps", 90, folder=tmp_path)
    assert code == 0, complained
    assert "is complete: all 90 updates are done; go on by giving more with --steps" in " ".join(said.split())
    assert (folder / "scores.json").exists()


@pytest.fixture
def coding_run(place, tapeless, monkeypatch):
    """A model of genes that reads wavelets alone and was hardly trained, of two species, and what was said of it."""
    monkeypatch.setattr(labelled, "GENOME_FAMILIES", ("wavelets",))
    if not (place / "coding").exists():
        words = (*GENES, "--fasta", "second.fa", "--gff", "second.gff3", *TINY, "--steps", 1, "--held-out", "second")
        code, said, complained = tapeless("train", *words, "--out", "coding", folder=place)
        assert code == 0, complained
        (place / "coding.txt").write_text(said)
    return place / "coding", (place / "coding.txt").read_text()


def test_genes_are_found_beside_simple_rules_on_a_species_that_was_held_out(coding_run):
    folder, said = coding_run
    kept = json.loads((folder / "scores.json").read_text())
    assert kept["feature"] == "CDS"
    rules = ("longest open frames", "codon statistics", "network's scores")
    assert tuple(kept["baselines"]) == rules
    for name, found in (*kept["baselines"].items(), ("model", kept)):
        for kind, words in (("bases", "bases in CDS"), ("exact", "CDS, both ends exact"), ("genes", "whole genes")):
            (line,) = (line for line in said.splitlines() if f"{name}: {words}" in line)
            assert f"{found[kind]['f1']:.4f}" in line
    assert kept["better_than_baselines"] is True
    assert kept["exact"]["f1"] > 2 * max(kept["baselines"][name]["exact"]["f1"] for name in rules)
    names = {line.split("\t")[0] for line in (folder / "held-out.gff3").read_text().splitlines() if line[0] != "#"}
    assert names == {"one", "two"}


def test_genes_are_written_in_every_format_and_nothing_is_found_where_it_is_left_out(place, coding_run, tapeless):
    words = ("predict", "coding", "--fasta", "genome.fa", "--force", "--json")
    code, said, complained = tapeless(*words, "-o", "cds", folder=place)
    assert code == 0, complained
    found = json.loads(said)
    assert [path.rpartition("/")[2] for path in found["files"]] == [
        f"cds.{suffix}" for suffix in ("gff3", "gtf", "bed", "faa", "plus.bedgraph", "minus.bedgraph")
    ]
    assert (place / "cds.faa").read_text().count(">") == found["stretches"] > 3
    (place / "left-out.bed").write_text("chr1\t0\t20000\n")
    code, said, complained = tapeless(*words, "-o", "part", "--exclude", "left-out.bed", folder=place)
    assert code == 0, complained
    assert {line.split("\t")[0] for line in (place / "part.bed").read_text().splitlines()} == {"chr2"}
    (place / "lower.fa").write_text((place / "genome.fa").read_text().replace("A", "a"))
    for masked, count in ((("--soft-masked",), 0), ((), found["stretches"])):
        code, said, _ = tapeless(*words[:3], "lower.fa", *words[4:], "-o", "low", *masked, folder=place)
        assert (code, json.loads(said)["stretches"]) == (0, count)


def test_what_a_rule_reaches_is_told_where_the_model_does_not():
    rule, own = (Agreement(Matched(right, 9, 9), Matched(1, 2, 2)) for right in (6, 3))
    report = LabelReport(None, (), 0.5, [], "CDS", own, {"longest open frames": rule}, {"longest open frames": 300.0})
    ended = Ended(None, 1, 1e-3, None, "sunfish", None, "runs/x", "tapeless")  # type: ignore[arg-type]
    said = farewell(ended, report)
    assert (
        "The model is no better than longest open frames (F1 of bases and of exact ends 0.3333, 0.5000" in said.warning
    )
    assert "0.6667, 0.5000)" in said.warning


def test_the_demo_shows_both_scores_side_by_side(tmp_path, tapeless):
    code, said, complained = tapeless("demo", "--bases", 80_000, "--steps", 1, "--out", "run", folder=tmp_path)
    assert code == 0, complained
    assert "codon statistics: bases in CDS" in said
    assert "model: CDS, both ends exact" in said
    assert (tmp_path / "run" / "held-out.faa").exists()
    assert (tmp_path / "run" / "genome" / "genome.fa").exists()


BAD = [
    ((), "give a genome with --fasta"),
    ((*GENOME, *SIGNAL), "give a genome with --fasta"),
    (("--fasta", "genome.fa"), "--gff is missing"),
    (("--labels", "labels.npy"), "--signal is missing"),
    (("--fasta", "absent.fa", "--gff", "genes.gff3"), "cannot read"),
    (("--fasta", "empty", "--gff", "genes.gff3"), "is empty"),
    (("--fasta", "protein.fa", "--gff", "genes.gff3"), "looks like a protein"),
    (("--fasta", "genome.fa", "--gff", "empty"), "holds no features"),
    (("--fasta", "genome.fa", "--gff", "genome.fa"), "holds no features"),
    (("--fasta", "genome.fa", "--gff", "other.gff3"), "not in the FASTA file (chrX)"),
    ((*GENES, "--genetic-code", "7"), "no genetic code 7"),
    ((*GENES, "--start-codons", "TAA"), "'TAA' is no start codon"),
    ((*GENES, "--fasta", "second.fa"), "2 --fasta and 1 --gff"),
    ((*GENES, *GENES), "has a sequence 'chr1', as an earlier file has"),
    ((*SIGNAL, "--genetic-code", "4"), "--genetic-code names something in a genome"),
    ((*GENES, "--feature", "exxon"), "no feature of type exxon"),
    ((*GENOME, "--held-out", "chr3"), "choose one of chr1, chr2"),
    ((*GENOME, "--held-out", "chr1", "--held-out", "chr2"), "all sequences are held out"),
    ((*GENOME, *TINY, "--steps", "1", "--validation", "0.00001"), "hold out another part"),
    ((*GENOME, "--validation", "1.5"), "validation must be a share"),
    ((*GENOME, "--scales", "3,x"), "--scales must be numbers"),
    ((*GENOME, "--scales", "3,-1"), "a scale must be"),
    ((*GENOME, "--set", "heads=5"), "heads=5"),
    ((*GENOME, "--steps", "5", "--epochs", "1"), "choose one"),
    ((*GENOME, "--lr", "nan"), "lr must be"),
    ((*GENOME, *TINY, "--batch", "3000"), "a batch of 3000 windows"),
    ((*GENOME, "--backend", "tpu"), "unknown backend"),
    ((*GENOME, "--out", "not-a-run"), "exists already"),
    ((*GENOME, "--resume", "not-a-run"), "leave out --fasta"),
    (("--resume", "not-a-run"), "labels no signal"),
    (("--signal", "text.npy", "--labels", "labels.npy"), "no whole .npy file"),
    (("--signal", "torn.npy", "--labels", "labels.npy"), "no whole .npy file"),
    (("--signal", "objects.npy", "--labels", "labels.npy"), "holds Python objects"),
    (("--signal", "absent.npy", "--labels", "labels.npy"), "cannot read"),
    (("--signal", "not-a-run", "--labels", "labels.npy"), "is a folder"),
    (("--signal", "nan.npy", "--labels", "labels.npy"), "nan at position 17"),
    (("--signal", "flat.npy", "--labels", "labels.npy"), "the same number throughout"),
    (("--signal", "square.npy", "--labels", "labels.npy"), "one dimension"),
    (("--signal", "signal.npy", "--labels", "short.npy"), "5,999"),
    (("--signal", "signal.npy", "--labels", "floats.npy"), "must be integers"),
    (("--signal", "signal.npy", "--labels", "zeros.npy", *TINY, "--steps", "1"), "no label but 0"),
    ((*SIGNAL, "--held-out", "chr1"), "--held-out names something in a genome"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD)
def test_bad_input_is_a_sentence_and_leaves_nothing(place, tapeless, words, sentence):
    before = everything(place)
    code, said, complained = tapeless("train", *words, folder=place)
    assert (code, said) == (2, "")
    assert complained.count("\n") == 1
    assert sentence in complained
    assert everything(place) == before


BAD_PREDICTIONS = [
    (("absent", "--fasta", "genome.fa"), "is not there"),
    (("not-a-run", "--fasta", "genome.fa"), "is not a run"),
    (("dna",), "either --fasta or --signal"),
    (("dna", "--signal", "signal.npy"), "learned from a genome"),
    (("tones", "--fasta", "genome.fa"), "learned from a signal"),
    (("dna", "--fasta", "protein.fa"), "looks like a protein"),
    (("dna", "--fasta", "empty"), "is empty"),
    (("dna", "--fasta", "genome.fa", "--threshold", "1.5"), "threshold must be"),
    (("dna", "--fasta", "genome.fa", "-o", "absent/x"), "there is no folder"),
    (("tones", "--signal", "nan.npy"), "nan at position 17"),
    (("tones", "--signal", "signal.npy", "--threshold", "0.5"), "leave it out"),
    (("tones", "--signal", "signal.npy", "--soft-masked"), "--soft-masked is for genomes"),
    (("dna", "--fasta", "genome.fa", "--exclude", "genes.gff3"), "as BED has them"),
    (("tones", "--signal", "objects.npy"), "holds Python objects"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD_PREDICTIONS)
def test_bad_predictions_are_a_sentence_and_leave_nothing(place, genome_run, signal_run, tapeless, words, sentence):
    before = everything(place)
    out = () if "-o" in words else ("-o", "new")
    code, said, complained = tapeless("predict", *words, *out, folder=place)
    assert (code, said) == (2, "")
    assert complained.count("\n") == 1
    assert sentence in complained
    assert everything(place) == before


def everything(folder):
    return sorted(folder.rglob("*"))
