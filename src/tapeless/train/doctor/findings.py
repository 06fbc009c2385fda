"""What was measured, each in a sentence. These explain a diagnosis and give no advice: only the diagnosis does."""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.shown import Sheet, Shown, Table
from tapeless.train.course import median
from tapeless.train.doctor.evidence import Evidence, late

DEAD = 0.95  # share of a layer's units
MANY_DEAD = 0.5  # of them: the layer works with fewer than half of its units
COLLAPSED = 0.1  # spread of the embeddings beside their spread at the start
NOTHING, LITTLE = 0.03, 0.1  # a gain that is noise, and one that is hardly more
HUGE = 1e3  # a gradient norm
FADED = 0.01  # a block's gradient beside the largest block's
USUAL = (1e-3, 0.05)  # the largest updates of a run, beside the weights
ALONE = "one update recorded"  # of which no course can be told, and nothing be found in order


@dataclass(frozen=True)
class Observation:
    """Something that was seen in a run's metrics, and what it means."""

    kind: str
    verdict: str  # "fine", "look", "bad"
    sentence: str  # what was found, with the numbers
    remedy: str = ""  # what to do; the diagnosis has one where something is to be done, nothing else has
    section: str = ""  # of the model and the step that it is about, where it is about one
    step: int | None = None


MARKS = {"fine": "✓", "look": "!", "bad": "✗"}


class Diagnosis(Shown, list[Observation]):
    """The diagnosis first, the only one with advice; then what it rests on."""

    def _sheet(self) -> Sheet:
        diagnosis, *evidence = self
        rows = [(MARKS[each.verdict], each.kind, each.sentence) for each in evidence]
        advice = [("→", diagnosis.remedy)] if diagnosis.remedy else []
        lines = [("", diagnosis.sentence), *advice]
        return Sheet(f"{MARKS[diagnosis.verdict]} {diagnosis.kind}", lines, [Table(("", "", ""), rows)] if rows else ())


def findings(evidence: Evidence) -> list[Observation]:
    found = [_loss(evidence), _held_out(evidence), _updates(evidence), _gradients(evidence), _units(evidence)]
    found += [_embeddings(evidence), _spikes(evidence), _overcome(evidence)]
    return [finding for finding in found if finding is not None]


def share(value: float) -> str:
    """0.055 → "5.5 %"."""
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"


def _learned(gain: float) -> str:
    return "bad" if gain < NOTHING else "look" if gain < LITTLE else "fine"


def _loss(evidence: Evidence) -> Observation | None:
    if not evidence.losses:
        return None
    ended = median(late(evidence.losses))
    said = f"{evidence.losses[0]:.3g} at first, {ended:.3g} in the last updates, each of its own batch"
    alone = len(evidence.losses) == 1
    if alone:
        said = f"{evidence.losses[0]:.3g}; {ALONE}"
    if evidence.chance is None:
        return Observation("loss", "look" if alone else "fine", f"{said}; what guessing gets was not recorded.")
    said += f"; always the same answer gets {evidence.chance:.3g}"
    return Observation("loss", _learned(evidence.gain), f"{said}.")


def _held_out(evidence: Evidence) -> Observation | None:
    if not evidence.evaluations:
        return None
    last, best = evidence.evaluations[-1], min(evidence.evaluations, key=lambda each: each.loss)
    said = f"{last.loss:.3g} in the end" + (f", {best.loss:.3g} at best" if best.loss < 0.995 * last.loss else "")
    if last.accuracy is not None:
        said += f"; {share(last.accuracy)} right"
        if evidence.commonest is not None:
            said += f", the commonest answer {share(evidence.commonest)}"
    return Observation("held out", _learned(evidence.below(best.loss)), f"{said}.")


def _updates(evidence: Evidence) -> Observation | None:
    if evidence.size is None:
        return None
    said = f"{share(evidence.size)} of the weights at most, {share(median(evidence.sizes))} usually"
    low, high = USUAL
    odd = not low <= evidence.size < high
    if len(evidence.sizes) == 1:
        odd, said = True, f"{share(evidence.size)} of the weights; {ALONE}"
    return Observation("updates", "look" if odd else "fine", f"{said}; at most 0.1 to 5 % is usual.")


def _gradients(evidence: Evidence) -> Observation | None:
    if not evidence.norms:
        return None
    first, largest = evidence.norms[0], max(evidence.norms)
    said = f"norm {first:.2g} at first, {median(late(evidence.norms)):.2g} late, {largest:.2g} at most"
    odd = largest > HUGE
    if len(evidence.norms) == 1:
        odd, said = True, f"norm {first:.2g}; {ALONE}"
    least = ""
    if len(evidence.profile) > 1:
        least = min(evidence.profile, key=evidence.profile.__getitem__)
        odd = odd or evidence.profile[least] < FADED
        said += f"; {least} gets {share(evidence.profile[least])} of what the strongest block gets"
    return Observation("gradients", "look" if odd else "fine", f"{said}.", section=least)


def _units(evidence: Evidence) -> Observation | None:
    if not evidence.dead:
        return None
    layer = max(evidence.dead, key=evidence.dead.__getitem__)
    worst = evidence.dead[layer]
    verdict = "look" if worst >= MANY_DEAD else "fine"
    return Observation("units", verdict, f"{share(worst)} of those of {layer} stayed silent, the most.", section=layer)


def _embeddings(evidence: Evidence) -> Observation | None:
    if evidence.spread is None:
        return None
    step, spread = evidence.spread
    said = f"at step {step} their spread is {spread:.2g} of what it was at the start."
    return Observation("embeddings", "bad" if spread < COLLAPSED else "fine", said, step=step)


def _spikes(evidence: Evidence) -> Observation | None:
    if not evidence.spikes:
        return None
    often, last = len(evidence.spikes), evidence.spikes[-1]
    said = f"the loss leapt {often} times in {evidence.updates:,} updates, last at step {last}."
    return Observation("spikes", "look", said, step=last)


def _overcome(evidence: Evidence) -> Observation | None:
    if evidence.overcome is None:
        return None
    step = evidence.overcome.step + 1
    said = f"update {step} was stopped, and it went on: {evidence.overcome.reason}"
    return Observation("stops", "look", said, step=step)
