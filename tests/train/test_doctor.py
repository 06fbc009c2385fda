import json
from itertools import count
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tools.doctor.report import advice, followed, kept, wrong_advice
from tools.doctor.runs import Trial, run_trial
from tools.doctor.trials import BLIND, DEVELOPMENT, FIRST, HIGH, LOW, NOTHING, VANISHING, operations
from typer.testing import CliRunner

from tapeless.cli.doctor import doctor
from tapeless.errors import TapelessError
from tapeless.labelling.signal.store import Recording
from tapeless.labelling.signal.task import Labelled, class_weights
from tapeless.model import Model
from tapeless.tasks.data.tokens import TokenData, Tokens
from tapeless.tasks.operations import Operations
from tapeless.tasks.text import Text
from tapeless.train.chance import chance, entropy
from tapeless.train.doctor import Observation, Setup, diagnose, read_setup
from tapeless.train.loop import Trainer
from tapeless.train.metrics import Recorder
from tapeless.train.settings import Settings

LAYERS = ("embedding", "blocks.0", "blocks.1", "head")
START = {"kind": "start", "step": 0, "chance_loss": 2.3, "chance_accuracy": 0.12, "answers": 10, "examples": 4000}
COUNT = 40


def history(size: int = COUNT, start: dict[str, Any] | None = START, **changes: Any) -> list[dict[str, Any]]:
    """A healthy run of 10 · size updates; `changes` are functions of the line's number, or constants."""
    rng = np.random.default_rng(0)
    lines: list[dict[str, Any]] = [] if start is None else [start]
    for number in range(size):
        line = {
            "kind": "step",
            "step": 10 * number or 1,
            "loss": 3 * 0.9**number + 0.05 * rng.uniform(),
            "lr": 1e-3,
            "gradient_norm": 1.0,
            "gradient_norms": dict.fromkeys(LAYERS, 0.5),
            "update_ratios": updates(5e-3 if number == 0 else 1e-3),
        }
        for name, value in changes.items():
            line[name] = value(number) if callable(value) else value
        lines.append(line)
    return lines


def updates(size: float) -> dict[str, float]:
    return dict.fromkeys(LAYERS, size)


def evaluation(step: int, loss: float, train_loss: float | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "loss": loss, "accuracy": None, "train_loss": train_loss, **more}


def first(lines: list[dict[str, Any]], **setup: Any) -> Observation:
    """The diagnosis. Only it may advise, and it does unless all is well: no two pieces of advice, no contradiction."""
    diagnosis, *evidence = diagnose(lines, Setup(**setup))
    assert bool(diagnosis.remedy) == (diagnosis.kind != "healthy")
    assert (diagnosis.verdict == "fine") == (diagnosis.kind == "healthy")
    for finding in evidence:
        assert finding.remedy == ""
        assert finding.verdict in ("fine", "look", "bad")
    assert len({finding.kind for finding in evidence}) == len(evidence)
    assert all(finding.sentence.endswith(".") for finding in (diagnosis, *evidence))
    return diagnosis


def blocks(number: int, least: float) -> dict[str, float]:
    """A stack whose gradients fade from top to bottom."""
    return {"embedding": least, **{f"blocks.{n}": least ** (1 - n / (number - 1)) for n in range(number)}, "head": 1.0}


