"""Looking for a learning rate: a sweep that shows where it gets too high, then short trainings that are compared.

In the sweep every update has a higher rate than the one before, from far too small to far too large, until the loss
leaves. That says within two decades where a good rate lies, and no better: what helps for one update may ruin a
hundred. So rates in that range are tried, each from the same weights, on the same batches and over the whole of the
run's own schedule in few updates, and judged by what was held out. The best and those below it are tried again for
longer, and at last its neighbours. When all is done, model and batches are what they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log
from pathlib import Path
from typing import Any, cast

from tapeless.errors import NonFiniteError, TapelessError
from tapeless.ops.contract import Array
from tapeless.tasks.task import Progress
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.loop import Step, Trainer
from tapeless.train.schedules import Schedule
from tapeless.train.settings import HIGHEST_LR

LOWEST, SWEEP = 1e-7, 100  # where the sweep begins, and its updates at most
RISE = exp(log(1e2 / LOWEST) / SWEEP)  # from one of its updates to the next
SMOOTH = 0.8  # of the running mean of the sweep's losses, how much stays at each
LEFT = 1.5  # times the loss it began with: then the sweep is over
HALF = 10**0.5  # between the rates that are tried first
QUARTER = 10**0.25  # between those that are tried again, for longer
REACH = (HALF, 1.0, 1 / HALF, 1 / HALF**2, 1 / HALF**3, 1 / HALF**4)  # times the rate of the sweep's lowest loss
MOST, MOST_LONG = 12, 5  # of the ones and of the others, where the best turns out to be the first or the last
SHORT, LONG = 40, 160  # updates of a first and of a second try: an eighth and half of the run, but at most so many
SLACK = 0.02  # of all that was learned at the best rate: who has learned nearly as much may be the better in the end
BATCHES = 20  # that a try is judged by, at most


@dataclass(frozen=True)
class Swept:
    """One update of the sweep, and the running mean of its losses."""

    rate: float
    loss: float
    smooth: float


@dataclass(frozen=True)
class Tried:
    """One short training."""

    rate: float
    updates: int
    loss: float  # held out, at its end; infinite where it was not finite


@dataclass(frozen=True)
class RateFound:
    rate: float
    before: float  # the loss held out, before anything is learned
    sweep: tuple[Swept, ...]
    tries: tuple[Tried, ...]
    updates: int  # made in all
    seconds: float

    @property
    def best(self) -> Tried:
        return next(each for each in reversed(self.tries) if each.rate == self.rate)


def find_rate(trainer: Trainer, progress: Progress | None = None) -> RateFound:
    """The rate that a training of this trainer should have. The trainer is left as it was found."""
    search = _Search(trainer, progress)
    schedule = trainer.schedule
    try:
        return search.run()
    finally:
        trainer.schedule = schedule
        trainer.restore(cast(Checkpoint, search.start))


class _Search:
    def __init__(self, trainer: Trainer, progress: Progress | None) -> None:
        self.trainer, self.progress = trainer, progress
        self.start = MemoryCheckpoint(trainer)
        self.short = min(SHORT, max(trainer.steps // 8, min(trainer.steps, 10)))
        self.long = max(self.short, min(LONG, trainer.steps // 2))
        self.whole = SWEEP + self.short * len(REACH) + self.long * 6  # about: what is left or added is seen as it comes
        self.updates = 0
        self.tries: dict[tuple[float, int], Tried] = {}

    def run(self) -> RateFound:
        begun = time.perf_counter()
        before = self._evaluated()
        if not isfinite(before):
            raise TapelessError(
                f"the loss is {before:g} before anything is learned, so no rate can be compared: see to the weights "
                f"and the data."
            )
        sweep = self._sweep()
        lowest = min(sweep, key=lambda each: each.smooth).rate
        rates = [min(lowest * share, HIGHEST_LR) for share in REACH]
        best = self._best(rates, self.short, HALF, MOST)
        low, high = min(rate for rate, _ in self.tries), max(rate for rate, _ in self.tries)
        if not isfinite(self.tries[best, self.short].loss):
            raise TapelessError(
                f"the training diverges at every rate that was tried, down to {low:.1e}: see to the data, or "
                f"clip the gradients."
            )
        if self.tries[best, self.short].loss >= before:
            raise TapelessError(
                f"nothing is learned in {self.short} updates at any rate from {low:.1e} to {high:.1e}, so "
                f"none can be told from another: train for more steps, with larger batches or from other weights."
            )
        # What is best for a few updates is often too high for many.
        best = self._best([best, best / HALF, best / HALF**2], self.long, HALF, MOST_LONG)
        best = self._best([best * QUARTER, best, best / QUARTER], self.long, QUARTER, 3)
        best = self._lowest_as_good_as(self.tries[best, self.long], before)
        tries = tuple(self.tries.values())
        return RateFound(best, before, sweep, tries, self.updates, time.perf_counter() - begun)

    def _sweep(self) -> tuple[Swept, ...]:
        found: list[Swept] = []
        for loss, rate in self._losses(Rising(), SWEEP):
            weight = 1 - SMOOTH ** (len(found) + 1)  # a mean over fewer than all that it will be over
            past = found[-1].smooth * (1 - SMOOTH ** len(found)) if found else 0.0
            smooth = (SMOOTH * past + (1 - SMOOTH) * loss) / weight
            found.append(Swept(rate, loss, smooth))
            if smooth > LEFT * found[0].loss:
                break
        if not found:
            raise TapelessError(
                f"the first update is not finite, even at a rate of {LOWEST:g}: see to the weights and the data."
            )
        return tuple(found)

    def _best(self, rates: list[float], updates: int, step: float, most: int) -> float:
        """Of these rates, and where the best turns out to be the first or the last, of some beyond."""
        while True:
            for rate in rates:
                if (rate, updates) not in self.tries:
                    self.tries[rate, updates] = Tried(rate, updates, self._tried(rate, updates))
            best = min(rates, key=lambda rate: (self.tries[rate, updates].loss, rate))  # if all diverge, the lowest
            if len(rates) >= most or min(rates) < best < max(rates):
                return best
            rates = [*rates, best / step if best == min(rates) else min(best * step, HIGHEST_LR)]

    def _lowest_as_good_as(self, best: Tried, before: float) -> float:
        """The run is longer than what was tried, and the longer it is, the lower its best rate."""
        if best.updates == self.trainer.steps:
            return best.rate
        enough = best.loss + SLACK * (before - best.loss)
        return min(each.rate for each in self.tries.values() if each.updates == best.updates and each.loss <= enough)

    def _tried(self, rate: float, updates: int) -> float:
        schedule = replace(self.trainer.settings, lr=rate, steps=updates, epochs=None).learning_rate(updates)
        made = sum(1 for _ in self._losses(schedule, updates))
        loss = self._evaluated() if made == updates else inf
        return loss if isfinite(loss) else inf

    def _losses(self, schedule: Schedule | Rising, updates: int) -> Any:
        """Loss and rate of each update, from the same beginning, until one is not finite."""
        trainer = self.trainer
        trainer.restore(cast(Checkpoint, self.start))
        trainer.schedule = cast(Schedule, schedule)
        made = 0
        while made < updates:
            try:
                done: Step | None = trainer.batch()
            except NonFiniteError:
                return
            if done is not None:
                made += 1
                self.updates += 1
                if self.progress:
                    self.progress("trying learning rates", self.updates, max(self.whole, self.updates))
                yield done.loss, done.lr

    def _evaluated(self) -> float:
        batches = min(BATCHES, self.trainer.settings.eval_batches)
        return self.trainer.task.evaluate(self.trainer.model, batches).loss


class Rising:
    """The schedule of the sweep."""

    def at(self, step: int) -> float:
        return LOWEST * RISE**step


class MemoryCheckpoint:
    """A checkpoint in memory."""

    path = Path("memory")

    def __init__(self, trainer: Trainer) -> None:
        self.state = trainer.state()
        self._tensors = {
            stem: {name: array.copy() for name, array in arrays.items()} for stem, arrays in trainer.tensors().items()
        }

    def read(self, stem: str, like: Mapping[str, Array], write: Callable[[str, Array], None]) -> None:
        for name in like:
            write(name, self._tensors[stem][name])
