"""A run as the pages see it: read from its folder, again and again while it grows.

A run folder is not trusted: a few files are read from it by their names, links are not followed, everything is checked
before it is used, and what cannot be read is a sentence in place of the picture.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import pairwise
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.explorer.numbers import told
from tapeless.files.lock import held
from tapeless.files.plain import open_plain
from tapeless.ops.contract import Array
from tapeless.train import metrics
from tapeless.train.course import Course, Line
from tapeless.train.doctor import Diagnosis, diagnose, read_setup
from tapeless.train.history.files import files_in
from tapeless.train.history.record import FILE as RECORD
from tapeless.train.history.record import (
    LEAD,
    PHASES,
    Header,
    Record,
    flow,
    handed_on,
    min_max,
    read_record,
    together,
    weight_gradients,
)
from tapeless.train.history.snapshots import FOLDER as SNAPSHOTS
from tapeless.train.history.snapshots import KeptSnapshots, read_snapshots
from tapeless.train.history.tensors import FOLDER as TENSORS
from tapeless.train.history.tensors import kept_arguments
from tapeless.train.run import CONFIGURATION, open_run

CURVES = ("step", "loss", "lr", "gradient_norm", "update_ratio", "tokens_per_second")
EVALUATED = ("step", "loss", "accuracy", "train_loss", "train_accuracy", "best")
MOST_POINTS = 4000  # of a curve sent at once; more are drawn together
MOST_LINES = 2_000_000
MOST_EVENTS = 1000
MOST_CELLS = 2_000_000  # numbers of a heatmap sent at once
PIECE = 1 << 24  # bytes of metrics read at a time
Signature = tuple[int, int, int]  # which file it is, its size, when it was changed


class RunSource:
    """One run folder. `most`: bytes of a record that are shown, of each stretch of rows the one with the largest
    gradient."""

    def __init__(self, folder: Path, most: int | None = None) -> None:
        self.folder, self._most = folder, most
        self._lock = Lock()  # requests come on several threads
        self._metrics = _Metrics(folder / metrics.FILE)
        self._record: tuple[Signature, Record] | None = None
        self._diagnosis: tuple[Any, Diagnosis] | None = None
        self._generation = 0  # of the record: it is another file once it was thinned or replaced

    @property
    def name(self) -> str:
        return self.folder.name or str(self.folder)

    @property
    def _gone(self) -> str:
        return f"{self.folder} is not there: was it moved or removed?"

    def about(self) -> dict[str, Any]:
        """What is said of it in a list of runs."""
        found: dict[str, Any] = {"name": self.name, "preset": None, "error": None, "trains": False}
        try:
            check_no_link(self.folder / CONFIGURATION)
            run = open_run(self.folder)
            request, preset = run.request(), run.preset()
            settings = request.settings
            operations = settings.data == "operations"
            found |= {
                "preset": request.preset,
                "task": "labels" if preset.architecture.features else "operations" if operations else "text",
                "trains": held(self.folder),
                "architecture": preset.values(),
                "batch": settings.batch,
                "time": settings.time or preset.architecture.context,
                "precision": settings.precision,
                "backend": settings.backend,
                "lr": settings.lr,
            }
        except TapelessError as error:
            found["error"] = str(error)
        return found

    def curves(self, generation: int, cursor: int) -> dict[str, Any]:
        """What is new since a cursor, or everything where the file is not the one that the cursor was of."""
        with self._lock:
            found = self._metrics.since(generation, cursor)
            return found if self.folder.is_dir() else {**found, "error": self._gone}

    def kept_call(self, step: int, number: int) -> dict[str, Any] | None:
        """A call's arrays as they were, where the step's tensors are kept whole."""
        path = self.tensors().get(step)
        if path is None:
            return None
        _, found = self.record()
        if number >= len(found.header.calls):
            raise TapelessError(f"there is no call {number}: there are {len(found.header.calls)}.")
        if found.header.calls[number]["phase"] not in PHASES:
            return None
        kept = kept_arguments(path, found.header, number)
        arguments = [told(each.name, each.mode, each.buffer, each.values) for each in kept]
        return {"step": step, "call": number, "listing": found.header.listing, "kept": True, "arguments": arguments}

    def tensors(self) -> dict[int, Path]:
        """The steps whose tensors are kept whole."""
        return _unlinked(self.folder / TENSORS)

    def doctor(self) -> dict[str, Any]:
        """The doctor's diagnosis and findings."""
        check_no_link(self.folder / metrics.FILE)
        check_no_link(self.folder / CONFIGURATION)
        setup = read_setup(self.folder)
        with self._lock:
            found = self._metrics
            found.read()
            if signature(found.path) is None:
                raise TapelessError(f"there are no metrics in {self.folder}: give the folder of a run.")
            if found.error is not None:
                raise TapelessError(found.error)
            state = found.generation, found.lines, setup
            if self._diagnosis is None or self._diagnosis[0] != state:
                self._diagnosis = state, diagnose(found.course, setup)
            diagnosis, *evidence = self._diagnosis[1]
        return {"diagnosis": asdict(diagnosis), "findings": [asdict(each) for each in evidence]}

    def state(self) -> dict[str, Any]:
        """How far it is: a page that sees another one asks for what is new."""
        with self._lock:
            self._metrics.read()
            return {
                "metrics": [self._metrics.generation, len(self._metrics)],
                "record": signature(self.folder / RECORD),
                "trains": held(self.folder),
                "there": self.folder.is_dir(),  # while it is being removed, what else is told is gone before it is
            }

    def record(self) -> tuple[int, Record]:
        """The record, read once for each state of its file, and its generation."""
        path = self.folder / RECORD
        with self._lock:
            now = signature(path)
            if now is None:
                none = f"{self.name} has no record of its steps: `tapeless train` keeps one, but for --record 0."
                raise TapelessError(none if self.folder.is_dir() else self._gone)
            if self._record is None or self._record[0] != now:
                check_no_link(path)
                if self._record is None or self._record[0][0] != now[0]:
                    self._generation += 1
                self._record = now, thinned(read_record(path), self._most)
            return self._generation, self._record[1]


