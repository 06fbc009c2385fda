"""What a run has written and reads again, field by field: a checkpoint's state, and the lines of its metrics.

Both come with no more than the word of a file. A checksum says that it is what was written, not that it makes sense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from tapeless.errors import TapelessError


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _finite(value: Any) -> bool:
    return _count(value) or (type(value) is float and isfinite(value))


def is_number(value: Any) -> bool:
    """JSON knows no NaN, so null stands for it; that a number is finite is for the reader to ask."""
    return value is None or type(value) in (int, float)


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


def _finite_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_finite, value.values()))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _spikes(value: Any) -> bool:
    """Of the losses that were seen last, and of what they are held against."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("recent"), list)
        and all(map(_finite, value["recent"]))
        and "start" in value
        and (value["start"] is None or _finite(value["start"]))
        and _count(value.get("calm"))
    )


STATE: dict[str, Callable[[Any], bool]] = {
    "step": _count,
    "added": _count,
    "loss": _finite,
    "data": lambda value: isinstance(value, dict),
    "best": lambda value: value is None or _finite(value),
    "without_better": _count,
    "updates": _count,
    "draws": _count,
    "first_spread": lambda value: value is None or _finite(value),
    "base": lambda value: value is None or _text(value),
    "spikes": _spikes,
    "norms": lambda value: isinstance(value, list) and all(map(_finite_numbers, value)),
}
LINES: dict[str, dict[str, Callable[[Any], bool]]] = {
    "step": {
        **dict.fromkeys(("loss", "lr", "gradient_norm", "tokens_per_second"), is_number),
        **dict.fromkeys(("gradient_norms", "update_ratios", "phases"), _numbers),
    },
    "evaluation": {
        **dict.fromkeys(("loss", "accuracy", "train_loss", "train_accuracy", "cross_entropy"), is_number),
        **dict.fromkeys(("epoch", "spread"), is_number),
        "dead_units": _numbers,
        "best": lambda value: isinstance(value, bool),
    },
    "spike": {"message": _text},
    "stop": {"reason": _text},
}


def check_state(state: Mapping[str, Any], accumulate: int, where: str) -> None:
    """Refuse a state that no training of so many batches an update can have been in."""
    for name, fits in STATE.items():
        if name not in state or not fits(state[name]):
            found = repr(state[name])[:40] if name in state else "missing"
            raise TapelessError(f"the state in {where} is damaged: {name} is {found}; take another checkpoint.")
    if state["added"] >= accumulate:
        raise TapelessError(
            f"the state in {where} is damaged: {state['added']} batches are added up of {accumulate} for an update; "
            f"take another checkpoint."
        )


def is_line(line: Any) -> bool:
    """Whether it is a line of metrics: of what it says, each field is what such a field is. A kind that is not known
    here may say anything."""
    if not isinstance(line, dict) or not _text(line.get("kind")) or not _count(line.get("step")):
        return False
    fields = LINES.get(line["kind"], {})
    return all(fits(line[name]) for name, fits in fields.items() if name in line)
