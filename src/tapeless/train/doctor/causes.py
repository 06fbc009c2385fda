"""The differential diagnosis: the causes in the order in which one explains away the next, the first that fits named.

A learning rate that is too high also kills units, lets gradients vanish and keeps the loss at chance; so it is asked
about before they are. A cause that only a healthy training could show, such as answers that have nothing to do with
the inputs, comes last. One cause is named and one advice is given, so no two can contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tapeless.train.course import Course, Line, median
from tapeless.train.doctor.evidence import EvaluationPoint, Evidence, Setup, gather
from tapeless.train.doctor.findings import (
    COLLAPSED,
    DEAD,
    HUGE,
    LITTLE,
    NOTHING,
    Diagnosis,
    Observation,
    findings,
    share,
)

ENOUGH = 4  # lines of updates before anything is said about their course
LARGE, LARGISH, SMALL, RIGHT = 0.05, 0.015, 1e-3, 5e-3  # the largest updates, beside the weights
WHOLE = 1.0  # an update as large as the weights
TORN = 1.2  # times the loss that adapters began with
UNSETTLED = 0.03  # such updates, and a loss that has not settled: a lower rate is the shorter way
SOLVED = 0.85  # a gain that leaves little to be wished for
FALLING, STEEPLY = 0.02, 0.03  # of the mark, in the last quarter of a run; the second where something was learned
RISEN, APART = 1.05, 0.7  # held-out loss beside its best; training loss beside the held-out one
FEW_UPDATES = 150  # fewer say nothing about what the data holds
MANY_EXAMPLES = 1000  # that much data is not learned by heart instead of understood
DEEP, FADING, FADED = 6, 0.1, 1e-3  # blocks; the weakest block's gradient beside the strongest's, if deep and at all
TIGHT = 10.0  # times the clip, that gradients usually are
OFTEN = 100  # updates to a spike
FACTORS = (3, 10, 30, 100, 300, 1000)
Cause = Callable[[Evidence], Observation | None]


def diagnose(metrics: Iterable[Line] | Course, setup: Setup | None = None) -> Diagnosis:
    """The diagnosis first, the only one with advice; then what it rests on."""
    evidence = gather(metrics, setup)
    diagnosis = next(found for cause in CAUSES if (found := cause(evidence)) is not None)
    return Diagnosis([diagnosis, *findings(evidence)])


def _two_writers(evidence: Evidence) -> Observation | None:
    if not evidence.repeated:
        return None
    return Observation(
        "two writers",
        "bad",
        f"{evidence.repeated} updates are recorded more than once: two processes trained in this folder at the same "
        f"time, and its metrics and checkpoints are a mixture.",
        "Start the training again in a folder of its own.",
    )


def _collapse(evidence: Evidence) -> Observation | None:
    if evidence.spread is None or evidence.spread[1] >= COLLAPSED:
        return None
    step, spread = evidence.spread
    return Observation(
        "collapse",
        "bad",
        f"The embeddings collapse to one point: at step {step} their spread is {spread:.2g} of what it was at the "
        f"start, so a low loss means nothing.",
        "Keep the target side constant, or train with cross-entropy.",
    )


def _exploding(evidence: Evidence) -> Observation | None:
    """Before the first update, no learning rate has done anything yet."""
    if not evidence.norms or evidence.first != 1 or evidence.norms[0] < HUGE or evidence.gain > SOLVED:
        return None
    return Observation(
        "exploding gradients",
        "bad",
        f"Gradients explode from the start: their norm is {evidence.norms[0]:.2g} before any update is made, so the "
        f"first weights are too large.{_state(evidence)}",
        "Start from smaller weights; those of the presets are right.",
    )


def _not_finite(evidence: Evidence) -> Observation | None:
    stop = evidence.stop
    if stop is None:
        return None
    grown = bool(evidence.norms) and max(evidence.norms) > HUGE
    if evidence.size is not None and (evidence.size > LARGISH or grown):
        return Observation(
            "learning rate too high",
            "bad",
            f"The learning rate is too high. {stop.ended}, after updates as large as {share(evidence.size)} of "
            f"the weights.",
            _lower(evidence),
        )
    small = "updates were not large" if evidence.size is not None else "how large updates were is not recorded"
    return Observation(
        "not finite",
        "bad",
        f"{stop.ended}, and {small}: {stop.reason.rstrip('.')}.",
        "Look at the data of that step first: a number there may be out of all proportion.",
    )


def _overwhelmed(evidence: Evidence) -> Observation | None:
    """Updates larger than the weights need no course to be judged by."""
    if len(evidence.losses) >= ENOUGH or evidence.size is None or evidence.size < WHOLE:
        return None
    return Observation(
        "learning rate too high",
        "bad",
        f"The learning rate is too high: updates were as large as {share(evidence.size)} of the weights, of which "
        f"nothing is left then.",
        _lower(evidence),
    )


def _too_little(evidence: Evidence) -> Observation | None:
    if len(evidence.losses) >= ENOUGH:
        return None
    return Observation(
        "too few updates",
        "look",
        f"Only {len(evidence.losses)} updates were recorded: too few to judge anything.",
        "Train on, or record more often (--set log_every=1).",
    )


def _overfitting(evidence: Evidence) -> Observation | None:
    if len(evidence.evaluations) < 2:
        return None
    last, best = evidence.evaluations[-1], min(evidence.evaluations, key=lambda each: each.loss)
    if last.trained is None or last.trained_at_most is None or evidence.below(last.trained) < NOTHING:
        return None
    if last.trained_at_most > APART * last.loss:
        return None
    if evidence.below(last.loss) > SOLVED:
        return None
    apart = f"The training loss is {last.trained:.3g}, the held-out loss {last.loss:.3g}"
    if evidence.below(best.loss) < NOTHING and (evidence.examples or 0) >= MANY_EXAMPLES:
        return _nothing_to_learn(evidence, f"{apart}: what it learns by heart says nothing about the rest.")
    risen = last.loss > RISEN * best.loss
    return Observation(
        "overfitting",
        "bad" if risen else "look",
        f"The model learns its training data by heart. {apart}"
        + (f", which was {best.loss:.3g} at step {best.step}." if risen else "."),
        _less_by_heart(evidence, best if risen else None),
    )


def _less_by_heart(evidence: Evidence, best: EvaluationPoint | None) -> str:
    known = "" if evidence.examples is None else f" (there are {evidence.examples:,} sequences)"
    use = "" if best is None else f" The best checkpoint is kept: step {best.step}."
    return f"Get more data{known}, or take a smaller model, fewer updates or more weight decay.{use}"


def _too_high(evidence: Evidence) -> Observation | None:
    size = evidence.size
    if size is None or evidence.gain > SOLVED:
        return None
    # Updates that are merely largish keep the loss at chance only where they have cut the lower blocks off.
    stuck = size > LARGISH and evidence.gain < NOTHING and not _deep(evidence) and _weakest(evidence) < FADING
    diverged = size > LARGISH and evidence.losses[-1] > 2 * evidence.losses[0]
    unsettled = size > UNSETTLED and evidence.fall > FALLING
    if size < LARGE and not (stuck or diverged or unsettled):
        return None
    return Observation(
        "learning rate too high",
        "bad" if evidence.gain < LITTLE else "look",
        f"The learning rate is too high: updates were as large as {share(size)} of the weights.{_state(evidence)}",
        _lower(evidence),
    )


def _away(evidence: Evidence) -> Observation | None:
    """Where the size of updates says nothing, the loss does: adapters begin as the model that was there, so that one
    which ends well above where it began was torn apart."""
    if not evidence.setup.adapters or evidence.reached is None or evidence.reached < TORN * evidence.losses[0]:
        return None
    return Observation(
        "learning rate too high",
        "bad",
        f"The learning rate is too high: the loss went from {evidence.losses[0]:.3g}, which the adapted model began "
        f"with, to {evidence.reached:.3g}.",
        f"Divide the learning rate by 10{_rate(evidence, 0.1)}.",
    )


def _clipping(evidence: Evidence) -> Observation | None:
    """Adam divides by the gradient's size, so that a clip changes little."""
    clip, setup = evidence.setup.clip, evidence.setup
    if not clip or not evidence.norms or setup.optimizer not in ("sgd", "momentum") or evidence.gain > SOLVED:
        return None
    usual = median(evidence.norms)
    if usual < TIGHT * clip or evidence.size is None or evidence.size > SMALL:
        return None
    return Observation(
        "clipping",
        "bad" if evidence.gain < NOTHING else "look",
        f"Gradients are clipped to next to nothing: their norm is about {usual:.2g}, and --clip is {clip:g}, so "
        f"every update is {usual / clip:,.0f} times smaller than it would be.{_state(evidence)}",
        f"Clip at what gradients usually are (--clip {_round(usual)}), or not at all (--clip 0).",
    )


