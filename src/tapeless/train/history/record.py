"""The record of a run: for some of its steps, call by call, how large every result was, where it was zero, where it was
not finite, and how large each branch of the residual stream was.

A file of JSON lines. The first says what the numbers of a line are and holds the listing of calls they belong to, with
their source: a run is read years after the program has changed. Every other line is a step. Lines are only ever added.
A reader ignores a line that is not whole, or not later than the one before it, and all that follow; a writer cuts them
off.
"""

from __future__ import annotations

import hashlib
import json
import linecache
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.plain import fits, parse_json, read_plain
from tapeless.ops.contract import Array
from tapeless.program.builder import HOME
from tapeless.program.call import Program
from tapeless.program.listing import describe
from tapeless.train.history.measuring import DIRECTIONS, MEASURED, Joining, joinings

FILE = "record.jsonl"
FORMAT = 1
LARGEST_HEADER = 8_000_000
LATEST = 1 << 53  # no training makes more steps
LARGEST = 256_000_000  # bytes that are read; a writer keeps to far fewer
HIGH = 1 << 24  # float32 counts exactly up to here, so a step has two columns of a row
LEAD = ("step", "step high", "loss", "lr", "gradient norm")
STATISTICS = ("size", "zeros", "largest", "not finite")
PHASES = ("forward", "recompute", "backward")
UNRECORDED = ("statistic", "index", "scalar")  # roles of numbers that are few, or no part of the flow


@dataclass(frozen=True)
class Header:
    calls: tuple[dict[str, Any], ...]  # as `describe` has them
    results: tuple[tuple[int, int], ...]  # of each group of four columns: the call, and which of its results
    sources: dict[str, str]  # the statement that made a call, by its place
    every: int = 1  # doubled when the file is full: then half as many steps are recorded
    chosen: int = 0  # where nobody said how often a step is recorded, how often that is; 0 before it is known
    branches: tuple[Joining, ...] = ()  # of each group of three columns behind those: what joins the stream, and where

    @property
    def values(self) -> int:
        """Numbers of a line besides its LEAD."""
        return len(STATISTICS) * len(self.results) + len(MEASURED) * len(self.branches)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return len(LEAD) + self.values

    @property
    def first_branch(self) -> int:
        """The column where the branches begin."""
        return len(LEAD) + len(STATISTICS) * len(self.results)

    @cached_property
    def listing(self) -> str:
        """Names the list of calls: two records with the same one can be compared column by column."""
        named = [(call["op"], call["direction"], call["section"], call["results"]) for call in self.calls]
        return hashlib.sha256(json.dumps([named, self.results], sort_keys=True).encode()).hexdigest()

    def column(self, result: int, statistic: str) -> int:
        return len(LEAD) + len(STATISTICS) * result + STATISTICS.index(statistic)

    def encoded(self) -> bytes:
        said = {
            "format": FORMAT,
            "listing": self.listing,
            "every": self.every,
            "chosen": self.chosen,
            "statistics": STATISTICS,
            "results": self.results,
            "calls": self.calls,
            "sources": self.sources,
            "measured": MEASURED,
            "branches": [asdict(each) for each in self.branches],
        }
        return json.dumps(said, ensure_ascii=False).encode() + b"\n"


def header_of(program: Program) -> Header:
    """What of a program is recorded: every result on the way forward and back."""
    calls, results, sources = [], [], {}
    for number, call in enumerate(program.calls):
        described = describe(program, number)
        described["stack"] = [Path(place).name for place in described["stack"]]  # the folders are nobody's business
        described["kinds"] = [argument.view.buffer.kind for argument in call.writes]
        calls.append(described)
        if call.stack:
            sources[call.source] = _statement(call.stack[0])
        if call.phase in PHASES:
            results += [
                (number, index)
                for index, argument in enumerate(call.writes)
                if argument.view.buffer.role not in UNRECORDED and argument.view.buffer.kind != "output"
            ]
    return Header(tuple(calls), tuple(results), sources, branches=joinings(program))


