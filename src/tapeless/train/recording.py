"""Recording while a run trains: recorded steps walk the list call by call, all others take the fast path.

How many are recorded follows from what they cost: together 1.5 % of the time. A fast step of a small model leaves
time for one in ten or so, a slow one for more, whatever the machine. `--record N` takes every Nth instead. Steps whose
tensors are kept whole are recorded besides, and what they cost was asked for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import UnwritableError, perform, rename, write_whole
from tapeless.files.growing import Growing
from tapeless.kernels.native import Native
from tapeless.model import Model, Stepped
from tapeless.ops.contract import Array
from tapeless.program.call import Call
from tapeless.train.branches import MEASURED, measuring
from tapeless.train.moments import Moments
from tapeless.train.records import FILE, HIGH, LEAD, STATISTICS, Header, header_of, read_record, steps_of
from tapeless.train.tensors import Tensors

COST = 0.015  # of the time; what is not counted (writing, caches that the next step finds cold) comes on top
MOST_BYTES = 10_000_000  # of a run's record; its moments may have as many
PAUSE = 0.5  # seconds between two writes, so that a fast training does not wait for the disk
USUAL = 15  # steps over which it is seen what one takes


class Recording:
    """Of a training that goes on in this process."""

    def __init__(
        self, folder: Path, model: Model, every: int | None = None, *, whole: Sequence[int] = (),
        most: int = MOST_BYTES, clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """`every`: record every so many steps; None: as many as cost 1.5 % of the time. `whole`: steps whose tensors
        are kept."""
        self._file, self._clock, self._asked = Growing(folder / FILE), clock, every
        self.moments = Moments(folder, model)
        self.header = header_of(model.program)
        self.tensors = Tensors(folder, model, self.header, whole)
        self._row = np.zeros(self.header.width, np.float32)
        self._watched = _bind(model, self.header, self._row)
        self._capacity = max(2, (most - len(self.header.encoded())) // self._row.nbytes)
        self._kept = 0  # rows in the file
        self._waiting: list[tuple[int, Array]] = []  # rows by step, that are not in it yet
        self._written_at = clock()
        self._plain: deque[float] = deque(maxlen=USUAL)
        self._costs: deque[float] = deque(maxlen=USUAL)
        self._measuring = 0.0  # seconds of the step at hand that went into measuring
        self._recorded = self._asked_for = False  # whether the step at hand is recorded, and whether somebody named it
        self._elapsed = self._spent = 0.0
        self._next_at = 0.0  # after so many seconds of training the next step is paid for

    @property
    def path(self) -> Path:
        return self._file.path

    def due(self, step: int, last: bool) -> bool:
        if last or step == 1 or step in self.tensors.steps:
            return True
        if step % (self.header.every * (self._asked or 1)):
            return False
        if self._asked is not None:
            return True
        return self._elapsed >= self._next_at and len(self._plain) > 0

    def see(self, step: int, lr: float, walk: Iterator[Call], made: Stepped) -> None:
        """Walk a step to its end, and note what every call wrote."""
        watched, clock = self._watched, self._clock
        self._recorded, self._asked_for, self._measuring = True, step in self.tensors.steps, 0.0
        if self._asked_for:
            walk = self.tensors.taken(step, walk)
        for call in walk:
            natives = watched.get(id(call))
            if natives:
                begun = clock()
                for native in natives:
                    native()
                self._measuring += clock() - begun
        with np.errstate(over="ignore"):
            self._row[: len(LEAD)] = step % HIGH, step // HIGH, made.loss, lr, made.norm
        self._waiting.append((step, self._row.copy()))

    def took(self, seconds: float) -> None:
        """How long the step at hand took, recorded or not."""
        self._elapsed += seconds
        if self._recorded and not self._asked_for:
            beyond = seconds - median(self._plain) if self._plain else self._measuring
            self._costs.append(max(beyond, self._measuring))
            usual = median(self._costs)  # a step during which the machine did something else is no cost of ours
            self._spent += usual
            self._next_at = (self._spent + usual) / COST
        elif not self._recorded:
            self._plain.append(seconds)
        self._recorded = self._asked_for = False

    def write(self, now: bool = False) -> None:
        """What was noted, unless something was written a moment ago. Where it does not reach the disk it is kept, and
        can be tried again."""
        if not now and self._clock() - self._written_at < PAUSE:
            return
        self._written_at = self._clock()
        self.moments.write()
        self.tensors.write()
        if not self._waiting:
            return
        try:
            if self._kept + len(self._waiting) > self._capacity:
                self._thin()
            else:
                rows = b"".join(row.tobytes() for _, row in self._waiting)
                self._file.add(rows if self._kept else self.header.encoded() + rows)
                self._kept += len(self._waiting)
                self._waiting.clear()
        except (OSError, UnwritableError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            step = self._waiting[0][0]
            del self._waiting[: -self._capacity]
            raise UnwritableError(f"cannot record step {step} in {self.path}: {said}.") from None

    def _thin(self) -> None:
        """Every second row stays, the first and the last among them, and from here on half as many are recorded."""
        waiting = np.array([row for _, row in self._waiting], np.float32)
        rows = np.concatenate([read_record(self.path).rows, waiting]) if self._kept else waiting
        every = self.header.every
        while len(rows) > max(3 * self._capacity // 4, len(self.tensors.steps) + 2):
            stays = np.isin(steps_of(rows), [*self.tensors.steps])
            stays[::2] = stays[-1] = True
            rows, every = rows[stays], 2 * every
        self._replace(rows, every)
        self._waiting.clear()

    def _replace(self, rows: Array, every: int) -> None:
        header = replace(self.header, every=every)
        write_whole(self.path, header.encoded() + rows.tobytes())
        self.header, self._kept = header, len(rows)

    def cut_after(self, step: int) -> list[str]:
        """Go on with the record that is there, without what lies beyond a step. One of another list of calls, or one
        that cannot be read, is laid aside; that is said."""
        self.moments.cut_after(step)
        self.tensors.cut_after(step)
        if not self.path.exists():
            return []
        try:
            found = read_record(self.path)
        except TapelessError as error:
            return self._laid_aside(str(error))
        if found.header.listing != self.header.listing or found.header.branches not in ((), self.header.branches):
            return self._laid_aside(f"{self.path} belongs to another list of calls.")
        rows = found.rows[steps_of(found.rows) <= step]
        if not found.header.branches:  # an earlier version measured none
            unmeasured = np.full((len(rows), self.header.width - found.header.width), np.nan, np.float32)
            rows = np.concatenate([rows, unmeasured], axis=1)
        self._replace(rows, found.header.every)
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


def _bind(model: Model, header: Header, row: Array) -> dict[int, list[Native]]:
    """Of each call, by identity, what measures its results and the branches that it adds, each into its columns."""
    calls = model.program.calls
    watched: dict[int, list[Native]] = {}
    results = row[len(LEAD) : header.first_branch].reshape(-1, len(STATISTICS))
    for (number, index), out in zip(header.results, results, strict=True):
        watched.setdefault(id(calls[number]), []).extend(_measure(model, calls[number], index, out))
    branches = row[header.first_branch :].reshape(-1, len(MEASURED))
    for number, natives in measuring(model, header.branches, branches):
        watched.setdefault(id(calls[number]), []).extend(natives)
    return watched


def _measure(model: Model, call: Call, index: int, out: Array) -> list[Native]:
    target = call.writes[index].view
    if model.backend != "cpu" or model.precision.dtype(target.buffer.role) != "float32":
        return [lambda: measure(out, model.engine.read(target))]
    from tapeless.kernels.cpu.sizes import bind_sizes

    values: Any = model.engine.view(target)
    if values.flags.c_contiguous:
        return [bind_sizes(out, values.reshape(-1))]
    copied = np.empty(values.shape, np.float32)
    return [lambda: np.copyto(copied, values), bind_sizes(out, copied.reshape(-1))]


def measure(out: Array, values: Array) -> None:
    """The same as the kernel, of any type."""
    finite = np.isfinite(values)
    wrong = values.size - int(np.count_nonzero(finite))
    sound = np.abs(values[finite] if wrong else values).astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        out[0] = np.sqrt(np.mean(np.square(sound))) if sound.size else 0.0
        out[1] = np.count_nonzero(values == 0) / max(1, values.size)
        out[2] = sound.max(initial=0.0)
    out[3] = wrong
