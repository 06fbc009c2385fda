"""What a checker reports: where it is wrong, who says so, and in what way; and whether all of it holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tapeless.check.complex_step import relative_error
from tapeless.check.tolerances import TOLERANCES
from tapeless.errors import TapelessError
from tapeless.ops.contract import Array
from tapeless.shown import Told

EXACT = TOLERANCES["definition"]  # float64 beside float64: anything that is not rounding is a mistake


@dataclass(frozen=True, repr=False)
class Finding(Told):
    """`place` is an op ("layernorm"), an op as a model calls it ("layernorm in norm"), or a part of the training
    ("schedule", "loop")."""

    place: str
    checker: str
    detail: str

    def __str__(self) -> str:
        return f"{self.place}: {self.detail} (found by {self.checker})"


class Judgement(Told):
    """A report that says whether something holds."""

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_wrong(self) -> None:
        """Raise TapelessError, with the whole report, unless it holds."""
        if not self.ok:
            raise TapelessError(str(self))


def difference(found: Array, true: Array) -> str | None:
    """None where two arrays agree to twelve digits; else how they do not."""
    found, true = np.asarray(found), np.asarray(true)
    if found.shape != true.shape:
        return f"has shape {found.shape}, not {true.shape}"
    if not true.size:
        return None
    error = relative_error(found, true)
    return None if error <= EXACT else f"is off by {error:.1e} of its largest element"
