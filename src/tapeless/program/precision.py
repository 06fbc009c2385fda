"""Which type each role has.

bfloat16 is float32 with 16 bits fewer: the same range, three digits. What is only multiplied and passed on can have it;
what is added to again and again (the stream, gradients, state, the master copy that updates step) or divided by
(statistics) keeps float32. Weights that are read one by one, not multiplied, are read in full (`Spec.full`). Matrices
that nobody trains are only multiplied: they may be bfloat16 in any precision, and are widened, which is exact, where
they meet what is wider.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.ops.contract import FIXED


@dataclass(frozen=True)
class Precision:
    """A type for every role; an index and a scalar have the same in all of them."""

    name: str
    activation: str
    stream: str  # the residual stream and its gradient, to which every block adds
    weight: str
    frozen: str  # matrices and tables that are not trained
    gradient: str
    statistic: str  # mean, rstd, log-sum-exp, loss
    state: str
    master: str  # of the weights that the update computes with, where the working weights are narrower

    def dtype(self, role: str) -> str:
        found: str = FIXED.get(role) or getattr(self, role)
        return found

    def itemsize(self, role: str) -> int:
        return itemsize(self.dtype(role))

    @property
    def has_master(self) -> bool:
        return self.master != self.weight

    def described(self) -> str:
        """Its name, and the type of frozen matrices where other weights have another."""
        return self.name if self.frozen == self.weight else f"{self.name} with frozen matrices in {self.frozen}"

    def freezing(self, dtype: str | None) -> Precision:
        """The same with frozen matrices of this type; of None, as they are."""
        if dtype is None or dtype == self.frozen:
            return self
        if self.frozen == "bfloat16":
            raise TapelessError(
                f"frozen_precision={dtype!r} is of no use in precision {self.name}, which multiplies bfloat16: there "
                f"frozen weights are bfloat16; say that, or leave it out."
            )
        return replace(self, frozen=dtype)


def _uniform(name: str) -> Precision:
    return Precision(name, *[name] * 8)


PRECISIONS = {name: _uniform(name) for name in ("float32", "float64", "complex128")}
PRECISIONS["bfloat16"] = Precision(
    "bfloat16",
    activation="bfloat16",
    stream="float32",
    weight="bfloat16",
    frozen="bfloat16",
    gradient="float32",
    statistic="float32",
    state="float32",
    master="float32",
)


def itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def numpy_type(name: str) -> Any:
    """NumPy's own type of this name, or the one that ml_dtypes gives it."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        raise TapelessError("bfloat16 in NumPy needs ml_dtypes: pip install ml_dtypes.") from None
    return np.dtype(ml_dtypes.bfloat16)


def largest(name: str) -> float:
    """The largest finite number of a type."""
    return (2 - 2.0**-7) * 2.0**127 if name == "bfloat16" else float(np.finfo(name).max)