def _statement(place: str) -> str:
    """The source from a line on, until its brackets are closed."""
    path, _, line = place.rpartition(":")
    taken: list[str] = []
    for number in range(int(line), int(line) + 12):
        taken.append(linecache.getline(str(HOME / path), number).rstrip())
        text = "\n".join(taken)
        if sum(text.count(each) for each in "([{") <= sum(text.count(each) for each in ")]}"):
            break
    indent = min((len(each) - len(each.lstrip()) for each in taken if each.strip()), default=0)
    return "\n".join(each[indent:] for each in taken)


def encoded(step: int, loss: float, lr: float, gradient_norm: float, values: Array) -> bytes:
    """The line of a step. `values`: STATISTICS of each result, then what is MEASURED of each branch; of each number as
    many digits as a float32 has."""
    numbers = ",".join([f"{value:.7g}" if isfinite(value) else "null" for value in values.tolist()])
    lead = {"loss": loss, "lr": lr, "gradient_norm": gradient_norm}
    said = {"step": step, **{name: value if isfinite(value) else None for name, value in lead.items()}}
    return f'{json.dumps(said)[:-1]}, "values": [{numbers}]}}\n'.encode()


@dataclass(frozen=True)
class Record:
    """What a file holds: rows of `header.width` columns, each later than the one before."""

    header: Header
    rows: Array

    @property
    def steps(self) -> Array:
        found: Array = self.rows[:, 0].astype(np.float64) + HIGH * self.rows[:, 1].astype(np.float64)
        return found


def read_record(path: Path) -> Record:
    """All of a record. Read, not mapped: a file that is cut while it is mapped ends the process that looks at it."""
    header, found = _read(path)
    with np.errstate(over="ignore"):  # a loss before a training broke may be infinite in float32
        return Record(header, np.array([row for _, row in found], np.float32).reshape(-1, header.width))


def read_lines(path: Path) -> tuple[Header, dict[int, bytes]]:
    """The lines of a record as they are, by step."""
    header, found = _read(path)
    return header, {int(row[0] + HIGH * row[1]): line for line, row in found}


def _read(path: Path) -> tuple[Header, list[tuple[bytes, Array]]]:
    """The lines with their rows, up to the first that is not whole, or not later than the one before it."""
    try:
        content = read_plain(path, LARGEST)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    end = content.find(b"\n", 0, LARGEST_HEADER)
    if end < 0:
        raise TapelessError(f"{path} ends before its first step: nothing was recorded yet, or it is damaged.")
    header = _believed(content[:end], path)
    found: list[tuple[bytes, Array]] = []
    last, start = 0, end + 1
    while (end := content.find(b"\n", start)) >= 0:
        line, start = content[start : end + 1], end + 1
        row = _row(line, header.width, last)
        if row is None:
            break
        found.append((line, row))
        last = int(row[0] + HIGH * row[1])
    return header, found