def snapshots(folder: Path) -> KeptSnapshots:
    """The weights that a run has kept at some of its steps."""
    _unlinked(folder / SNAPSHOTS)
    return read_snapshots(folder)


def _unlinked(folder: Path) -> dict[int, Path]:
    """The files of a folder by step; refused if one is a link."""
    check_no_link(folder)
    found = files_in(folder)
    for path in found.values():
        check_no_link(path)
    return found


def thinned(record: Record, most: int | None) -> Record:
    rows = record.rows
    if most is None or rows.nbytes <= most:
        return record
    starts = np.linspace(0, len(rows), max(2, most // (4 * record.header.width)) + 1).astype(np.int64)
    norms = np.nan_to_num(rows[:, LEAD.index("gradient norm")], nan=np.inf)
    kept = [low + int(norms[low:high].argmax()) for low, high in pairwise(starts.tolist()) if high > low]
    return replace(record, rows=rows[sorted({0, *kept, len(rows) - 1})])


def described(record: Record, generation: int, whole: Iterable[int] = ()) -> dict[str, Any]:
    """The listing that a record belongs to, and where in its rows is what. `whole`: steps whose tensors are kept."""
    header, whole, steps = record.header, set(whole), record.steps.astype(int).tolist()
    return {
        "generation": generation,
        "rows": len(record.rows),
        "steps": steps,
        "listing": header.listing,
        "calls": header.calls,
        "results": header.results,
        "branches": [asdict(each) for each in header.branches],
        "sources": header.sources,
        "flow": flow(header),
        "weights": weight_gradients(header),
        "onward": handed_on(header),
        "sections": sections(header),
        "whole": [[step, row] for row, step in enumerate(steps) if step in whole],
    }


def sections(header: Header) -> list[str]:
    """From the input to the loss."""
    return list(dict.fromkeys(call["section"] for call in header.calls if call["section"]))


def heat(record: Record, what: str, bins: int, first: int = 0, last: int | None = None) -> tuple[list[str], Array]:
    """A table for a heatmap: of each bin its first step and index, then for every line its least and greatest value.
    `first` and `last`: the steps it is cut to."""
    header, steps = record.header, record.steps
    start = int(np.searchsorted(steps, first))
    stop = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
    rows = record.rows[start:stop]
    if what == "flow":
        lines = flow(header)
        columns = rows[:, [header.column(index, "size") for index in lines.values()]]
    elif what == "weights":
        grouped = weight_gradients(header)
        lines = dict.fromkeys(grouped, 0)
        columns = np.array([together(header, rows, indices) for indices in grouped.values()]).T
    elif what == "calls":
        onward = handed_on(header)
        lines = dict.fromkeys(map(str, onward), 0)
        columns = np.array([together(header, rows, indices) for indices in onward.values()]).T
    else:
        raise TapelessError(f"there is no heatmap of {what[:40]!r}: ask for flow, weights or calls.")
    names = list(lines)
    columns = columns.reshape(len(rows), len(names)).astype(np.float64)
    starts, low, high = min_max(columns, max(1, min(bins, MOST_CELLS // max(1, 2 * len(names)))))
    starts = starts + start
    table = np.concatenate([steps[starts][:, None], starts[:, None], low, high], axis=1)
    return names, table


class _Metrics:
    """A run's lines of metrics, read on from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self.error: str | None = None
        self._begin(None)

    def __len__(self) -> int:
        return self.lines

    def _begin(self, file: int | None) -> None:
        self._file, self._offset, self._rest, self.lines, self.error = file, 0, b"", 0, None
        self.course = Course()
        self._events: list[dict[str, Any]] = []
        self.generation += 1

    def read(self) -> None:
        now = signature(self.path)
        if now is None:
            if self._file is not None:
                self._begin(None)
            return
        if now[0] != self._file or now[1] < self._offset:  # another file, or one that was cut: from the beginning
            self._begin(now[0])
        if self.error is not None or now[1] == self._offset:
            return
        try:
            check_no_link(self.path)
            with open_plain(self.path) as file:
                file.seek(self._offset)
                while piece := file.read(PIECE):
                    self._offset += len(piece)
                    self._take(piece)
        except OSError as error:
            self.error = f"cannot read {self.path.name}: {error.strerror}."
        except TapelessError as error:
            self.error = str(error)

    def _take(self, piece: bytes) -> None:
        *rows, self._rest = (self._rest + piece).split(b"\n")
        if self._offset > metrics.LARGEST or self.lines > MOST_LINES:
            raise TapelessError(f"{self.path.name} is too long to be the metrics of a run.")
        for row in rows:
            line = metrics.parsed(row)
            if line is None:
                raise TapelessError(
                    f"line {self.lines + 1:,} of {self.path.name} is not a line of metrics; what stands before it is "
                    f"shown."
                )
            self.lines += 1  # of every kind, those too that are not shown
            self.course.add(line)
            if line["kind"] in ("spike", "stop", "start"):
                said = line.get("message") or line.get("reason") or ""
                self._events = self._events[1 - MOST_EVENTS :]
                self._events.append({"kind": line["kind"], "step": line["step"], "text": str(said)[:2000]})

    def since(self, generation: int, cursor: int) -> dict[str, Any]:
        self.read()
        count = len(self.course)
        fresh = generation != self.generation or not 0 <= cursor <= count
        first = 0 if fresh else cursor
        if count - first > MOST_POINTS:
            fresh, first = True, 0
        rows = self._rows(first)
        if len(rows) > MOST_POINTS:
            _, low, high = min_max(rows, MOST_POINTS // 2)
            rows = np.stack([low, high], axis=1).reshape(-1, len(CURVES))
        return {
            "generation": self.generation,
            "cursor": count,
            "fresh": fresh,
            "error": self.error,
            "steps": {name: [_finite(each) for each in rows[:, n].tolist()] for n, name in enumerate(CURVES)},
            "evaluations": [
                {name: _finite(line.get(name)) for name in EVALUATED} for line in _thinned(self.course.evaluations)
            ],
            "events": self._events,
        }

    def _rows(self, first: int) -> Array:
        """(lines, CURVES), from a line on."""
        course = self.course
        loss, lr, norm, speed, moved = course.columns(first).T
        return np.stack([course.steps[first:], loss, lr, norm, moved, speed], axis=1)


def _thinned(lines: list[Line]) -> list[Line]:
    stride = -(-len(lines) // MOST_POINTS) or 1
    return lines[::stride] if stride == 1 else [*lines[:-1:stride], lines[-1]]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


def signature(path: Path) -> Signature | None:
    """None where there is no such file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_no_link(path: Path) -> None:
    """What a link leads to is not part of the run, and not for a page to see."""
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise TapelessError(f"{path.name} is a link, and links in a run folder are not followed.")
    except OSError:
        return  # the opening says why