STUCK: dict[str, Any] = {"loss": lambda n: 2.3 + 1.0 * 0.5**n}
SLOW: dict[str, Any] = {"loss": lambda n: 3.3 - 0.005 * n}
HALFWAY: dict[str, Any] = {"loss": lambda n: 3.0 - 0.04 * n}
SHAKING: dict[str, Any] = {"loss": lambda n: 1.6 + 0.1 * (n % 2)}
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "healthy": ("healthy", "fine", {}, {}),
    "healthy with large updates": ("healthy", "fine", {"update_ratios": updates(0.08)}, {}),
    "healthy with small updates": ("healthy", "fine", {"update_ratios": updates(1e-5)}, {}),
    "arrived with small updates": ("healthy", "fine", {"update_ratios": updates(1e-5), **SHAKING}, {}),
    "stuck after large updates": (HIGH, "bad", {"update_ratios": lambda n: updates(1e-3 if n else 0.5), **STUCK}, {}),
    "learns in spite of large updates": (HIGH, "look", {"update_ratios": updates(0.08), **SHAKING}, {}),
    "adapters, whose updates are always large": (
        "healthy",
        "fine",
        {"update_ratios": updates(0.08), **SHAKING},
        {"adapters": True},
    ),
    "adapters that tear the model apart": (
        HIGH,
        "bad",
        {"update_ratios": updates(0.3), "loss": lambda n: 1.5 + 0.1 * n},
        {"adapters": True},
    ),
    "diverges": (HIGH, "bad", {"update_ratios": updates(0.02), "loss": lambda n: 3.0 + n}, {}),
    "largish updates have cut the lower block off": (
        HIGH,
        "bad",
        {"update_ratios": updates(0.03), "gradient_norms": {"blocks.0": 1e-3, "blocks.1": 1.0}, **STUCK},
        {},
    ),
    "largish updates, and still falling": (HIGH, "look", {"update_ratios": updates(0.04), **HALFWAY}, {}),
    "stuck with healthy updates": (NOTHING, "bad", STUCK, {}),
    "barely moves": (LOW, "bad", {"update_ratios": updates(5e-5), **SLOW}, {}),
    "barely moves, though it learns": (LOW, "look", {"update_ratios": updates(5e-4), **HALFWAY}, {}),
    "at chance with small updates": (LOW, "bad", {"update_ratios": updates(5e-5), **STUCK}, {}),
    "deep and post-norm, small updates that learn": (
        "too few updates",
        "look",
        {"update_ratios": updates(5e-4), "gradient_norms": blocks(24, 0.5), **HALFWAY},
        {"placement": "post"},
    ),
    "still falling": ("too few updates", "look", HALFWAY, {}),
    "24 layers, nothing reaches the lowest": (VANISHING, "bad", {"gradient_norms": blocks(24, 1e-5), **STUCK}, {}),
    "24 layers, and all is reached": (NOTHING, "bad", {"gradient_norms": blocks(24, 0.5), **STUCK}, {}),
    "two layers, nothing reaches the lower": (VANISHING, "bad", {"gradient_norms": blocks(2, 1e-5), **STUCK}, {}),
    "gradients vanish, but it learns": ("healthy", "fine", {"gradient_norms": blocks(24, 1e-5)}, {}),
    "clipped to nothing": (
        "clipping",
        "bad",
        {"update_ratios": updates(1e-5), "gradient_norm": 3.0, **SLOW},
        {"optimizer": "sgd", "clip": 1e-3},
    ),
    "clipped, under Adam": (
        LOW,
        "bad",
        {"update_ratios": updates(1e-5), "gradient_norm": 3.0, **SLOW},
        {"optimizer": "adam", "clip": 1e-3},
    ),
    "gradients explode before any update": ("exploding gradients", "bad", {"gradient_norm": 1e6, **STUCK}, {}),
}


@pytest.mark.parametrize(("kind", "verdict", "changes", "setup"), CASES.values(), ids=CASES)
def test_the_diagnosis_follows_the_numbers(kind, verdict, changes, setup):
    found = first(history(**changes), **setup)
    assert (found.kind, found.verdict) == (kind, verdict)


def test_advice_names_the_rate_to_take():
    lines = history(update_ratios=lambda n: updates(0.5 if n == 0 else 1e-3), lr=0.1, **STUCK)
    assert first(lines).remedy == "Divide the learning rate by 100: --lr 0.001."
    assert first(lines, lr=0.3).remedy == "Divide the learning rate by 100: --lr 0.003."  # what was asked for
    lines = history(update_ratios=updates(5e-5), lr=1e-5, **SLOW)
    assert first(lines).remedy == "Multiply the learning rate by 100: --lr 0.001."
    lines = history(update_ratios=updates(5e-7), lr=1e-9, **SLOW)
    assert first(lines).remedy == "Multiply the learning rate by 1,000: --lr 1e-6."
    clipped = history(update_ratios=updates(1e-6), gradient_norm=2.8, **SLOW)
    assert "--clip 3)" in first(clipped, optimizer="momentum", clip=1e-3).remedy


