"""What labelling runs learn from, what they hold out, and how they turn probabilities into answers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.kernels import cpu as cpu_kernels
from tapeless.labelling import scores as labelled_scores
from tapeless.labelling import source as labelled
from tapeless.labelling.genome.dna import encode, reverse_complement
from tapeless.labelling.genome.found import Calibration, Finder
from tapeless.labelling.genome.genetic_code import GeneticCode
from tapeless.labelling.genome.output import output_paths
from tapeless.labelling.genome.scores import Agreement, Matched
from tapeless.labelling.output import open_labelling
from tapeless.labelling.run import EVERY_KIND, LabellingTask, start
from tapeless.labelling.run import resume as resume_labelling
from tapeless.labelling.scores import LabelReport, beginnings, choose_threshold, probabilities, score
from tapeless.labelling.signal import Features, Recording, Scores
from tapeless.labelling.signal import predict as plain_predict
from tapeless.labelling.signal.features import FAMILIES
from tapeless.labelling.source import Source, make_source, read_data, read_source
from tapeless.model import Model
from tapeless.models.presets import preset
from tapeless.tasks.task import Ended
from tapeless.train import run
from tapeless.train.session import resume
from tapeless.train.settings import Settings
from tests.labelling.signal.made import bursts

WAVELETS = Features(scales=(3, 10))
TINY: dict[str, Any] = {"layers": 1, "channels": 8, "heads": 2}


def source_of(fasta=None, gff=None, **given):
    return make_source(fasta=fasta and [fasta], gff=gff and [gff], **given)


@pytest.fixture
def genome(tmp_path):
    """One exon on each strand of each sequence, at bases that differ."""
    rng = np.random.default_rng(0)
    letters = {name: "".join("ACGT"[each] for each in rng.integers(0, 4, 1000)) for name in ("a", "b")}
    (tmp_path / "g.fa").write_text("".join(f">{name}\n{text}\n" for name, text in letters.items()))
    lines = ["##gff-version 3"]
    for name in letters:
        for first, last, strand in ((11, 50, "+"), (201, 260, "-"), (931, 960, "+"), (971, 980, "-")):
            lines.append(f"{name}\tx\texon\t{first}\t{last}\t.\t{strand}\t.\tID=e{first}")
    (tmp_path / "g.gff3").write_text("\n".join(lines) + "\n")
    return letters, source_of(fasta=tmp_path / "g.fa", gff=tmp_path / "g.gff3")


@pytest.fixture
def tones(tmp_path):
    made = bursts(3000, seed=1)
    np.save(tmp_path / "signal.npy", 7 * made.signal)
    np.save(tmp_path / "labels.npy", made.labels)
    return source_of(signal=tmp_path / "signal.npy", labels=tmp_path / "labels.npy", scales=(3, 10))


def test_each_strand_is_labelled_in_its_own_direction(genome):
    letters, source = genome
    data = read_data(source, 0.1)
    plus, minus = data.training[:2]
    begin = encode(letters["a"][:900].encode())
    assert np.array_equal(plus.signal[:900], begin)
    assert np.array_equal(minus.signal[:900], reverse_complement(begin))
    assert np.flatnonzero(plus.labels).tolist() == list(range(10, 50))
    assert np.flatnonzero(minus.labels).tolist() == list(range(900 - 260, 900 - 200))


def test_both_strands_are_cut_at_the_same_base(genome):
    """Else a model would be trained on the complement of what it is scored on."""
    letters, source = genome
    data = read_data(source, 0.1)
    assert [len(each.signal) for each in data.training] == [900] * 4
    assert [len(each.signal) for each in data.validation] == [100] * 4
    end = encode(letters["a"][900:].encode())
    assert np.array_equal(data.validation[0].signal[:100], end)
    assert np.array_equal(data.validation[1].signal[:100], reverse_complement(end))
    assert np.flatnonzero(data.validation[1].labels).tolist() == list(range(20, 30))


def test_whole_sequences_are_held_out_by_name(genome):
    letters, source = genome
    data = read_data(replace(source, held_out=("b",)), 0.1)
    assert [part.name for part in data.parts] == ["b"]
    assert [len(each.signal) for each in data.training + data.validation] == [800, 800, 1000, 1000]
    assert np.array_equal(data.training[0].signal[:800], encode(letters["a"][:800].encode()))


def test_a_source_comes_back_as_it_was_written(tmp_path, genome, tones):
    code = GeneticCode(12, ("ATG", "CTG"))
    named = Source(("/x",), ("/y",), "CDS", code, ("ä", "b"), features=Features(scales=(3.5,)))
    for source in (genome[1], tones, named):
        source.write(tmp_path)
        assert read_source(tmp_path) == source


@pytest.mark.parametrize("text", ["", "{}", "[1]", '"x"', "\xff", '{"held_out": 3, "scales": [3]}'])
def test_a_damaged_source_is_a_sentence(tmp_path, text):
    (tmp_path / "source.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(TapelessError, match=r"source\.json is damaged"):
        read_source(tmp_path)


def test_a_signal_has_unit_size_in_training_and_validation(tones):
    data = read_data(tones, 0.25)
    whole = np.concatenate([each.signal[: len(each.signal)] for each in data.training + data.validation])
    assert np.isclose(np.std(whole), 1)
    assert len(data.validation[0].signal) == 750
    assert data.classes == 2


def test_the_size_of_a_complex_signal(tmp_path):
    rng = np.random.default_rng(0)
    values = 5 + 3 * (rng.normal(size=500) + 1j * rng.normal(size=500))
    np.save(tmp_path / "s.npy", values)
    np.save(tmp_path / "l.npy", np.ones(500, int))
    found = source_of(signal=tmp_path / "s.npy", labels=tmp_path / "l.npy")
    assert np.isclose(found.amplitude, 1 / np.std(values))


def weighted_model(weights):
    config = preset("sunfish").override(**TINY, features=4)
    return Model(config, class_weights=weights, batch=4, time=64, optimizer=None, seed=3)


def test_probabilities_are_freed_of_the_class_weights():
    signal = bursts(300, seed=2).signal
    model = weighted_model((0.5, 5.0))
    found = np.concatenate(list(probabilities(model, signal, WAVELETS)))
    plain = np.concatenate([values for _, values in plain_predict(model, signal, features=WAVELETS)])
    assert np.allclose(found.sum(axis=1), 1)
    assert np.allclose(found[:, 1] / found[:, 0], plain[:, 1] / plain[:, 0] / 10)


def test_no_other_threshold_has_a_higher_f1_on_the_training_data():
    model = weighted_model((1.0, 1.0))
    recordings = [bursts(400, seed=seed) for seed in (4, 5)]
    chosen = choose_threshold(beginnings(model, recordings, WAVELETS))
    values = np.concatenate([np.concatenate(list(probabilities(model, r.signal, WAVELETS))) for r in recordings])[:, 1]
    truth = np.concatenate([each.labels for each in recordings])

    def f1(threshold):
        said = values >= threshold
        return 2 * np.sum(said & (truth == 1)) / (said.sum() + truth.sum())

    assert f1(chosen) == max(f1(step / (1 << 14)) for step in range(1, 1 << 14))


def test_the_threshold_is_a_half_where_nothing_is_to_be_found():
    made = bursts(200, seed=0)
    answered = beginnings(weighted_model((1.0, 1.0)), [Recording(made.signal, 0 * made.labels)], WAVELETS)
    assert choose_threshold(answered) == 0.5


def started(folder, source, **settings):
    with run.making(folder) as made:
        session = start(made, source, Settings(time=32, batch=4, **settings), TINY)
    return session, opened_by(session)


def opened_by(session):
    assert isinstance(session.trainer.task, LabellingTask)
    return session.trainer.task.opened


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, tones):
    whole, _ = started(tmp_path / "whole", tones, steps=6)
    whole.train()
    stopped, _ = started(tmp_path / "stopped", tones, steps=6)
    stopped.train(stopping=lambda: "enough" if stopped.trainer.step == 3 else None)
    assert stopped.trainer.step == 3
    going_on = resume(tmp_path / "stopped", {}, {}, EVERY_KIND)
    going_on.train()
    for name, weight in whole.model.params.items():
        assert np.array_equal(weight, going_on.model.params[name]), name


def test_more_than_two_classes(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "s.npy", rng.normal(size=800))
    labels = rng.integers(-1, 3, 800)
    np.save(tmp_path / "l.npy", labels)
    source = source_of(signal=tmp_path / "s.npy", labels=tmp_path / "l.npy", scales=(3, 10))
    session, opened = started(tmp_path / "run", source, steps=1, validation=0.5)
    report = score(session.run.folder, session.model, opened)
    assert session.model.config.vocab == 3
    assert report.threshold is None
    assert [each.positions for each in report.classes] == [np.sum(labels[400:] == number) for number in range(3)]
    values = np.concatenate(
        list(probabilities(session.model, opened.data.validation[0].signal, WAVELETS)), dtype=np.float32
    )
    expected = Scores(3)
    expected.add(labels[400:], values)
    assert report.classes == expected.per_class()
    assert {path.name for path in (tmp_path / "run").glob("*.svg")} == {
        "precision-recall-1.svg",
        "precision-recall-2.svg",
        "reliability.svg",
    }


def test_scores_of_two_classes_are_those_at_the_threshold(tmp_path, tones, monkeypatch):
    monkeypatch.setattr(labelled_scores, "choose_threshold", lambda *_: 0.3)
    session, opened = started(tmp_path / "run", tones, steps=2)
    report = score(session.run.folder, session.model, opened)
    held = opened.data.validation[0]
    said = np.concatenate(list(probabilities(session.model, held.signal, WAVELETS)))[:, 1].astype(np.float32) >= 0.3
    right = np.sum(said & (held.labels == 1))
    assert report.classes[1].recall == right / np.sum(held.labels == 1)
    assert report.classes[1].precision == (right / said.sum() if said.any() else None)
    assert report.classes[0].recall == np.sum(~said & (held.labels == 0)) / np.sum(held.labels == 0)
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["feature"] is None
    assert sum(count for _, _, count in report.reliability) == np.sum(held.labels >= 0)


def told_the_truth(monkeypatch, opened, sure=lambda labels: labels == 1):
    """The model says of every part what its labels are."""
    told = iter([*opened.data.calibration, *opened.data.parts])

    def truth(*_):
        part = next(told)
        return np.stack([sure(part.labels[strand]) for strand in "+-"]).astype(np.float32)

    monkeypatch.setattr(labelled_scores, "strand_probabilities", truth)


def test_exons_are_scored_where_they_lie(tmp_path, genome, monkeypatch):
    """With the truth for probabilities, every exon is found, on its strand and to the base; a short one is dropped."""
    _, source = genome
    source = replace(source, held_out=("b",))
    session, opened = started(tmp_path / "run", source, steps=1)
    told_the_truth(monkeypatch, opened)
    report = score(session.run.folder, session.model, opened)
    assert report.agreement == Agreement(Matched(130, 130, 140), Matched(3, 3, 4))
    lines = (tmp_path / "run" / "held-out.gff3").read_text().splitlines()[2:]
    found = {tuple(line.split("\t")[index] for index in (0, 3, 4, 6)) for line in lines}
    assert found == {("b", "11", "50", "+"), ("b", "201", "260", "-"), ("b", "931", "960", "+")}


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 9},
        {"feature": 3},
        {"calibration": {"scale": 0, "shift": 0}},
        {"calibration": {"scale": 1}},
        {"threshold": 2},
        {"threshold": "x"},
        {"decoder": {}},
        {"decoder": "x"},
    ],
)
def test_a_damaged_finder_is_a_sentence(tmp_path, changes):
    finder = Finder("exon", Calibration(2.0, -1.0), 0.25)
    finder.write(tmp_path)
    assert Finder.read(tmp_path) == finder
    path = tmp_path / "decoder.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(TapelessError, match=r"decoder\.json is damaged"):
        Finder.read(tmp_path)


def test_a_run_that_was_not_scored_is_a_sentence(tmp_path):
    with pytest.raises(TapelessError, match="its training did not come to its end"):
        Finder.read(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 3},
        {"version": True},
        {"version": None},
        {"features": None},
        {"features": {}},
        {"held_out": None},
        {"code": None},
        {"code": {"number": 7, "starts": ["ATG"]}},
        {"gff": []},
        {"features": {"version": 1, "families": ["smells"]}},
        {"features": {"version": 1, "scales": [0]}},
        {"features": {"version": 1, "surprise": 1}},
        {"feature": 3},
        {"feature": "a\tb"},
        {"feature": ""},
    ],
)
def test_a_source_that_makes_no_sense_is_a_sentence(tmp_path, genome, changes):
    genome[1].write(tmp_path)
    path = tmp_path / "source.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(TapelessError, match=r"source\.json is damaged"):
        read_source(tmp_path)


@pytest.mark.parametrize("families", [FAMILIES, ("bases", "frames"), ("opposite",)])
def test_runs_with_other_families_train_go_on_and_label(tmp_path, genome, monkeypatch, families):
    monkeypatch.setattr(labelled, "GENOME_FAMILIES", families)
    source = source_of(fasta=genome[1].fasta[0], gff=genome[1].gff[0])
    assert source.features.families == families
    whole, _ = started(tmp_path / "whole", source, steps=4)
    whole.train()
    stopped, _ = started(tmp_path / "stopped", source, steps=4)
    stopped.train(stopping=lambda: "enough" if stopped.trainer.step == 2 else None)
    monkeypatch.setattr(labelled, "GENOME_FAMILIES", ("wavelets",))  # a run keeps its own
    going_on = resume_labelling(tmp_path / "stopped", {}, {})
    going_on.train()
    for name, weight in whole.model.params.items():
        assert np.array_equal(weight, going_on.model.params[name]), name
    assert whole.model.config.features == source.features.width
    report = score(going_on.run.folder, going_on.model, opened_by(going_on))
    assert report.agreement is not None


@pytest.mark.parametrize(
    ("bases", "exact", "beaten_by"),
    [(9, 9, []), (6, 9, ["frames"]), (9, 6, ["frames"]), (5, 5, ["frames", "codons"])],
)
def test_the_rules_that_a_model_is_no_better_than(bases, exact, beaten_by):
    """In bases or in exact ends; a model that is as good as one is no better."""

    def agreement(bases, exact):
        return Agreement(Matched(bases, 10, 10), Matched(exact, 10, 10))

    rules = {"codons": agreement(5, 5), "frames": agreement(6, 6)}
    least = dict.fromkeys(rules, 1.0)
    report = LabelReport(None, (), 0.5, [], "CDS", agreement(bases, exact), rules, least)
    assert report.no_better_than() == beaten_by
    assert report.better_than_baselines is (not beaten_by)
    assert report.document()["baselines"]["frames"]["exact"]["f1"] == 0.6


def annotated(tmp_path, source, *lines):
    (tmp_path / "more.gff3").write_text(Path(source.gff[0]).read_text() + "".join(f"{line}\n" for line in lines))
    return replace(source, gff=(str(tmp_path / "more.gff3"),))


def test_what_is_unknown_is_neither_learned_nor_scored(tmp_path, genome, monkeypatch):
    """A feature without a strand in what is held out; a model that finds it is neither right nor wrong."""
    _, source = genome
    source = replace(
        annotated(tmp_path, source, *(f"b\tx\texon\t{first}\t{first + 99}\t.\t?\t.\tID=q" for first in (301, 501))),
        held_out=("b",),
    )
    session, opened = started(tmp_path / "run", source, steps=1)
    told_the_truth(monkeypatch, opened, lambda labels: labels != 0)
    report = score(session.run.folder, session.model, opened)
    assert report.agreement is not None
    assert report.agreement.bases == Matched(130, 130, 140)
    assert report.agreement.exact == Matched(3, 3, 4)


def test_sequences_that_the_annotation_never_names_are_left_out(tmp_path, genome):
    letters, source = genome
    (tmp_path / "more.fa").write_text(Path(source.fasta[0]).read_text() + f">c\n{letters['a']}\n")
    more = replace(source, fasta=(str(tmp_path / "more.fa"),))
    data = read_data(more, 0.1)
    assert [part.name for part in data.training_parts] == ["a", "b"]
    assert data.notes[-1] == "the annotation says nothing of 1 of 3 sequences (c): unknown."
    with pytest.raises(TapelessError, match="says nothing of sequence 'c': hold out another"):
        read_data(replace(more, held_out=("c",)), 0.1)


def test_what_a_labelling_run_says_at_the_end_is_its_report(tmp_path, tones):
    """Also where `tapeless train --resume` has gone on with it: the scores are those of the last weights."""
    session, _ = started(tmp_path / "run", tones, steps=2)
    task = session.trainer.task
    assert task.summary() == "2,700 positions to train, 300 held out"
    ended = Ended(session.model, 2, 1e-3, None, "sunfish", tmp_path / "run", "run", "tapeless")
    said = task.farewell(ended)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert said.rows == (("class 1", *(f"{scores['classes'][1][name]:.4f}" for name in ("precision", "recall", "f1"))),)
    assert said.result == f"Average precision {scores['average_precision']:.4f}"
    assert said.next == (
        ("tapeless label predict run --signal other.npy -o probabilities.npy", "label something with it"),
    )


def test_a_genome_is_labelled_on_every_thread_with_the_same_bytes(tmp_path, genome):
    """The model is what labelling takes its time for, and its loops are shared: who does a part changes no bit."""
    session, _ = started(tmp_path / "run", genome[1], steps=1)
    before, found = cpu_kernels.threads(), []
    session.train()
    Finder("exon", Calibration(), 0.5).write(tmp_path / "run")
    try:
        for count in range(1, min(2, cpu_kernels.cores()) + 1):
            cpu_kernels.set_threads(count)
            out = tmp_path / f"on {count}"
            labelling = open_labelling(
                tmp_path / "run", fasta=Path(genome[1].fasta[0]), signal=None, out=out, threshold=None, force=False
            )
            labelling.write(labelling.model()[0], lambda *_: None)
            assert cpu_kernels.threads() == count
            found.append([path.read_bytes() for path in output_paths(out, "exon")])
    finally:
        cpu_kernels.set_threads(before)
    assert all(each == found[0] for each in found)
    assert len(found[0][1]) > 1000
