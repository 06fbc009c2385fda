"""What a run has written and reads again, field by field: a checkpoint's state, and the lines of its metrics.

Both come with no more than the word of a file. A checksum says that it is what was written, not that it makes sense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from types import NoneType
from typing import Any

from tapeless.errors import TapelessError
from tapeless.files.plain import fits


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _finite(value: Any) -> bool:
    return _count(value) or (type(value) is float and isfinite(value))


def is_digest(value: Any) -> bool:
    """Whether it is a SHA-256, and so can be printed."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


NUMBER = (NoneType, int, float)  # JSON knows no NaN, so null stands for it; that it is finite is for the reader to ask
STATE = {
    "step": _count,
    "added": _count,
    "loss": _finite,
    "data": dict,
    "best": (NoneType, _finite),
    "without_better": _count,
    "updates": _count,
    "draws": _count,
    "first_spread": (NoneType, _finite),
    "base": (NoneType, is_digest),
    "spikes": {"recent": [_finite], "start": (NoneType, _finite), "calm": _count},
    "norms": [{...: _finite}],
}
LINES: dict[str, dict[str, Any]] = {
    "step": {
        **dict.fromkeys(("loss", "lr", "gradient_norm", "tokens_per_second"), NUMBER),
        **{name: {...: NUMBER} for name in ("gradient_norms", "update_ratios", "phases")},
    },
    "evaluation": {
        **dict.fromkeys(("loss", "accuracy", "train_loss", "train_accuracy", "cross_entropy"), NUMBER),
        **dict.fromkeys(("epoch", "spread"), NUMBER),
        "dead_units": {...: NUMBER},
        "best": bool,
    },
    "spike": {"message": str},
    "stop": {"reason": str},
}


def check_state(state: Mapping[str, Any], accumulate: int, where: str) -> None:
    """Refuse a state that no training of so many batches an update can have been in."""
    for name, shape in STATE.items():
        if not fits(state.get(name, ...), shape):
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
    if not fits(line, {"kind": str, "step": _count}):
        return False
    known = LINES.get(line["kind"], {})
    return all(fits(line[name], shape) for name, shape in known.items() if name in line)