def test_what_was_learned_is_held_against_chance():
    assert "learned nothing: its loss, 2.3, is that of always the same answer, 2.3." in first(history(**STUCK)).sentence
    above = first(history(update_ratios=updates(1e-5), **SLOW)).sentence
    assert "is worse than that of always the same answer, 2.3." in above
    little = first(history(update_ratios=updates(0.1), loss=2.2)).sentence
    assert "learned next to nothing: its loss, 2.2, is hardly below 2.3" in little
    assert "always the same answer gets 2.3." in first(history()).sentence


def test_a_run_that_did_not_record_chance_is_held_against_its_beginning():
    """Runs of before have no such line, and every tenth update only."""

    def old(**changes: Any) -> list[dict[str, Any]]:
        return history(start=None, **changes)[1:]

    assert first(old()).kind == "healthy"
    assert first(old(update_ratios=updates(1e-5), loss=3.0)).kind == LOW
    assert first(old(update_ratios=updates(0.2), loss=3.0)).kind == HIGH
    nothing = first(old(update_ratios=updates(4e-3), loss=3.0))
    assert nothing.kind == NOTHING
    assert "The loss went from 3 to 3." in nothing.sentence
    assert "what guessing gets was not recorded" in diagnose(old())[1].sentence


@pytest.mark.parametrize(
    ("kind", "verdict", "pairs"),
    [
        ("overfitting", "bad", [(2.2, 2.2), (1.0, 0.8), (1.2, 0.2)]),
        ("overfitting", "look", [(2.2, 2.2), (1.0, 0.8), (0.9, 0.2)]),
        ("healthy", "fine", [(2.2, 2.2), (1.0, 0.9), (1.0, 0.85), (1.01, 0.8)]),
        ("healthy", "fine", [(2.2, 2.2), (0.2, 0.1), (0.2, 0.01)]),  # what is left is little beside chance
        (NOTHING, "bad", [(2.3, 2.3), (2.35, 1.5), (2.5, 0.8)]),  # 4,000 examples by heart, and nothing of the rest
    ],
)
def test_overfitting(kind, verdict, pairs):
    lines = [evaluation(100 * number, *pair) for number, pair in zip(count(1), pairs, strict=False)]
    found = first([*history(), *lines])
    assert (found.kind, found.verdict) == (kind, verdict)


def test_little_data_is_learned_by_heart_without_the_labels_being_wrong():
    start = START | {"examples": 96}
    lines = [evaluation(100, 2.3, 2.3), evaluation(200, 2.4, 1.5), evaluation(390, 2.8, 0.1)]
    found = first([*history(start=start), *lines])
    assert found.kind == "overfitting"
    assert "there are 96 sequences" in found.remedy
    assert "step 100" in found.remedy


def test_overfitting_takes_the_losses_of_the_updates_where_nothing_else_is_known():
    losses: dict[str, Any] = {"loss": lambda n: 2.3 - 0.05 * n}
    rising = [evaluation(100, 2.0), evaluation(200, 1.8), evaluation(390, 2.1)]
    assert first([*history(**losses), *rising]).kind == "overfitting"


def test_a_noisy_training_loss_is_no_overfitting():
    """A batch of a few windows may be easy: of the last updates, three in four must be below the held-out loss."""
    noisy: dict[str, Any] = {"loss": lambda n: max(0.6, 2.3 - 0.1 * n) * (0.4, 1.9, 0.5)[n % 3]}
    lines = [evaluation(step, loss) for step, loss in ((100, 1.3), (200, 0.85), (290, 0.81), (390, 0.8))]
    assert first([*history(**noisy), *lines]).kind == "healthy"
    even: dict[str, Any] = {"loss": lambda n: max(0.3, 2.3 - 0.1 * n)}
    assert first([*history(**even), *lines]).kind == "overfitting"


