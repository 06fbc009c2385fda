"""Every verdict from a history made for it, the troubles from trainings that really have them, and the command."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tapeless import Model, TapelessError
from tapeless.cli.doctor import doctor
from tapeless.train.doctor import Finding, diagnose
from tapeless.train.guard import explain_nonfinite
from tapeless.train.metrics import Recorder, dead_units, gradient_norms, read_metrics, update_ratios
from tapeless.train.operations import split

LAYERS = ("embedding", "blocks.0", "blocks.1", "head")


def history(count: int = 40, **changes: Any) -> list[dict[str, Any]]:
    """A healthy run; `changes` are functions of the line's number, or constants, that replace its values."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(count):
        line = {
            "kind": "step", "step": 10 * number + 10, "loss": 3 * 0.95**number + 0.05 * rng.uniform(), "lr": 1e-3,
            "gradient_norm": 1.0, "gradient_norms": dict.fromkeys(LAYERS, 0.5),
            "update_ratios": dict.fromkeys(LAYERS, 1e-3), "tokens_per_second": 1e4, "phases": {"data": 1.0},
        }  # fmt: skip
        for name, value in changes.items():
            line[name] = value(number) if callable(value) else value
        lines.append(line)
    return lines


def evaluation(step: int, loss: float, train_loss: float | None, **more: Any) -> dict[str, Any]:
    return {"kind": "evaluation", "step": step, "loss": loss, "accuracy": None, "train_loss": train_loss, **more}


def found(lines: list[dict[str, Any]]) -> dict[str, Finding]:
    findings = diagnose(lines)
    kinds = {finding.kind: finding for finding in findings}
    assert len(kinds) == len(findings)
    for finding in findings:
        assert finding.sentence.endswith(".")
        assert bool(finding.remedy) == (finding.verdict != "fine")
    return kinds


def verdicts(lines: list[dict[str, Any]]) -> dict[str, str]:
    return {kind: finding.verdict for kind, finding in found(lines).items()}


HEALTHY = {
    "not finite": "fine",
    "learning rate too high": "fine",
    "learning rate too low": "fine",
    "exploding": "fine",
    "vanishing": "fine",
    "spikes": "fine",
}


def test_a_healthy_run():
    assert verdicts(history()) == HEALTHY
    evaluations = [evaluation(100, 1.5, 1.4, dead_units={"blocks.0": 0.02}, spread=0.9), evaluation(400, 0.5, 0.4)]
    everything = HEALTHY | {"overfitting": "fine", "dead units": "fine", "collapse": "fine"}
    assert verdicts([*history(), *evaluations]) == everything
    assert verdicts([*history(), {"kind": "stop", "step": 400, "reason": "all 400 updates are done"}]) == HEALTHY


def norms(**sizes: float) -> dict[str, float]:
    return dict.fromkeys(LAYERS, 1.0) | sizes


