"""What a run's metrics say about its health, each judgement with the numbers it rests on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Any

Line = Mapping[str, Any]

ENOUGH = 10  # lines of steps before anything is said about their course
VANISHED, FADING = 1e-4, 1e-2  # a layer's gradient beside the largest layer's
NOTHING = 1e-10  # a gradient this small moves nothing
EXPLODED, LARGE = 1e5, 1e3
GROWN, GROWING = 100.0, 10.0  # gradient norms late in the run beside early ones
DEAD, SILENT = 0.6, 0.2  # share of units
RISEN = 1.1  # held-out loss beside its best
LEAP, LARGE_STEP, SMALL_STEP, TINY_STEP = 1e-1, 1e-2, 1e-4, 1e-5  # update-to-weight ratios; 1e-3 is usual
FLAT = 0.98  # a loss that keeps more than this share of itself does not fall
COLLAPSED = 0.1  # spread of the embeddings beside their spread at the start
NOT_FINITE = re.compile(r"\b(nan|inf|not finite|weights were not changed)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    kind: str
    verdict: str  # "fine", "look", "bad"
    sentence: str  # what was found, with the numbers
    remedy: str = ""  # what to do; empty where nothing is to be done


def diagnose(metrics: Sequence[Line]) -> list[Finding]:
    """One finding per kind of trouble that the metrics can tell of, whether it is there or not."""
    steps = [line for line in metrics if line["kind"] == "step"]
    evaluations = [line for line in metrics if line["kind"] == "evaluation"]
    findings: list[Finding | None] = [_stops(metrics, steps)]
    if len(steps) < ENOUGH:
        findings += [_too_little(len(steps)), _exploding(steps)]  # an explosion leaves no time for many
    else:
        # The learning rate first: when it is wrong, much of the rest follows from it.
        findings += [_too_high(steps), _too_low(steps), _exploding(steps), _vanishing(steps), _spikes(metrics, steps)]
    findings += [_overfitting(steps, evaluations), _dead_units(evaluations), _collapse(evaluations)]
    return [finding for finding in findings if finding is not None]


def _too_little(count: int) -> Finding:
    return Finding(
        "data",
        "look",
        f"Only {count} lines of steps were recorded: too few to judge gradients and learning rate.",
        f"Train on, or record more often, until there are {ENOUGH}.",
    )


def _stops(metrics: Sequence[Line], steps: Sequence[Line]) -> Finding:
    reasons = [(line["step"], str(line.get("reason"))) for line in metrics if line["kind"] == "stop"]
    broken = [(step, reason) for step, reason in reasons if NOT_FINITE.search(reason)]
    if broken:
        step, reason = broken[-1]
        went_on = any(line["step"] > step for line in steps)
        return Finding(
            "not finite",
            "look" if went_on else "bad",
            f"The run was stopped at step {step} by a number that is not finite: {reason.rstrip('.')}.",
            "Lower the learning rate, warm up for longer or clip, and go on from the last checkpoint.",
        )
    lost = [line["step"] for line in steps if _number(line, "loss") is None]
    if lost:
        return Finding(
            "not finite",
            "bad",
            f"The loss was not finite at step {lost[0]}" + (f" and {len(lost) - 1} later ones." if lost[1:] else "."),
            "Go back to a checkpoint before that step, with a lower learning rate.",
        )
    return Finding("not finite", "fine", "No loss was NaN or infinite.")


def _vanishing(steps: Sequence[Line]) -> Finding | None:
    """Each layer's gradient as a share of the largest layer's, in the middle of the run's values."""
    shares: dict[str, list[float]] = {}
    sizes: dict[str, list[float]] = {}
    for line in steps:
        norms = _numbers(line, "gradient_norms")
        largest = max(norms.values(), default=0.0)
        for layer, norm in norms.items():
            sizes.setdefault(layer, []).append(norm)
            shares.setdefault(layer, []).append(norm / largest if largest else 0.0)
    if not shares:
        return None
    middle = {layer: median(values) for layer, values in shares.items()}
    layer = min(middle, key=middle.__getitem__)
    share, size = middle[layer], median(sizes[layer])
    evidence = f"{layer} gets the smallest gradient, {size:.2g}: {share:.1e} of the largest layer's."
    if share < VANISHED or size < NOTHING:
        return Finding(
            "vanishing",
            "bad",
            f"Gradients vanish on the way back. {_capital(evidence)}",
            "If the learning rate is too high, begin there; else use pre-norm blocks or GELU, or smaller first values.",
        )
    if share < FADING:
        return Finding(
            "vanishing",
            "look",
            f"Gradients fade on the way back. {_capital(evidence)}",
            "Watch whether that layer learns: Adam evens such differences out, SGD does not.",
        )
    return Finding("vanishing", "fine", f"Gradients reach every layer: {evidence}")