def test_a_labeller_that_says_one_class_is_not_overfitted():
    """As it was on real DNA: weighed classes, loss at ln 2, training and held-out part apart by chance alone."""
    start = START | {"chance_loss": log(2), "chance_accuracy": 0.83, "answers": 2}
    rng = np.random.default_rng(1)
    lines = history(start=start, loss=lambda n: 0.693 + 0.06 * rng.normal())
    lines += [evaluation(step, 0.69 + 0.03 * rng.normal(), accuracy=0.83) for step in range(50, 400, 50)]
    found = first(lines)
    assert (found.kind, found.verdict) == (NOTHING, "bad")
    assert "always the same answer" in found.sentence


def silent(*shares: float, **changes: Any) -> list[dict[str, Any]]:
    """Evaluations with so many silent units in blocks.1."""
    loss = {"loss": lambda n: 2.2 - 0.02 * n, **changes}
    lines = [
        evaluation(100 * n, 1.5, 1.4, dead_units={"blocks.0": 0.0, "blocks.1": s}) for n, s in enumerate(shares, 1)
    ]
    return [*history(**loss), *lines]


def test_dead_units_are_a_cause_only_if_they_were_dead_all_along():
    found = first(silent(1.0, 0.97, 0.99))
    assert found.kind == "dead units"
    assert "97 % of the ReLU units of blocks.1" in found.sentence
    assert "blocks.0" not in found.sentence
    for shares in ((0.6, 0.6, 0.6), (0.3, 0.99, 1.0), (1.0, 1.0, 0.5)):
        assert first(silent(*shares)).kind == "too few updates"


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.04, "fine"), (0.49, "fine"), (0.51, "look"), (0.76, "look"), (0.99, "look")]
)
def test_a_layer_of_which_most_units_are_dead_is_not_ticked(share, verdict):
    (units,) = [each for each in diagnose(silent(share, share), Setup()) if each.kind == "units"]
    assert (units.verdict, units.section) == (verdict, "blocks.1")


def test_dead_units_are_no_cause_where_the_rate_killed_them():
    assert first(silent(1.0, 1.0, 1.0, update_ratios=updates(0.3))).kind == HIGH


def test_a_collapse_comes_before_everything_but_two_writers():
    lines = [*history(), evaluation(100, 1.0, 1.0, spread=1.0), evaluation(390, 1.0, 1.0, spread=0.05)]
    assert first(lines).kind == "collapse"
    lines[-1]["spread"] = 0.5
    assert first(lines).kind != "collapse"


def test_chance_goes_with_the_spread_where_the_loss_is_a_distance():
    """Embeddings that have moved apart make every distance larger, that of the best constant too."""
    lines = [*history(loss=1.9), evaluation(390, 1.9, 1.9, spread=1.0)]
    assert "loss came to 1.9; always the same answer gets 2.3." in first(lines).sentence
    lines[-1]["spread"] = 2.0
    assert "always the same answer gets 9.2." in first(lines).sentence


@pytest.mark.parametrize(("number", "kind"), [(0, "healthy"), (2, "healthy"), (5, "spikes")])
def test_spikes(number, kind):
    lines = [{"kind": "spike", "step": 100 + step, "message": "…"} for step in range(number)]
    assert first([*history(loss=lambda n: 1.5 + 0.5 * 0.9**n), *lines]).kind == kind


NAN = "update 201 was stopped: the loss is nan."


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (HIGH, {"update_ratios": updates(0.3)}),
        (HIGH, {"gradient_norm": lambda n: 10.0 ** (n / 4)}),
        ("not finite", {}),
        ("exploding gradients", {"gradient_norm": 1e5}),
    ],
)
def test_a_run_that_ended_in_nan(kind, changes):
    stop = {"kind": "stop", "step": 200, "reason": NAN}
    found = first([*history(20, **changes), stop])
    assert (found.kind, found.verdict) == (kind, "bad")


def test_a_run_that_ended_in_nan_before_much_was_recorded():
    lines = [*history(1, update_ratios=updates(1.5)), {"kind": "stop", "step": 6, "reason": NAN}]
    assert first(lines).kind == HIGH
    assert "Update 7 was stopped by a number that is not finite, after" in first(lines).sentence  # as training says it
    for finding in diagnose(lines)[1:]:
        assert "one update recorded" in finding.sentence
        assert not any(word in finding.sentence for word in ("late", "usually", "at first"))
        assert finding.verdict != "fine"