def _row(line: bytes, width: int, last: int) -> Array | None:
    """The numbers of a line, LEAD first; None if it is no line of a record, or of a step that is not after `last`."""
    try:
        said = json.loads(line)
        step = said["step"]
        if not _is_count(step, last + 1):
            return None
        row = np.array([said["loss"], said["lr"], said["gradient_norm"], *said["values"]], np.float64)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    row = np.concatenate([[step % HIGH, step // HIGH], row]) if row.ndim == 1 else row
    return row if row.shape == (width,) else None


def _believed(line: bytes, path: Path) -> Header:
    """A header found to be one: every number that is used as an index is one."""
    try:
        said = parse_json(line)
    except ValueError as error:
        raise TapelessError(f"the first line of {path} is not the head of a record: {error}.") from None
    if isinstance(said, dict) and type(said.get("format")) is int and said["format"] > FORMAT:
        raise TapelessError(f"{path} has format {said['format']}, and this version reads {FORMAT}: take a newer one.")
    if not _is_header(said):
        raise TapelessError(f"the first line of {path} is not the head of a record: remove the file.")
    results = tuple((call, index) for call, index in said["results"])
    branches = tuple(Joining(each["call"], each["direction"], each["name"]) for each in said["branches"])
    return Header(tuple(said["calls"]), results, said["sources"], said["every"], said["chosen"], branches)


def _count(value: Any) -> bool:
    return _is_count(value, 0)


RESULT = {
    **dict.fromkeys(("argument", "buffer", "access", "sign", "formula", "reads_as"), str),
    "shape": [_count],
}
CALL = {
    **dict.fromkeys(("op", "direction", "phase", "section", "source"), str),
    "stack": [str],
    "flops": int,
    "results": [RESULT],
    "reads": {...: str},
    "scalars": dict,
    "kinds": [str],
}
HEADER = {
    "format": lambda value: value == FORMAT,
    "statistics": lambda value: value == list(STATISTICS),
    "measured": lambda value: value == list(MEASURED),
    "every": lambda value: _is_count(value, 1),
    "chosen": _count,
    "sources": {...: str},
    "calls": [CALL],
    "results": [lambda value: fits(value, [_count]) and len(value) == 2],
    "branches": [{"call": _count, "direction": lambda value: value in DIRECTIONS, "name": str}],
}


def _is_header(said: Any) -> bool:
    """Of the right shape, and every number that points at a call or a result points at one."""
    if not fits(said, HEADER):
        return False
    calls = said["calls"]
    return (
        all(
            call.get("call") == number
            and (call.get("partner") is None or _is_count(call["partner"], 0, len(calls)))
            and len(call["kinds"]) == len(call["results"])
            for number, call in enumerate(calls)
        )
        and all(number < len(calls) and index < len(calls[number]["results"]) for number, index in said["results"])
        and all(each["call"] < len(calls) for each in said["branches"])
    )


def _is_count(value: Any, least: int, below: int = LATEST) -> bool:
    return type(value) is int and least <= value < below


def min_max(rows: Array, bins: int) -> tuple[Array, Array, Array]:
    """The rows drawn together into at most so many: where each begins, and the least and the greatest of every column
    in it. A mean would hide what is looked for. NaN is none of both, unless there is nothing else."""
    if len(rows) <= bins:
        return np.arange(len(rows)), rows, rows
    starts = np.linspace(0, len(rows), bins, endpoint=False).astype(np.int64)
    return starts, np.fmin.reduceat(rows, starts), np.fmax.reduceat(rows, starts)


def flow(header: Header) -> dict[str, int]:
    """Of each section the result by which the gradient leaves it on its way back: the last (a gradient is d and the
    name, always) that is no weight's."""
    return {header.calls[number]["section"]: results[-1] for number, results in handed_on(header).items()}


def handed_on(header: Header) -> dict[int, list[int]]:
    """Of each backward call the results that go on to the calls before it: gradients of activations, all of them
    (attention has three), and none of weights."""
    found: dict[int, list[int]] = {}
    for index, (number, result) in enumerate(header.results):
        call = header.calls[number]
        gradient = call["phase"] == "backward" and call["results"][result]["argument"].startswith("d")
        if gradient and call["kinds"][result] != "gradient":
            found.setdefault(number, []).append(index)
    return found


def weight_gradients(header: Header) -> dict[str, list[int]]:
    """Of each section the results that are gradients of weights, each as its last call leaves it."""
    last: dict[str, tuple[str, int]] = {}
    for index, (number, result) in enumerate(header.results):
        call = header.calls[number]
        if call["kinds"][result] == "gradient":
            last[call["results"][result]["buffer"]] = (call["section"], index)
    found: dict[str, list[int]] = {}
    for section, index in last.values():
        found.setdefault(section, []).append(index)
    return found


def together(header: Header, rows: Array, results: Sequence[int]) -> Array:
    """Root mean square over several results, of each row."""
    elements = np.array([_elements(header, result) for result in results], np.float64)
    sizes = rows[:, [header.column(result, "size") for result in results]].astype(np.float64)
    mean: Array = np.sqrt(np.square(sizes) @ elements / max(1.0, elements.sum()))
    return mean


def _elements(header: Header, result: int) -> float:
    number, index = header.results[result]
    return float(np.prod(header.calls[number]["results"][index]["shape"], dtype=np.float64))
