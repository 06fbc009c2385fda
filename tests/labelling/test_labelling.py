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
from tapeless.labelling.genome import baseline, open_frames
from tapeless.labelling.genome.dna import STRANDS, encode, reverse_complement
from tapeless.labelling.genome.fasta import read_lengths
from tapeless.labelling.genome.output import Segmentation, output_paths
from tapeless.labelling.genome.scores import Matched
from tapeless.labelling.output import label_genome
from tapeless.labelling.run import EVERY_KIND, LabellingTask, start
from tapeless.labelling.run import resume as resume_labelling
from tapeless.labelling.scores import (
    Answered,
    LabelReport,
    beginnings,
    choose_cut,
    choose_threshold,
    probabilities,
    read_cut,
    score,
)
from tapeless.labelling.signal import SCALES, Features, Recording, Scores
from tapeless.labelling.signal import predict as plain_predict
from tapeless.labelling.signal.features import FAMILIES
from tapeless.labelling.signal.scores import Score
from tapeless.labelling.source import (
    Source,
    by_name,
    learned_statistics,
    make_source,
    read_data,
    read_source,
    read_statistics,
    write_statistics,
)
from tapeless.model import Model
from tapeless.models.presets import preset
from tapeless.tasks.task import Ended
from tapeless.train import run
from tapeless.train.session import resume
from tapeless.train.settings import Settings
from tests.labelling.signal.made import bursts

WAVELETS = Features(scales=(3, 10))
TINY: dict[str, Any] = {"layers": 1, "channels": 8, "heads": 2}


def source_of(**given):
    nothing = dict.fromkeys(("fasta", "gff", "feature", "signal", "labels"))
    return make_source(**{**nothing, "held_out": (), "scales": SCALES, **given})


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
    data = read_data(Source(source.fasta, source.gff, held_out=("b",)), 0.1)
    assert [part.name for part in data.parts] == ["b"]
    assert [len(each.signal) for each in data.training + data.validation] == [1000] * 4
    assert np.array_equal(data.training[0].signal[:1000], encode(letters["a"].encode()))


def test_a_source_comes_back_as_it_was_written(tmp_path, genome, tones):
    for source in (genome[1], tones, Source("/x", "/y", "CDS", ("ä", "b"), features=Features(scales=(3.5,)))):
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


def answered_of(length, stretches, labels):
    """Sure of these stretches, and of nothing else."""
    values = np.full(length, 0.1)
    for first, last in stretches:
        values[first:last] = 0.9
    return Answered(labels, np.stack([1 - values, values], axis=1))


def test_the_cut_is_the_one_whose_stretches_fit_best():
    """What is short is wrong, and what is right has holes: both are seen, and what is unknown is not counted. Of
    those that fit alike, the one that drops most."""
    labels = np.zeros(3000, int)
    labels[500:900] = labels[1500:1900] = 1
    labels[2500:] = -1
    halves = [(500, 690), (711, 900), (1500, 1690), (1711, 1900)]
    short = [(100, 190), (1000, 1090), (1300, 1390), (2000, 2090)]
    unknown = [(2600, 2690), (2800, 2890)]
    assert choose_cut(0.5, [answered_of(3000, halves + short + unknown, labels)]) == Segmentation(
        0.5, shortest=300, gap=30
    )
    labels[1200:1290] = 1
    assert choose_cut(0.5, [answered_of(3000, [*halves, (1200, 1290)], labels)]) == Segmentation(
        0.5, shortest=60, gap=30
    )
    assert choose_cut(0.4, [answered_of(3000, [], labels)]) == Segmentation(0.4)


def test_a_chosen_cut_is_kept_for_what_is_labelled_later(tmp_path, genome, monkeypatch):
    monkeypatch.setattr(labelled_scores, "choose_cut", lambda threshold, _: Segmentation(threshold, 60, 100))
    session, opened = started(tmp_path / "run", genome[1], steps=1)
    report = score(session.run.folder, session.model, opened)
    assert report.cut == Segmentation(report.threshold or 0, 60, 100) == read_cut(tmp_path / "run")


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
    assert read_cut(tmp_path / "run") == Segmentation(0.3)
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["stretches"] is None