def test_how_a_stop_is_told():
    told = {"kind": "stop", "step": 200, "reason": NAN}
    found = first([*history(20), told]).sentence
    assert found.startswith("Update 201 was stopped by a number that is not finite, and ")
    assert found.endswith("updates were not large: the loss is nan.")
    found = first([*history(20, update_ratios=None), told]).sentence
    assert "how large updates were is not recorded" in found


def test_a_run_that_was_stopped_by_nan_and_went_on():
    lines = [*history(20), {"kind": "stop", "step": 150, "reason": NAN}, *history()[21:]]
    assert first(lines).kind == "healthy"
    assert any("update 151 was stopped, and it went on: " in finding.sentence for finding in diagnose(lines))
    early = {"kind": "stop", "step": 390, "reason": "stopped early: 3 evaluations were no better than 0.1200"}
    assert first([*history(), early]).kind == "healthy"


def test_a_loss_that_is_not_finite():
    lost = history(loss=lambda n: None if n > 30 else 1.0)
    assert first(lost).kind == "not finite"


def test_a_held_out_loss_that_is_not_finite():
    lost = evaluation(5, 1.0) | {"loss": None, "best": True}
    found = first([*history(1, update_ratios=updates(7e7)), lost])
    assert (found.kind, found.verdict) == (HIGH, "bad")
    assert "The held-out loss after update 5 was not finite, after updates as large as" in found.sentence
    assert first([*history(), lost | {"step": 390}]).kind == "not finite"  # updates are small: another cause
    assert first([*history(), lost, evaluation(390, 0.1, 0.1)]).kind == "healthy"


def test_updates_larger_than_the_weights_need_no_course():
    for recorded in (1, 3):
        found = first(history(recorded, update_ratios=updates(20.0)))
        assert (found.kind, found.verdict) == (HIGH, "bad")
        assert found.remedy.startswith("Divide the learning rate by 1,000")


def test_too_little_to_say():
    for lines in ([], history(3)):
        found = first(lines)
        assert (found.kind, found.verdict) == ("too few updates", "look")
    assert first(history(10, **STUCK)).kind == "too few updates"  # 90 updates say nothing about the data
    assert first(history(20, **STUCK)).kind == NOTHING


# A text of random words, 300 updates with a cosine schedule: with 1,000 it learns.
ARRIVING = (5.213, 4.618, 4.048, 3.608, 3.290, 3.092, 2.979, 2.919, 2.884, 2.863, 2.848, 2.839, 2.832, 2.827, 2.822)


@pytest.mark.parametrize("chance", [2.68, 2.80])
def test_a_loss_that_has_only_just_come_down_to_chance_was_stopped_too_soon(chance):
    start = START | {"chance_loss": chance}
    evaluations = [evaluation(20 * number, loss) for number, loss in enumerate(ARRIVING, 1)]
    losses = np.interp(np.arange(31), np.arange(0, 32, 2), (5.57, *ARRIVING))
    lines = history(31, start=start, loss=lambda n: losses[n])
    for each in ([*lines, *evaluations], lines):
        found = first(each)
        assert (found.kind, found.verdict) == ("too few updates", "look")
        assert "its loss, 5.57 at first, was still coming down in the second half" in found.sentence
        assert found.remedy.startswith("Train for longer: --steps 1200")


def test_a_loss_that_sat_at_chance_since_the_first_half_learned_nothing():
    evaluations = [evaluation(20 * number, max(2.3, 3.0 - 0.1 * number)) for number in range(1, 20)]
    assert first([*history(**STUCK), *evaluations]).kind == NOTHING


# 150 updates of a small model of bytes: the training loss came from 5.55 to 2.74, guessing gets 3.31.
HELD_OUT = (4.401, 3.655, 3.417, 3.301, 3.22, 3.161, 3.126, 3.11, 3.094, 3.0838)
TRAINED = (5.55, 4.87, 4.13, 3.64, 3.4, 3.21, 3.07, 3.02, 2.96, 2.88, 2.73, 2.96, 2.62, 2.77, 2.74, 2.74)


