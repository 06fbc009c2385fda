"""Learning-rate schedules: what the rate of every update is, known before the first.

Each is a construction of `torch.optim.lr_scheduler`, in closed form: `SequentialLR` of

    LinearLR(start_factor=1 / (warmup + 1), total_iters=warmup)

and, from update `warmup` on, of ConstantLR (factor 1), StepLR, ExponentialLR, CosineAnnealingLR or LinearLR. So the
rate rises as (step + 1) / (warmup + 1), the first update already moves, and update `warmup` has the whole rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, inf, pi
from numbers import Integral, Real

from tapeless.errors import TapelessError, unknown

NAMES = ("constant", "step", "exponential", "cosine", "linear")


@dataclass(frozen=True)
class Schedule:
    """`at(step)` is the rate of an update, counted from 0. After `steps` it stays where it ended."""

    name: str
    lr: float  # the largest rate, reached after the warm-up
    steps: int  # updates in all, the warm-up among them
    warmup: int = 0
    floor: float = 0.0  # cosine and linear end at floor · lr
    every: int = 1000  # step and exponential: updates in which the rate falls …
    rate: float = 0.1  # … to this share of itself

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise unknown("schedule", self.name, NAMES)
        for name in ("lr", "floor", "rate"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), Real):
                raise TapelessError(f"{name} must be a number, not {getattr(self, name)!r}.")
        for name, least in (("steps", 1), ("warmup", 0), ("every", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise TapelessError(f"{name} must be a whole number of at least {least}, not {value!r}.")
        if not 0 < self.lr < inf:
            raise TapelessError(f"lr must be a finite number above 0, not {self.lr!r}.")
        if not 0 <= self.floor <= 1:
            raise TapelessError(f"floor must be a share of lr between 0 and 1, not {self.floor!r}.")
        if not 0 < self.rate <= 1:
            raise TapelessError(f"rate must be above 0 and at most 1, not {self.rate!r}.")
        if self.warmup >= self.steps:
            raise TapelessError(
                f"warmup={self.warmup} leaves nothing of steps={self.steps}: warm up for fewer updates than there are."
            )

    def at(self, step: int) -> float:
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        return self.lr * self._share(min(step, self.steps) - self.warmup)

    def _share(self, step: int) -> float:
        """What is left of the rate, `step` updates after the warm-up."""
        done = step / (self.steps - self.warmup)
        match self.name:
            case "step":
                return float(self.rate ** (step // self.every))
            case "exponential":
                return float(self.rate ** (step / self.every))
            case "cosine":
                return self.floor + (1 - self.floor) * (1 + cos(pi * done)) / 2
            case "linear":
                return 1 - (1 - self.floor) * done
        return 1.0