def _dead_units(evidence: Evidence) -> Observation | None:
    layer = max(evidence.dead, key=evidence.dead.__getitem__, default=None)
    if layer is None or evidence.dead[layer] < DEAD or evidence.gain > SOLVED:
        return None
    dead = sorted(name for name, silent in evidence.dead.items() if silent >= DEAD)
    return Observation(
        "dead units",
        "bad",
        f"Units are dead: {share(evidence.dead[layer])} of the ReLU units of {', '.join(dead)} were silent at every "
        f"evaluation, from the first on.{_state(evidence)}",
        "Start from other first weights (their biases are far too low), or use --set activation=gelu.",
        section=layer,
    )


def _too_low(evidence: Evidence) -> Observation | None:
    size = evidence.size
    if size is None or size > SMALL or evidence.gain > SOLVED:
        return None
    if _deep(evidence) and evidence.setup.placement == "post" and evidence.fall > FALLING:
        return None  # deep post-norm stacks learn with small steps or not at all
    if evidence.gain > NOTHING and evidence.fall < FALLING:
        return None  # small updates that have arrived
    return Observation(
        "learning rate too low",
        "bad" if evidence.gain < NOTHING else "look",
        f"The learning rate is too low: the largest update was {share(size)} of the weights.{_state(evidence)}",
        _higher(evidence, size),
    )