def test_a_run_that_learned_next_to_nothing_is_not_called_healthy():
    start = START | {"chance_loss": 3.31}
    falling = [evaluation(15 * number, loss) for number, loss in enumerate(HELD_OUT, 1)]
    lines = history(16, start=start, loss=lambda n: TRAINED[n])
    found = first([*lines, *falling])
    assert (found.kind, found.verdict) == ("too few updates", "look")
    assert "its loss, 3.08, is hardly below 3.31" in found.sentence  # of the last evaluation
    assert found.remedy.startswith("Train for longer: --steps 600")
    settled = [evaluation(15 * number, 3.1) for number in range(1, 11)]
    found = first([*lines, *settled])
    assert (found.kind, found.verdict) == ("little learned", "look")
    assert found.sentence.startswith("The loss hardly falls any more. The model learned next to nothing")


def test_the_loss_that_is_named_is_that_of_the_last_evaluation():
    lines = [*history(), evaluation(360, 0.05035, 0.05), evaluation(390, 0.02599, 0.03)]
    assert "The held-out loss came to 0.026; always the same answer gets 2.3." in first(lines).sentence


def test_what_is_unusual_in_a_healthy_run_is_said_to_do_no_harm():
    assert "What is unusual below (updates) did it no harm." in first(history(update_ratios=updates(0.08))).sentence
    assert "unusual" not in first(history()).sentence


def test_two_processes_that_wrote_into_one_run():
    lines = history()
    found = first([*lines, *lines[1:]])
    assert (found.kind, found.verdict) == ("two writers", "bad")
    assert f"{COUNT} updates are recorded more than once" in found.sentence
    mixed = [line for line in lines for _ in range(2)]
    assert first(mixed).kind == "two writers"


@pytest.mark.parametrize("missing", ["gradient_norm", "gradient_norms", "update_ratios", "loss", "lr"])
def test_what_was_not_recorded_is_not_judged(missing):
    lines = history()
    for line in lines[1:]:
        del line[missing]
    assert first(lines).kind == ("too few updates" if missing == "loss" else "healthy")
    for line in lines[1:]:
        line[missing] = None
    assert first(lines).kind == ("not finite" if missing == "loss" else "healthy")


def junk(rng: np.random.Generator) -> Any:
    """A number of any size, or none at all."""
    sizes = (0, -1, 1e-300, 0.5, 1e5, 1e200, -1e308, 10**400, None, "1e400", True)
    return sizes[rng.integers(len(sizes))] if rng.random() < 0.6 else float(10 ** rng.uniform(-6, 3))


def junk_line(rng: np.random.Generator) -> dict[str, Any]:
    kinds = ("start", "step", "step", "step", "step", "evaluation", "evaluation", "spike", "stop")
    line: dict[str, Any] = {"kind": kinds[rng.integers(len(kinds))], "step": int(rng.integers(20))}
    line["step"] *= 10 ** (400 if rng.random() < 0.05 else 0)
    for name in (*NUMBERS, "reason"):
        line |= {name: junk(rng)} if rng.random() < 0.8 else {}
    for name in ("gradient_norms", "update_ratios", "dead_units"):
        line[name] = {layer: junk(rng) for layer in LAYERS} if rng.random() < 0.9 else junk(rng)
    return line


NUMBERS = (
    "loss",
    "lr",
    "gradient_norm",
    "train_loss",
    "accuracy",
    "spread",
    "chance_loss",
    "chance_accuracy",
    "examples",
)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_metrics_say_there_is_a_diagnosis(seed):
    rng = np.random.default_rng(seed)
    named = set()
    for _ in range(400):
        lines = [junk_line(rng) for _ in range(rng.integers(1, 20))]
        diagnosis, *evidence = diagnose(lines, Setup("sgd", clip=float(10 ** rng.uniform(-9, 9))))
        assert diagnosis.sentence
        assert not any(finding.remedy for finding in evidence)
        named.add(diagnosis.kind)
    assert len(named) > 4


