"""Which answer of a question is true of a run. A question to which none is, or more than one, is not asked: it has no
key. A key is the number of a choice, in the order in which the lesson's text has them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log10
from typing import Any

CLEAR = 0.5  # of all that the loss falls: a part of a training that has more than this has the most
EARLY, LATE = 10, 0.75  # updates, and the fraction of all, between which is the middle


def lesson_keys(found: dict[str, Any]) -> dict[str, int]:
    """Of the chapters that follow one example."""
    back, update, check = found["back"], found["update"], found["check"]
    handing = [call for call in back if call["writes"] and call["reads"]]
    keys = {"blocks-weak": _kinds(handing).index(min(handing, key=lambda call: call["writes"] / call["reads"])["op"])}
    if sum(slope < 0 for slope in found["slope"]) == 1:
        keys["begins-sign"] = 0
    relu = [call["zeros"] for call in back if call["op"] == "relu"]
    if relu:
        zeros = sum(relu) / len(relu)
        keys["blocks-relu"] = 0 if zeros < 0.25 else 1 if zeros <= 0.75 else 2
    if abs(abs(update["adam"]["value"] - update["value"]) / update["lr"] - 1) < 0.05:
        keys["update-adam"] = 0
    errors = check["errors"]["float64"]
    least = min(errors)
    if 0 < errors.index(least) < len(errors) - 1 and errors[0] > 10 * least and errors[-1] > 10 * least:
        keys["update-eps"] = 0
    digits = -log10(max(errors[check["widths"].index(1e-5)] / max(abs(check["backward"]), 1e-300), 1e-17))
    keys["practice-tolerance"] = 0 if digits >= 8 else 1 if digits >= 3 else 2
    arrives, leaves = back[-1]["reads"], back[0]["writes"]
    if arrives and leaves:
        keys["practice-own"] = 0 if arrives / leaves < 0.1 else 1
    return keys


def _kinds(calls: Sequence[dict[str, Any]]) -> list[str]:
    """The ops among which the weakest is looked for, in the order in which they are offered."""
    return sorted({call["op"] for call in calls})


def path_keys(steps: Sequence[int], losses: Sequence[float]) -> dict[str, int]:
    """Of the chapter about the path of a training. "Most" is the largest part of the whole fall of the loss, not the
    largest ratio of two neighbours, which late in a training is noise."""
    rises = any(after > before for before, after in pairwise(losses))
    keys = {"path-shape": 2 if losses[-1] >= losses[0] else 1 if rises else 0}
    parts = fallen(steps, losses)
    most = max(parts)
    if losses[-1] < losses[0] and most > CLEAR * (losses[0] - losses[-1]):
        keys["path-when"] = parts.index(most)
    return keys


def fallen(steps: Sequence[int], losses: Sequence[float]) -> list[float]:
    """By how much the loss falls in the first ten updates, in the last quarter and between; what falls between two
    moments of which one is in this part and one in that is of none."""
    parts = [0.0, 0.0, 0.0]
    late = LATE * steps[-1]
    for (first, before), (last, after) in pairwise(zip(steps, losses, strict=True)):
        part = 0 if last <= EARLY else 2 if first >= late else 1
        if part != 1 or (first >= EARLY and last <= late):
            parts[part] += before - after
    return parts