def _exploding(steps: Sequence[Line]) -> Finding | None:
    if not any("gradient_norm" in line for line in steps):
        return None
    norms = [_number(line, "gradient_norm") for line in steps]
    known = [norm for norm in norms if norm is not None]
    lost = len(norms) - len(known)
    remedy = "Lower the learning rate, clip (--clip 1), or warm up for longer."
    if lost or not known:
        return Finding("exploding", "bad", f"The gradient norm was not finite in {lost} recorded steps.", remedy)
    start, late, largest = min(known[:3]), median(_late(known)), max(known)
    growth = late / start if late > 1 and start else 1.0  # from nearly nothing to little is no explosion
    evidence = f"the norm was {start:.2g} at the start, about {late:.2g} late and {largest:.2g} at most"
    if largest > EXPLODED or growth > GROWN:
        return Finding("exploding", "bad", f"Gradients explode: {evidence}.", remedy)
    if largest > LARGE or growth > GROWING or largest > GROWN * max(start, median(known)):
        return Finding("exploding", "look", f"Gradients grow or leap: {evidence}.", remedy)
    return Finding("exploding", "fine", f"Gradients keep their size: {evidence}.")


def _too_high(steps: Sequence[Line]) -> Finding | None:
    ratios, losses = _ratios(steps), _losses(steps)
    if not ratios or len(losses) < ENOUGH:
        return None
    ratio, largest = median(ratios), max(ratios)
    first, late, lowest = min(losses[:3]), median(_late(losses)), min(_quarters(losses))
    noise = median(abs(b - a) for a, b in pairwise(losses))
    scale = max(first, late)
    rising = late > RISEN * lowest and late - lowest > 0.05 * scale
    noisy = noise > 0.1 * late and noise > 0.02 * scale
    evidence = (
        f"an update moves a layer by {ratio:.1e} of itself, {largest:.1e} at most (1e-3 is usual), the loss went from "
        f"{first:.3g} to {late:.3g} and differs by {noise:.2g} from one line to the next"
    )
    remedy = "Divide the learning rate by 3 to 10, or warm up for longer."
    if (ratio > LARGE_STEP and (rising or late > FLAT * first)) or (largest > LARGE_STEP and late > RISEN * first):
        return Finding("learning rate too high", "bad", f"The learning rate is too high: {evidence}.", remedy)
    if (ratio > LARGE_STEP and noisy) or largest > LEAP:
        return Finding("learning rate too high", "look", f"The learning rate may be too high: {evidence}.", remedy)
    if rising:
        again = f"The loss has risen again, from {lowest:.3g} to {late:.3g}"
        return Finding("learning rate too high", "look", f"{again}: {evidence}.", remedy)
    return Finding("learning rate too high", "fine", f"The learning rate is not too high: {evidence}.")


def _too_low(steps: Sequence[Line]) -> Finding | None:
    ratios, losses = _ratios(steps), _losses(steps)
    if not ratios or len(losses) < ENOUGH:
        return None
    ratio = median(ratios)
    early, late = median(_early(losses)), median(_late(losses))
    kept = late / early if early else 1.0
    evidence = (
        f"an update moves a layer by {ratio:.1e} of itself (1e-3 is usual), and the loss went from {early:.4g} to "
        f"{late:.4g}"
    )
    remedy = "Multiply the learning rate by 10 and look again."
    if kept > FLAT and ratio < TINY_STEP:
        return Finding("learning rate too low", "bad", f"The learning rate is too low: {evidence}.", remedy)
    if kept > FLAT and ratio < SMALL_STEP:
        return Finding("learning rate too low", "look", f"The learning rate may be too low: {evidence}.", remedy)
    return Finding("learning rate too low", "fine", f"The learning rate is not too low: {evidence}.")


def _spikes(metrics: Sequence[Line], steps: Sequence[Line]) -> Finding:
    spikes = [line["step"] for line in metrics if line["kind"] == "spike"]
    updates = max(1, steps[-1]["step"] - steps[0]["step"])
    if not spikes:
        return Finding("spikes", "fine", f"No spike of the loss in {updates:,} updates.")
    often = len(spikes) >= 3 and 100 * len(spikes) > updates
    last = f"{len(spikes)} in {updates:,} updates, the last at step {spikes[-1]}"
    return Finding(
        "spikes",
        "bad" if often else "look",
        f"The loss spikes: {last}.",
        "Clip (--clip 1), lower the learning rate, and look at the data of those steps.",
    )