def test_weights_that_do_not_move_at_all():
    found = first(history(update_ratios=updates(0.0), **SLOW))
    assert (found.kind, found.remedy) == (LOW, "Multiply the learning rate by 1,000: --lr 1.")


# Chance.


def test_entropy_of_answers():
    assert entropy(np.array([500_000, 500_000])) == pytest.approx(log(2), abs=1e-5)
    assert entropy(np.array([1_000_000, 0])) == 0
    shares = np.array([0.9, 0.05, 0.05])
    assert entropy(1e6 * shares) == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-5)
    # Weights that undo how often a class comes leave two classes at ln 2.
    counts = np.array([830_000, 170_000])
    assert entropy(counts, tuple(1 / counts)) == pytest.approx(log(2), abs=1e-5)


def test_a_sample_seems_more_certain_than_it_is():
    rng = np.random.default_rng(0)
    sampled = [np.bincount(rng.integers(0, 200, 1000), minlength=200) for _ in range(50)]
    assert np.mean([entropy(each) for each in sampled]) == pytest.approx(log(200), abs=0.01)


def test_chance_of_the_operations():
    model = Model("ops-102k", batch=32)
    task = Operations(model.config, 0)
    found = chance(model, task, None)
    shares = np.bincount(task.training.answers) / len(task.training)
    assert found["chance_loss"] == pytest.approx(-(shares[shares > 0] * np.log(shares[shares > 0])).sum(), abs=2e-3)
    assert found["chance_accuracy"] == pytest.approx(shares.max())
    assert (found["answers"], found["examples"]) == (10, 4000)


def test_chance_of_text_and_of_distances():
    tokens = np.tile(np.array([0, 0, 0, 1], np.uint16), 5000)
    task = Text(TokenData(Tokens([tokens]), Tokens([tokens]), 2, None, ""), 8, 0)
    fields: dict[str, Any] = {"batch": 4, "time": 8, "layers": 1, "channels": 8, "heads": 2, "vocab": 2, "context": 8}
    found = chance(Model("gpt2-4x256", **fields), task, None)
    assert found["chance_loss"] == pytest.approx(0.5623, abs=2e-3)
    assert found["chance_accuracy"] == pytest.approx(0.75, abs=0.01)
    model = Model("cllm", **fields)
    spread = Trainer(model, task, Settings(steps=1, lr=1e-3)).first_spread
    table = model.params["tokens.weight"]
    variance = np.mean(0.75 * 0.25 * (table[0] - table[1]) ** 2)
    assert chance(model, task, spread)["chance_loss"] == pytest.approx(variance, rel=0.05)


def test_chance_of_weighed_classes():
    labels = (np.arange(4000) % 5 == 0).astype(np.int64)
    signal = np.random.default_rng(0).normal(size=4000)
    model = Model(
        "sunfish", batch=4, time=32, layers=1, channels=8, heads=2, recompute=False, class_weights=class_weights(labels)
    )
    task = Labelled(model.config, [Recording(signal, labels)], [Recording(signal, labels)], time=32, seed=0)
    found = chance(model, task, None)
    assert found["chance_loss"] == pytest.approx(log(2), abs=1e-2)
    assert found["chance_accuracy"] == pytest.approx(0.8, abs=0.01)


# The exercise: the teaching model at rates that are wrong, and one that is deep.

EXERCISE = {
    "lr 0.1": (HIGH, "lower the rate", {"lr": 0.1}),
    "lr 0.01": (HIGH, "lower the rate", {"lr": 0.01}),
    "lr 1e-5": (LOW, "raise the rate", {"lr": 1e-5}),
    "SGD, lr 1e-3": (LOW, "raise the rate", {"optimizer": "sgd", "lr": 1e-3, "seed": 1}),
    "20 post-norm layers": (VANISHING, "pre-norm", {"lr": 1e-3, "layers": 20, "channels": 16}),
    "1e-3": ("healthy", None, {"lr": 1e-3, "steps": 600}),
}