RISING = {"loss": lambda n: 3.0 - 0.1 * n if n < 20 else 1.0 + 0.1 * (n - 20)}
NOISY = {"loss": lambda n: 3 * 0.98**n + (0.5 if n % 2 else 0.0)}
CHANGED = [
    ("vanishing", "bad", {"gradient_norms": norms(embedding=5e-5)}),
    ("vanishing", "look", {"gradient_norms": norms(embedding=5e-3)}),
    ("vanishing", "fine", {"gradient_norms": norms(embedding=5e-2)}),
    ("vanishing", "bad", {"gradient_norms": dict.fromkeys(LAYERS, 1e-12)}),
    ("vanishing", "bad", {"gradient_norms": dict.fromkeys(LAYERS, 0.0)}),
    ("exploding", "bad", {"gradient_norm": lambda n: 2e5 if n == 17 else 1.0}),
    ("exploding", "bad", {"gradient_norm": lambda n: 1.2**n}),
    ("exploding", "bad", {"gradient_norm": lambda n: None if n == 5 else 1.0}),
    ("exploding", "look", {"gradient_norm": lambda n: 1.07**n * 2}),
    ("exploding", "look", {"gradient_norm": lambda n: 150.0 if n == 17 else 1.0}),
    ("exploding", "look", {"gradient_norm": 2000.0}),
    ("exploding", "fine", {"gradient_norm": lambda n: 1e-5 * 1.2**n}),  # from nothing to little
    ("exploding", "fine", {"gradient_norm": lambda n: 5.0 * 0.6**n}),
    ("learning rate too high", "bad", {"update_ratios": norms(), **RISING}),
    ("learning rate too high", "bad", {"update_ratios": dict.fromkeys(LAYERS, 0.02), "loss": 3.0}),
    (
        "learning rate too high",
        "bad",
        {"loss": lambda n: 3.0 + n, "update_ratios": lambda n: dict.fromkeys(LAYERS, 1e-3 if n else 0.05)},
    ),
    ("learning rate too high", "look", {"update_ratios": dict.fromkeys(LAYERS, 0.02), **NOISY}),
    ("learning rate too high", "look", {"update_ratios": lambda n: dict.fromkeys(LAYERS, 0.2 if n == 0 else 1e-3)}),
    ("learning rate too high", "look", RISING),
    ("learning rate too high", "fine", {"update_ratios": dict.fromkeys(LAYERS, 0.02)}),  # it learns all the same
    ("learning rate too high", "fine", NOISY),
    ("learning rate too low", "bad", {"update_ratios": dict.fromkeys(LAYERS, 5e-6), "loss": 3.0}),
    ("learning rate too low", "look", {"update_ratios": dict.fromkeys(LAYERS, 5e-5), "loss": 3.0}),
    ("learning rate too low", "fine", {"update_ratios": dict.fromkeys(LAYERS, 5e-4), "loss": 3.0}),
    ("learning rate too low", "fine", {"update_ratios": dict.fromkeys(LAYERS, 5e-6)}),  # it learns all the same
    ("not finite", "bad", {"loss": lambda n: None if n > 30 else 1.0}),
]


@pytest.mark.parametrize(("kind", "verdict", "changes"), CHANGED)
def test_the_verdict_follows_the_numbers(kind, verdict, changes):
    assert found(history(**changes))[kind].verdict == verdict


@pytest.mark.parametrize(
    ("verdict", "pairs"),
    [
        ("bad", [(3.0, 2.9), (1.0, 0.8), (1.2, 0.2)]),
        ("look", [(3.0, 2.9), (1.0, 0.8), (0.9, 0.2)]),
        ("fine", [(3.0, 2.9), (1.0, 0.8), (1.05, 0.7)]),
        ("fine", [(3.0, 2.9), (1.0, 0.8), (1.5, 1.4)]),  # both rise: that is something else
        ("fine", [(3.0, 2.9), (0.002, 0.001), (0.003, 0.0001)]),  # next to nothing beside the start
    ],
)
def test_overfitting(verdict, pairs):
    lines = [evaluation(100 * number, *pair) for number, pair in enumerate(pairs, 1)]
    assert found([*history(), *lines])["overfitting"].verdict == verdict


def test_overfitting_takes_the_losses_of_the_updates_where_nothing_else_is_known():
    losses: dict[str, Any] = {"loss": lambda n: 3.0 - 0.07 * n}
    rising = [evaluation(100, 2.5, None), evaluation(200, 2.0, None), evaluation(400, 2.6, None)]
    assert found([*history(**losses), *rising])["overfitting"].verdict == "bad"
    assert "overfitting" not in verdicts([*history(), evaluation(400, 2.6, None)])  # one evaluation says nothing
    assert "overfitting" not in verdicts([evaluation(1, 2.0, None), evaluation(2, 2.6, None)])


@pytest.mark.parametrize(("share", "verdict"), [(0.9, "bad"), (0.3, "look"), (0.1, "fine")])
def test_dead_units(share, verdict):
    lines = [evaluation(100, 1.0, 1.0, dead_units={"blocks.0": 1.0}), evaluation(200, 1.0, 1.0)]
    lines.insert(1, evaluation(150, 1.0, 1.0, dead_units={"blocks.0": 0.0, "blocks.1": share}))
    finding = found([*history(), *lines])["dead units"]
    assert finding.verdict == verdict
    assert f"at step 150, {share:.0%} of the ReLU units of blocks.1" in finding.sentence