def _overfitting(steps: Sequence[Line], evaluations: Sequence[Line]) -> Finding | None:
    """Held-out loss beside its own best, and beside the loss on what was trained on."""
    measured = [(line["step"], _number(line, "loss"), _train_loss(line, steps)) for line in evaluations]
    pairs = [(step, held, trained) for step, held, trained in measured if held is not None and trained is not None]
    if len(pairs) < 2:
        return None
    best_step, best, trained_then = min(pairs, key=lambda pair: pair[1])
    _, last, trained = pairs[-1]
    scale = pairs[0][1]
    evidence = f"the held-out loss is {last:.3g} (best {best:.3g} at step {best_step}), the training loss {trained:.3g}"
    if last > RISEN * best and last - best > 0.02 * scale and trained < trained_then:
        return Finding(
            "overfitting",
            "bad",
            f"The model overfits: {evidence}, and it still falls.",
            f"Take the checkpoint of step {best_step}; get more data, a smaller model, or more weight decay.",
        )
    if last > 2 * trained and last - trained > 0.05 * scale:
        return Finding(
            "overfitting",
            "look",
            f"The model knows its training data better than the rest: {evidence}.",
            "More data, a smaller model or more weight decay would bring the two together.",
        )
    return Finding("overfitting", "fine", f"Held-out and training loss go together: {evidence}.")


def _train_loss(evaluation: Line, steps: Sequence[Line]) -> float | None:
    """As measured with the evaluation, else what the updates just before it saw."""
    measured = _number(evaluation, "train_loss")
    if measured is not None:
        return measured
    before = [line for line in steps if line["step"] <= evaluation["step"]]
    losses = _losses(before[-ENOUGH:])
    return median(losses) if losses else None


def _dead_units(evaluations: Sequence[Line]) -> Finding | None:
    found = [(line["step"], shares) for line in evaluations if (shares := _numbers(line, "dead_units"))]
    if not found:
        return None
    step, shares = found[-1]
    layer = max(shares, key=shares.__getitem__)
    evidence = f"at step {step}, {shares[layer]:.0%} of the ReLU units of {layer} were never active"
    remedy = "Lower the learning rate or warm up for longer; GELU has no dead units (--activation gelu)."
    if shares[layer] >= DEAD:
        return Finding("dead units", "bad", f"Units are dead: {evidence}.", remedy)
    if shares[layer] >= SILENT:
        return Finding("dead units", "look", f"Many units are silent: {evidence}; early on that may pass.", remedy)
    return Finding("dead units", "fine", f"The units are alive: {evidence}, and that is the most.")


def _collapse(evaluations: Sequence[Line]) -> Finding | None:
    found = [(line["step"], value) for line in evaluations if (value := _number(line, "spread")) is not None]
    if not found:
        return None
    step, spread = found[-1]
    evidence = f"at step {step} their spread is {spread:.2g} of what it was at the start"
    if spread < COLLAPSED:
        return Finding(
            "collapse",
            "bad",
            f"The embeddings collapse to one point: {evidence}, so a low loss means nothing.",
            "Lower the learning rate, or train with cross-entropy.",
        )
    return Finding("collapse", "fine", f"The embeddings stay apart: {evidence}.")


def _ratios(steps: Sequence[Line]) -> list[float]:
    """The update-to-weight ratio of each step's middle layer."""
    return [median(each.values()) for line in steps if (each := _numbers(line, "update_ratios"))]


def _losses(steps: Sequence[Line]) -> list[float]:
    return [loss for line in steps if (loss := _number(line, "loss")) is not None]


def _quarters(values: Sequence[float]) -> list[float]:
    size = max(1, len(values) // 4)
    return [median(values[start : start + size]) for start in range(0, len(values) - size + 1, size)]


def _early(values: Sequence[float]) -> Sequence[float]:
    return values[: max(1, len(values) // 4)]


def _late(values: Sequence[float]) -> Sequence[float]:
    return values[-max(1, len(values) // 4) :]


def _number(line: Line, name: str) -> float | None:
    """None for what is not there, and for null, which stands for NaN and infinity."""
    value = line.get(name)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return value if usable else None


def _numbers(line: Line, name: str) -> dict[str, float]:
    values = line.get(name)
    if not isinstance(values, Mapping):
        return {}
    return {key: number for key in values if (number := _number(values, key)) is not None}


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
