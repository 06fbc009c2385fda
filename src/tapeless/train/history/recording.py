"""Keeping the history of a training that goes on: recorded steps walk the list call by call, all others take the fast
path.

How many are recorded follows from what they cost: together at most 1.5 % of the time. That is measured once, over the
first steps, and then kept: every so many-th is recorded from there on, by the same process or another that resumes the
run. `--record N` takes every Nth instead. Steps whose tensors are kept whole are recorded besides, and what they cost
was asked for.

The last steps before a training breaks are the ones that are looked for. Once a loss or a gradient norm stands out, the
steps after it are walked too; their lines stay in memory, and reach the record only if the training stops there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil, log2
from pathlib import Path
from statistics import median

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import perform, rename
from tapeless.kernels.native import Native
from tapeless.model import Model, Stepped
from tapeless.ops.contract import Array
from tapeless.program.call import Call
from tapeless.train.history.files import Lines
from tapeless.train.history.measuring import MEASURED, branch_measuring, result_measuring
from tapeless.train.history.record import FILE, STATISTICS, Header, encoded, header_of, read_lines
from tapeless.train.history.snapshots import Snapshots
from tapeless.train.history.tensors import Tensors

COST = 0.015  # of the time; what is not counted (writing, caches that the next step finds cold) comes on top
TRIED = (1, 2, 4, 8, 16)  # steps that are recorded to see what that costs
LEAST_OFTEN = 1 << 20
MOST_BYTES = 10_000_000  # of a run's record; its snapshots may have as many
GROWTH = 16  # bytes by which the head may become longer
LAST = 8  # steps before a training broke that are kept
USUAL = 32  # steps, about, whose mean loss and gradient norm are the usual ones
LOUD = 1.2, 2.0  # a loss and a gradient norm that stand out, as multiples of the usual
LOUDER = 1.5  # and of the last that did: noise is soon no longer heard, and an explosion always is
WALKED = 16  # steps after one that stands out
PAUSE = 0.5  # seconds between two writes, so that a fast training does not wait for the disk


class StepRecording:
    """The history of a training that goes on in this process."""

    def __init__(
        self,
        folder: Path,
        model: Model,
        every: int | None = None,
        *,
        whole: Sequence[int] = (),
        most: int = MOST_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`every`: record every so many steps; None: as many as cost 1.5 % of the time. `whole`: steps whose tensors
        are kept."""
        self._clock, self._asked = clock, every
        self._lines = Lines(folder / FILE)
        self.snapshots = Snapshots(folder, model)
        self.header = header_of(model.program)
        self.tensors = Tensors(folder, model, self.header, whole)
        self._values = np.zeros(self.header.values, np.float32)
        self._watched = _bind(model, self.header, self._values)
        self._room = most - len(self.header.encoded()) - GROWTH  # bytes for all lines of steps
        self._written_at = clock()
        self._plain: list[float] = []  # seconds of steps that were not recorded, and of those that were tried
        self._tried: list[tuple[float, float]] = []  # with those of them that went into measuring
        self._measuring = 0.0  # seconds of the step at hand that went into measuring
        self._recorded = 0  # the step at hand, where it is recorded
        self._last: int | None = None
        self._usual = [0.0, 0.0]  # a loss and a gradient norm, as running means
        self._alarmed = range(0)  # steps that are walked because one before them stood out
        self._loudest = [0.0, 0.0]  # those that stood out
        self._newest: deque[tuple[int, bytes]] = deque(maxlen=LAST)  # lines of the steps that were walked last
        self._begin(0)

    def _begin(self, step: int) -> None:
        """The steps after this one are the first of this record."""
        self._trial = step + TRIED[-1]
        tried = TRIED if self._asked is None else TRIED[:1]
        self._named = {*(step + each for each in tried), *self.tensors.steps}

    @property
    def path(self) -> Path:
        return self._lines.path

    @property
    def _every(self) -> int:
        """0: that is not known yet."""
        return self.header.every * (self.header.chosen if self._asked is None else self._asked)

    def due(self, step: int, last: bool) -> bool:
        if last:
            self._last = step
        return self._stays(step) or step in self._alarmed

    def _stays(self, step: int) -> bool:
        return step in self._named or step == self._last or bool(self._every and step % self._every == 0)

    def see(self, step: int, lr: float, walk: Iterator[Call], made: Stepped) -> None:
        """Walk a step to its end, and note what every call wrote."""
        watched, clock = self._watched, self._clock
        self._recorded, self._measuring = step, 0.0
        if step in self.tensors.steps:
            walk = self.tensors.taken(step, walk)
        for call in walk:
            natives = watched.get(id(call))
            if natives:
                begun = clock()
                for native in natives:
                    native()
                self._measuring += clock() - begun
        begun = clock()
        line = encoded(step, made.loss, lr, made.norm, self._values)
        self._newest.append((step, line))
        if self._stays(step) or step not in self._alarmed:
            self._add(step, line)
        self._measuring += clock() - begun

    def watch(self, step: int, loss: float, norm: float) -> None:
        """After every update: one that stands out may be the first of an explosion."""
        for which, now in enumerate((loss, norm)):
            usual = self._usual[which] or now
            if now > max(LOUD[which] * usual, LOUDER * self._loudest[which]):
                self._alarmed, self._loudest[which] = range(step + 1, step + 1 + WALKED), now
            self._usual[which] = usual + (now - usual) / USUAL

    def broke(self, step: int, lr: float, walk: Callable[[], tuple[Iterator[Call], Stepped]]) -> None:
        """The training stops at this step, which made no update: it is walked unless it was, and what was kept of the
        steps before it becomes part of the record. `walk`: makes it once more."""
        if not (self._newest and self._newest[-1][0] == step):
            self.see(step, lr, *walk())
        self._lines.insert(dict(self._newest))

    def _add(self, step: int, line: bytes) -> None:
        """Where the file is full, half as many are recorded from here on, and of those that were every second goes."""
        self._lines.add(step, line)
        while self._lines.size > self._room and 0 < self._every <= step:
            self.header = replace(self.header, every=2 * self.header.every)
            self._lines.thin(self._stays)

    def took(self, seconds: float) -> None:
        """How long the step at hand took, recorded or not."""
        step, self._recorded = self._recorded, 0
        if self._asked is not None or self.header.chosen:
            return
        if not step:
            self._plain.append(seconds)
        elif step not in self.tensors.steps:
            self._tried.append((seconds, self._measuring))
        if step == self._trial:
            self.header = replace(self.header, chosen=self._affordable())

    def _affordable(self) -> int:
        """How often a step can be recorded, as a power of two: two trainings are then likely to agree."""
        if not self._tried:
            return LEAST_OFTEN
        usual = median(self._plain or [seconds - measuring for seconds, measuring in self._tried])
        cost = median(max(seconds - usual, measuring) for seconds, measuring in self._tried)
        share = cost / (COST * usual) if usual > 0 else 1.0
        return int(min(LEAST_OFTEN, 1 << max(0, ceil(log2(max(1.0, share))))))

    def write(self, now: bool = False) -> None:
        """What was noted, unless something was written a moment ago. Where it does not reach the disk it is kept, and
        can be tried again. `now`: when this returns, it also survives a power cut."""
        if not now and self._clock() - self._written_at < PAUSE:
            return
        self._written_at = self._clock()
        self.snapshots.files.write()
        self.tensors.files.write()
        self._lines.write(self.header.encoded())
        if now:
            self._lines.sync()

    def cut_after(self, step: int) -> list[str]:
        """Go on with the history that is there, without what lies beyond a step. A record of another list of calls, or
        one that cannot be read, is laid aside; that is said."""
        self.snapshots.files.cut_after(step)
        self.tensors.files.cut_after(step)
        self._begin(step)
        if not self.path.exists():
            return []
        try:
            header, found = read_lines(self.path)
        except TapelessError as error:
            return self._laid_aside(str(error))
        if (header.listing, header.branches) != (self.header.listing, self.header.branches):
            return self._laid_aside(f"{self.path} belongs to another list of calls.")
        lines = {each: line for each, line in found.items() if each <= step}
        first = min(lines) - 1 if lines else step
        if self._asked is not None or header.chosen or step < first + TRIED[-1]:
            self._begin(first)
        self.header = replace(self.header, every=header.every, chosen=header.chosen)
        self._lines.go_on(self.header.encoded(), lines)
        return []

    def _laid_aside(self, why: str) -> list[str]:
        number = 1
        while (aside := self.path.with_name(f"{self.path.stem}-{number:03}{self.path.suffix}")).exists():
            number += 1
        with suppress(OSError):
            rename(self.path, aside)
            return [f"{why} It is {aside.name} now, and a new one begins."]
        with suppress(OSError):
            perform(self.path.unlink)
        return [why]


def _bind(model: Model, header: Header, values: Array) -> dict[int, list[Native]]:
    """For each call, by identity, what measures its results and the branches that it adds, each into its numbers."""
    calls = model.program.calls
    watched: dict[int, list[Native]] = {}
    split = len(STATISTICS) * len(header.results)
    results, branches = values[:split].reshape(-1, len(STATISTICS)), values[split:].reshape(-1, len(MEASURED))
    for (number, index), out in zip(header.results, results, strict=True):
        watched.setdefault(id(calls[number]), []).extend(result_measuring(model, calls[number], index, out))
    for number, natives in branch_measuring(model, header.branches, branches):
        watched.setdefault(id(calls[number]), []).extend(natives)
    return watched