@pytest.mark.parametrize(("spread", "verdict"), [(0.05, "bad"), (0.5, "fine")])
def test_collapse(spread, verdict):
    lines = [evaluation(100, 1.0, 1.0, spread=1.0), evaluation(200, 1.0, 1.0, spread=spread)]
    assert found([*history(), *lines])["collapse"].verdict == verdict


@pytest.mark.parametrize(("count", "verdict"), [(0, "fine"), (1, "look"), (3, "look"), (6, "bad")])
def test_spikes(count, verdict):
    lines = [{"kind": "spike", "step": 100 + step, "message": "…"} for step in range(count)]
    assert found([*history(), *lines])["spikes"].verdict == verdict


def test_a_spike_or_two_are_not_many_however_short_the_run():
    lines = [{"kind": "spike", "step": 50 + step, "message": "…"} for step in range(2)]
    assert found([*history(10), *lines])["spikes"].verdict == "look"


def test_a_run_that_was_stopped_by_nan_and_went_on():
    stop = {"kind": "stop", "step": 200, "reason": "update 201 was stopped: the loss is nan."}
    assert found([*history(20), stop])["not finite"].verdict == "bad"
    assert found([*history(20), stop, *history(30)[20:]])["not finite"].verdict == "look"
    early = {"kind": "stop", "step": 200, "reason": "stopped early: 3 evaluations were no better than 0.1200"}
    assert found([*history(20), early])["not finite"].verdict == "fine"


def test_too_little_to_say():
    assert verdicts(history(9)) == {"not finite": "fine", "data": "look", "exploding": "fine"}
    assert verdicts([]) == {"not finite": "fine", "data": "look"}
    assert verdicts(history(10)) == HEALTHY
    assert verdicts(history(4, gradient_norm=lambda n: 10.0 ** (3 * n)))["exploding"] == "bad"


@pytest.mark.parametrize("missing", ["gradient_norm", "gradient_norms", "update_ratios", "loss"])
def test_what_was_not_recorded_is_not_judged(missing):
    changes: dict[str, Any] = {missing: None}
    lines = history(**changes)
    if missing != "gradient_norm":  # null there means: not finite
        diagnose(lines)
    for line in lines:
        del line[missing]
    kinds = set(verdicts(lines))
    gone = {
        "gradient_norm": {"exploding"},
        "gradient_norms": {"vanishing"},
        "update_ratios": {"learning rate too high", "learning rate too low"},
        "loss": {"learning rate too high", "learning rate too low"},
    }
    assert kinds == set(HEALTHY) - gone[missing]


# Trainings that really have the trouble.

TRAINING, VALIDATION = split(0)
HELD_OUT = 320


def small(**fields: Any) -> Model:
    return Model("ops-102k", batch=16, time=8, **{"layers": 2, "channels": 32, "heads": 4, **fields})


