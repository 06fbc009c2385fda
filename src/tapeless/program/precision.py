"""Which type each role has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tapeless.ops.contract import FIXED


@dataclass(frozen=True)
class Precision:
    """A type for every role; an index and a scalar have the same in all of them."""

    name: str
    activation: str
    stream: str  # the residual stream and its gradient, to which every block adds
    weight: str
    gradient: str
    statistic: str  # mean, rstd, log-sum-exp, loss
    state: str
    master: str  # of the weights that the update computes with, where the working weights are narrower

    def dtype(self, role: str) -> str:
        found: str = FIXED.get(role) or getattr(self, role)
        return found

    def itemsize(self, role: str) -> int:
        return np.dtype(self.dtype(role)).itemsize


def _uniform(name: str) -> Precision:
    return Precision(name, *[name] * 7)


PRECISIONS = {name: _uniform(name) for name in ("float32", "float64", "complex128")}