def test_exons_are_scored_where_they_lie(tmp_path, genome, monkeypatch):
    """With the truth for probabilities, every exon is found, on its strand and to the base."""
    _, source = genome
    source = Source(source.fasta, source.gff, held_out=("b",))
    session, opened = started(tmp_path / "run", source, steps=1)
    told = iter([*opened.data.training, *opened.data.validation])

    def truth(*_):
        labels = np.array(next(told).labels, float)
        return iter([np.stack((1 - labels, labels), axis=1)])

    monkeypatch.setattr(labelled_scores, "probabilities", truth)
    monkeypatch.setattr(labelled_scores, "choose_cut", lambda threshold, _: Segmentation(threshold, shortest=1, gap=0))
    report = score(session.run.folder, session.model, opened)
    assert report.stretches is not None
    for strand in (*STRANDS, "both"):
        assert report.stretches[strand].exact.f1 == 1, strand
    assert report.classes[1].f1 == 1
    lines = (tmp_path / "run" / "held-out.gff3").read_text().splitlines()[2:]
    found = {tuple(line.split("\t")[index] for index in (0, 3, 4, 6)) for line in lines}
    assert found == {
        ("b", "11", "50", "+"),
        ("b", "201", "260", "-"),
        ("b", "931", "960", "+"),
        ("b", "971", "980", "-"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"threshold": 2}',
        '{"threshold": "x"}',
        "{}",
        '{"threshold": 0.5, "shortest": -1, "gap": 10}',
        '{"threshold": 0.5, "shortest": 30, "gap": "x"}',
        '{"threshold": 0.5, "shortest": 30}',
    ],
)
def test_damaged_scores_are_a_sentence(tmp_path, text):
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(TapelessError, match=r"scores\.json is damaged"):
        read_cut(tmp_path)


def test_without_scores_the_threshold_is_a_half(tmp_path):
    assert read_cut(tmp_path) == Segmentation(0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 3},
        {"version": True},
        {"version": None},
        {"features": None},
        {"features": {}},
        {"held_out": None},
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


def statistics_of(source):
    learned = learned_statistics(read_data(source, 0.1))
    assert learned is not None
    return learned


def test_statistics_come_back_as_they_were_written(tmp_path, genome):
    learned = statistics_of(genome[1])
    write_statistics(tmp_path, learned)
    read = read_statistics(tmp_path)
    assert read is not None
    np.testing.assert_array_equal(read.odds, learned.odds)
    assert (read.window, read.threshold) == (learned.window, learned.threshold)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 9},
        {"log_odds": []},
        {"log_odds": [0] * 63},
        {"log_odds": ["x"] * 64},
        {"log_odds": [[0] * 64]},
        {"log_odds": [float("nan")] * 64},
        {"log_odds": None},
        {"window": None},
        {"window": 10**400},
        {"window": -60},
        {"threshold": "x"},
        {"threshold": float("inf")},
    ],
)
def test_damaged_statistics_are_a_sentence(tmp_path, genome, changes):
    write_statistics(tmp_path, statistics_of(genome[1]))
    path = tmp_path / "codons.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(TapelessError, match=r"codons\.json is damaged"):
        read_statistics(tmp_path)


def test_statistics_are_learned_where_the_model_is_and_nowhere_else(genome, tmp_path):
    """Other letters in what is held out, and they are the same."""
    letters, source = genome
    other = {name: text[:900] + text[900:][::-1] for name, text in letters.items()}
    (tmp_path / "h.fa").write_text("".join(f">{name}\n{text}\n" for name, text in other.items()))
    first, second = (statistics_of(each) for each in (source, replace(source, fasta=str(tmp_path / "h.fa"))))
    np.testing.assert_array_equal(first.odds, second.odds)
    assert first.threshold == second.threshold


def test_every_run_on_a_genome_is_scored_beside_simple_rules(tmp_path, genome):
    session, opened = started(tmp_path / "run", genome[1], steps=1)
    report = score(session.run.folder, session.model, opened)
    held_out = by_name(opened.data.parts)
    shortest = open_frames.fit(*by_name(opened.data.training_parts))
    expected = {
        "codon statistics": baseline.score(opened.statistics, *held_out),
        "open frames": open_frames.score(shortest, *held_out),
    }
    assert report.baselines == expected
    assert {each.true for each in expected.values()} == {4 * 10 + 2 * 20}
    kept = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert {name: each["f1"] for name, each in kept["baselines"].items()} == {
        name: each.f1 for name, each in expected.items()
    }
    assert kept["shortest_open_frame"] == shortest
    assert kept["better_than_baselines"] == ((report.classes[1].f1 or 0) > max(each.f1 for each in expected.values()))
    assert kept["feature"] == "exon"
    assert read_source(tmp_path / "run").feature == "exon"