def trained(model: Model, steps: int, lr: float, every: int = 5, examples: int = 4000) -> list[dict[str, Any]]:
    """The lines that a run of this training writes, up to where it is stopped."""
    rng = np.random.default_rng(0)
    lines: list[dict[str, Any]] = []

    def mean_loss(tokens, answers):
        starts = range(0, len(tokens) - model.batch + 1, model.batch)
        return float(np.mean([model.loss(tokens[i : i + model.batch], answers[i : i + model.batch]) for i in starts]))

    for step in range(1, steps + 1):
        chosen = rng.integers(0, examples, model.batch)
        batch = TRAINING.tokens[chosen], TRAINING.answers[chosen]
        loss = model.forward_backward(*batch)
        try:
            norm = model.update(lr)
        except TapelessError as error:
            reason = f"{error} {explain_nonfinite(model, *batch)}"
            return [*lines, {"kind": "stop", "step": step, "reason": reason}]
        if step % every == 0 or step == 1:
            values = {"gradient_norms": gradient_norms(model), "update_ratios": update_ratios(model, lr)}
            lines.append({"kind": "step", "step": step, "loss": loss, "lr": lr, "gradient_norm": norm, **values})
        if step % (steps // 5) == 0:
            held = mean_loss(VALIDATION.tokens[:HELD_OUT], VALIDATION.answers[:HELD_OUT])
            train = mean_loss(TRAINING.tokens[: min(200, examples)], TRAINING.answers[: min(200, examples)])
            silent = dead_units(model, VALIDATION.tokens[:HELD_OUT])
            lines.append(evaluation(step, held, train, dead_units=silent))
    return lines


def test_a_real_training_that_is_well():
    found_verdicts = verdicts(trained(small(), 400, 1e-3))
    assert set(found_verdicts.values()) == {"fine"}
    assert {"overfitting", "dead units"} < set(found_verdicts)


def test_gradients_that_really_vanish():
    # Saturated tanh lets next to nothing through, and post-norm divides what goes around it.
    model = small(activation="tanh", layers=12, channels=16, optimizer="sgd")
    for name, weight in model.params.items():
        if name.endswith(("mlp.up.weight", "mlp.down.weight", "attn.proj.weight")):
            weight *= 20
    finding = found(trained(model, 60, 1e-3))["vanishing"]
    assert finding.verdict == "bad"
    assert "Embedding gets the smallest gradient" in finding.sentence


def test_a_training_that_really_explodes():
    lines = trained(small(optimizer="sgd", norm="pre"), 100, 10.0, every=1)
    kinds = found(lines)
    assert lines[-1]["kind"] == "stop"
    assert (kinds["not finite"].verdict, kinds["exploding"].verdict) == ("bad", "bad")
    assert kinds["learning rate too high"].verdict == "bad"
    assert "The first call whose result is not finite is" in kinds["not finite"].sentence


@pytest.mark.parametrize("lr", [1.0, 10.0])
def test_a_learning_rate_that_really_is_too_high(lr):
    assert found(trained(small(), 150, lr))["learning rate too high"].verdict == "bad"


def test_a_learning_rate_that_really_is_too_low():
    kinds = found(trained(small(), 150, 1e-7))
    assert (kinds["learning rate too low"].verdict, kinds["learning rate too high"].verdict) == ("bad", "fine")


def test_a_model_that_really_overfits():
    finding = found(trained(small(), 600, 2e-3, examples=40))["overfitting"]
    assert finding.verdict == "bad"
    assert "more data" in finding.remedy


def test_units_that_really_are_dead():
    model = small()
    model.params["blocks.1.mlp.up.bias"][...] = -10
    finding = found(trained(model, 60, 1e-3))["dead units"]
    assert finding.verdict == "bad"
    assert "100% of the ReLU units of blocks.1" in finding.sentence


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
    assert shown.stdout.count("✓") == len(HEALTHY)
    assert "All is well." in shown.stdout
    answer = json.loads(document.stdout)
    assert answer["ok"] is True
    assert {each["kind"]: each["verdict"] for each in answer["findings"]} == HEALTHY


def test_the_command_fails_on_a_bad_run(tmp_path):
    lines = [*history(gradient_norms=norms(embedding=1e-6)), {"kind": "spike", "step": 400, "message": "…"}]
    lines.append({"kind": "stop", "step": 401, "reason": "blocks.0.attn.qkv[0, 1] is nan [bold]"})
    shown, document = written(tmp_path, lines)
    assert (shown.exit_code, document.exit_code) == (1, 1)
    assert "✗" in shown.stdout
    assert "!" in shown.stdout
    assert "blocks.0.attn.qkv[0, 1] is nan [bold]" in " ".join(shown.stdout.split())  # not taken for markup
    assert "→" in shown.stdout
    assert "2 of 6 are bad" in shown.stdout
    assert json.loads(document.stdout)["ok"] is False
    assert len(read_metrics(tmp_path)) == 42


def test_the_command_only_looks(tmp_path):
    shown, _ = written(tmp_path, history(5))
    assert shown.exit_code == 0
    assert "Nothing is bad, 1 of 3 to look at." in shown.stdout


def test_the_command_without_a_run(tmp_path):
    refused = CliRunner().invoke(APP, [str(tmp_path / "nowhere")])
    assert isinstance(refused.exception, TapelessError)
    assert "there are no metrics in" in str(refused.exception)


def test_the_command_explains_itself():
    shown = CliRunner().invoke(APP, ["--help"])
    assert "Example: tapeless doctor runs/ops-102k-001" in " ".join(shown.stdout.split())