def _vanishing(evidence: Evidence) -> Observation | None:
    if evidence.gain > NOTHING or not evidence.profile:
        return None
    weakest = _weakest(evidence)
    if weakest > (FADING if _deep(evidence) else FADED):
        return None
    layer = min(evidence.profile, key=evidence.profile.__getitem__)
    post = evidence.setup.placement != "pre"
    return Observation(
        "vanishing gradients",
        "bad",
        f"Gradients vanish on the way down {len(evidence.profile)} layers: {layer} gets {share(weakest)} of what the "
        f"strongest gets.{_state(evidence)}",
        "Use pre-norm blocks (--set placement=pre), which let gradients through, or fewer layers."
        if post
        else "Use fewer layers, smaller first weights, or GELU instead of tanh.",
        section=layer,
    )


def _too_few(evidence: Evidence) -> Observation | None:
    """Still falling when it was stopped; or stopped before anybody could tell. A loss that came down to chance, or
    little below, only in the second half has not been there for long enough to say that it stays."""
    early = evidence.gain < NOTHING and evidence.updates < FEW_UPDATES
    falling = evidence.fall > (FALLING if evidence.gain < NOTHING else STEEPLY)
    arriving = evidence.gain < LITTLE and evidence.fall_since_half > FALLING
    if evidence.gain > SOLVED or not (early or falling or arriving):
        return None
    more = 4 * evidence.updates
    fell = f"its loss was still falling, by {share(evidence.fall)} of that of guessing in the last quarter"
    arrived = f"its loss, {evidence.losses[0]:.3g} at first, was still coming down in the second half"
    return Observation(
        "too few updates",
        "look",
        f"The training was stopped too soon, after {evidence.updates:,} updates"
        + (f": {fell}." if falling else f": {arrived}." if arriving else ".")
        + _state(evidence),
        f"Train for longer: --steps {more}, with everything else as it is.",
    )