@pytest.mark.parametrize("families", [FAMILIES, ("bases", "frames"), ("opposite",)])
def test_runs_with_other_families_train_go_on_and_label(tmp_path, genome, monkeypatch, families):
    monkeypatch.setattr(labelled, "GENOME_FAMILIES", families)
    source = source_of(fasta=genome[1].fasta, gff=genome[1].gff)
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
    assert report.baselines is not None


@pytest.mark.parametrize(
    ("own", "beaten_by"),
    [
        (0.9, []),
        (0.6, ["open frames"]),
        (0.5, ["open frames", "codon statistics"]),
        (None, ["open frames", "codon statistics"]),
    ],
)
def test_the_rules_that_a_model_is_no_better_than(own, beaten_by):
    """F1 0.5 and 2/3; a model that is as good as one is no better."""
    rules = {"codon statistics": Matched(1, 2, 2), "open frames": Matched(2, 3, 3)}
    report = LabelReport(0.5, (Score(1, 1, 1, 9), Score(1, 1, own, 1)), 0.5, "CDS", None, None, rules, 510)
    assert report.no_better_than() == beaten_by
    assert report.better_than_baselines is (not beaten_by)
    assert report.document()["baselines"]["open frames"]["f1"] == 2 / 3


def annotated(tmp_path, source, *lines):
    (tmp_path / "more.gff3").write_text(Path(source.gff).read_text() + "".join(f"{line}\n" for line in lines))
    return replace(source, gff=str(tmp_path / "more.gff3"))


def test_what_is_unknown_is_neither_learned_nor_scored(tmp_path, genome, monkeypatch):
    """A feature without a strand in what is held out; a model that finds it is neither right nor wrong."""
    _, source = genome
    source = replace(
        annotated(tmp_path, source, *(f"b\tx\texon\t{first}\t{first + 99}\t.\t?\t.\tID=q" for first in (301, 501))),
        held_out=("b",),
    )
    session, opened = started(tmp_path / "run", source, steps=1)
    told = iter([*opened.data.training, *opened.data.validation])

    def finds_all(*_):
        labels = np.array(next(told).labels != 0, float)
        return iter([np.stack((1 - labels, labels), axis=1)])

    monkeypatch.setattr(labelled_scores, "probabilities", finds_all)
    monkeypatch.setattr(labelled_scores, "choose_cut", lambda threshold, _: Segmentation(threshold, shortest=1, gap=0))
    report = score(session.run.folder, session.model, opened)
    assert report.classes[1].f1 == 1
    assert report.stretches is not None
    assert report.stretches["both"].exact.predicted == 4
    assert report.stretches["both"].exact.f1 == 1


def test_sequences_that_the_annotation_never_names_are_left_out(tmp_path, genome):
    letters, source = genome
    (tmp_path / "more.fa").write_text(Path(source.fasta).read_text() + f">c\n{letters['a']}\n")
    more = replace(source, fasta=str(tmp_path / "more.fa"))
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


def test_a_genome_is_labelled_on_every_thread_with_the_same_bytes(tmp_path, genome, monkeypatch):
    """The model is what labelling takes its time for, and its loops are shared: who does a part changes no bit."""
    source, before, found = genome[1], cpu_kernels.threads(), []
    lengths = read_lengths(Path(source.fasta or ""))
    try:
        for count in range(1, min(2, cpu_kernels.cores()) + 1):
            cpu_kernels.set_threads(count)
            model = Model(
                "sunfish",
                batch=2,
                backend="cpu",
                optimizer=None,
                features=source.features.width,
                vocab=2,
                context=64,
                time=64,
                **TINY,
            )
            out = tmp_path / f"on {count}"
            label_genome(model, source, None, Path(source.fasta or ""), lengths, out, Segmentation(), lambda *_: None)
            assert cpu_kernels.threads() == count
            found.append([path.read_bytes() for path in output_paths(out)])
    finally:
        cpu_kernels.set_threads(before)
    assert all(each == found[0] for each in found)
    assert len(found[0][1]) > 1000