@pytest.mark.parametrize(("kind", "told", "fields"), EXERCISE.values(), ids=EXERCISE)
def test_the_exercise(tmp_path, kind, told, fields):
    trial = operations("exercise", kind, **{"steps": 200, "eval_every": 100, **fields})
    lines = run_trial(trial, tmp_path / "run")
    assert (lines[0]["kind"], lines[1]["kind"], lines[1]["step"]) == ("start", "step", 1)
    diagnosis = diagnose(lines, read_setup(tmp_path / "run"))[0]
    assert diagnosis.kind == kind
    assert advice(diagnosis.remedy) == ({told} if told else set())
    if told and kind != VANISHING:  # and the advice, followed, does better
        changed = followed(trial, diagnosis.remedy)
        assert changed is not None
        better = run_trial(changed, tmp_path / "followed")
        last, before = ([line for line in each if line["kind"] == "evaluation"][-1] for each in (better, lines))
        assert last["loss"] < before["loss"] - 0.1


# Trainings that the rules were not tuned on: what they recorded, thinned. docs/doctor.md has the table.

RECORDED = kept(Path(__file__).parent / "doctor_runs.jsonl.gz")


def test_the_trials_were_many_and_not_tuned_on():
    assert len(RECORDED) >= 40
    assert len({each["cause"] for each in RECORDED}) >= 9

    def recipe(trial: Trial) -> str:
        return json.dumps([trial.preset, trial.data, trial.model, trial.settings])

    seen = [*DEVELOPMENT, *FIRST]
    assert not {recipe(trial) for trial in BLIND} & {recipe(trial) for trial in seen}
    assert not {trial.settings.get("seed") for trial in BLIND} & {trial.settings.get("seed") for trial in seen}


def test_nine_in_ten_trials_are_named_first():
    named = [first(each["lines"], **each["setup"]).kind == each["cause"] for each in RECORDED]
    assert sum(named) >= 0.9 * len(named)


@pytest.mark.parametrize("each", RECORDED, ids=lambda each: each["name"])
def test_no_trial_gets_wrong_advice(each):
    assert not wrong_advice(each["cause"], first(each["lines"], **each["setup"]))


# The command.

APP = typer.Typer()
APP.command()(doctor)


def written(folder, lines):
    recorder = Recorder(folder)
    for line in lines:
        recorder.record(**line)
    return CliRunner().invoke(APP, [str(folder)]), CliRunner().invoke(APP, [str(folder), "--json"])


def test_the_command_on_a_healthy_run(tmp_path):
    shown, document = written(tmp_path, history())
    assert (shown.exit_code, document.exit_code) == (0, 0)
    assert shown.stdout.startswith("✓ healthy")
    assert "→" not in shown.stdout
    answer = json.loads(document.stdout)
    assert (answer["ok"], answer["diagnosis"]["kind"]) == (True, "healthy")
    assert [each["kind"] for each in answer["findings"]] == ["loss", "updates", "gradients"]


def test_the_command_fails_on_a_bad_run(tmp_path):
    lines = [*history(20), {"kind": "stop", "step": 190, "reason": "blocks.0.attn.qkv[0, 1] is nan [bold]"}]
    shown, document = written(tmp_path, lines)
    assert (shown.exit_code, document.exit_code) == (1, 1)
    assert shown.stdout.startswith("✗ not finite")
    assert "blocks.0.attn.qkv[0, 1] is nan [bold]" in " ".join(shown.stdout.split())  # not taken for markup
    assert shown.stdout.count("→") == 1
    assert json.loads(document.stdout)["ok"] is False


def test_the_command_only_looks(tmp_path):
    shown, document = written(tmp_path, history(**HALFWAY))
    assert shown.exit_code == 0
    assert shown.stdout.startswith("! too few updates")
    assert json.loads(document.stdout)["ok"] is True


def test_the_command_without_a_run(tmp_path):
    refused = CliRunner().invoke(APP, [str(tmp_path / "nowhere")])
    assert isinstance(refused.exception, TapelessError)
    assert "there are no metrics in" in str(refused.exception)


def test_the_command_explains_itself():
    shown = CliRunner().invoke(APP, ["--help"])
    assert "Example: tapeless doctor runs/ops-102k-001" in " ".join(shown.stdout.split())