def _nothing_learned(evidence: Evidence) -> Observation | None:
    if evidence.gain > NOTHING:
        return None
    return _nothing_to_learn(evidence, "Updates and gradients are as they should be.")


def _nothing_to_learn(evidence: Evidence, why: str) -> Observation:
    return Observation(
        "nothing learned",
        "bad",
        f"The model finds nothing in its inputs that tells the answer.{_state(evidence)} {why}",
        "Look whether inputs and answers belong together: are they shuffled, shifted, or of other examples? If they "
        "do belong together, this model cannot see how: give it other inputs.",
    )


def _spikes(evidence: Evidence) -> Observation | None:
    if len(evidence.spikes) < 3 or OFTEN * len(evidence.spikes) < evidence.updates:
        return None
    return Observation(
        "spikes",
        "look",
        f"The model learns, but its loss leapt {len(evidence.spikes)} times in {evidence.updates:,} updates.",
        "Look at the data of those steps, and clip (--clip 1).",
        step=evidence.spikes[-1],
    )


def _little_learned(evidence: Evidence) -> Observation | None:
    if evidence.gain >= LITTLE:
        return None
    return Observation(
        "little learned",
        "look",
        f"The loss hardly falls any more.{_state(evidence)}",
        "Train for longer, or take a larger model; if neither helps, the inputs tell little about the answers.",
    )


def _healthy(evidence: Evidence) -> Observation:
    odd = [each.kind for each in findings(evidence) if each.verdict != "fine"]
    but = f" What is unusual below ({', '.join(odd)}) did it no harm." if odd else ""
    return Observation("healthy", "fine", f"The training is healthy.{_state(evidence)}{but}")


# Each explains away what stands below it.
CAUSES: tuple[Cause, ...] = (
    _two_writers,
    _collapse,
    _exploding,
    _not_finite,
    _overwhelmed,
    _too_little,
    _overfitting,
    _too_high,
    _away,
    _clipping,
    _dead_units,
    _too_low,
    _vanishing,
    _too_few,
    _nothing_learned,
    _spikes,
    _little_learned,
    _healthy,
)


def _deep(evidence: Evidence) -> bool:
    return len(evidence.profile) >= DEEP


def _weakest(evidence: Evidence) -> float:
    return min(evidence.profile.values(), default=1.0)


def _state(evidence: Evidence) -> str:
    """What the model has learned, beside what guessing gets."""
    reached, chance = evidence.reached, evidence.chance
    if reached is None:
        return ""
    if chance is None:
        return f" The loss went from {evidence.losses[0]:.3g} to {reached:.3g}."
    beside = f"its loss, {reached:.3g}, is"
    if evidence.gain < -NOTHING:
        return f" The model learned nothing: {beside} worse than that of always the same answer, {chance:.3g}."
    if evidence.gain < NOTHING:
        return f" The model learned nothing: {beside} that of always the same answer, {chance:.3g}."
    if evidence.gain < LITTLE:
        return f" The model learned next to nothing: {beside} hardly below {chance:.3g}, always the same answer's."
    which = "held-out loss" if evidence.evaluations else "loss"
    return f" The {which} came to {reached:.3g}; always the same answer gets {chance:.3g}."


def _lower(evidence: Evidence) -> str:
    by = _factor(max(evidence.size or 0.0, RIGHT) / RIGHT)
    return f"Divide the learning rate by {by:,}{_rate(evidence, 1 / by)}."


def _higher(evidence: Evidence, size: float) -> str:
    by = _factor(RIGHT / size) if size else FACTORS[-1]
    return f"Multiply the learning rate by {by:,}{_rate(evidence, by)}."


def _rate(evidence: Evidence, by: float) -> str:
    lr = evidence.setup.lr or evidence.highest_rate
    return f": --lr {_round(lr * by)}" if lr else ""


def _factor(wanted: float) -> int:
    return min(FACTORS, key=lambda factor: max(factor / wanted, wanted / factor))


def _round(value: float) -> str:
    """One digit, as it is typed: 0.003, 1e-5."""
    return f"{value:.1g}".replace("e-0", "e-").replace("e+0", "e")
