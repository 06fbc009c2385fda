"""What a run keeps of its steps, call by call: how large every result was, where it was zero, where it was not finite.

A file of fixed-width float32 rows behind one line of JSON, padded so that the rows can be mapped into memory. The line
says what the columns are and holds the listing of calls they belong to, with their source: a run is read years after
the program has changed. Rows are only ever added. A reader ignores a row that is not whole, or not later than the one
before it; a writer cuts it off.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.plain import open_plain, parse_json
from tapeless.ops.contract import Array
from tapeless.program.builder import HOME
from tapeless.program.call import Program
from tapeless.program.listing import describe
from tapeless.train.branches import DIRECTIONS, MEASURED, Joining, joinings

FILE = "records.f32"
FORMAT = 2  # since 2 a row ends with the branches of the residual stream
ALIGNMENT = 64  # bytes; where the rows begin
LARGEST_HEADER = 8_000_000
LARGEST = 256_000_000  # bytes that are read; a writer keeps to far fewer
HIGH = 1 << 24  # float32 counts exactly up to here, so a step has two columns
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
    def width(self) -> int:
        """Columns of a row."""
        return self.first_branch + len(MEASURED) * len(self.branches)

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
            "width": self.width,
            "lead": LEAD,
            "statistics": STATISTICS,
            "results": self.results,
            "calls": self.calls,
            "sources": self.sources,
            "measured": MEASURED,
            "branches": [asdict(each) for each in self.branches],
        }
        line = json.dumps(said, ensure_ascii=False).encode()
        return line + b" " * (-(len(line) + 1) % ALIGNMENT) + b"\n"


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


@dataclass(frozen=True)
class Record:
    """What a file holds: rows of `header.width` columns, each later than the one before."""

    header: Header
    rows: Array
    start: int  # bytes before the first row

    @property
    def steps(self) -> Array:
        return steps_of(self.rows)

    @property
    def end(self) -> int:
        return self.start + self.rows.nbytes


def steps_of(rows: Array) -> Array:
    found: Array = rows[:, 0].astype(np.float64) + HIGH * rows[:, 1].astype(np.float64)
    return found


def read_record(path: Path) -> Record:
    """All of a record. Read, not mapped: a file that is cut while it is mapped ends the process that looks at it."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST:
                raise TapelessError(f"{path} has {size:,} bytes, more than any record of a run: remove it.")
            content = file.read(size)
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    line, newline, _ = content[:LARGEST_HEADER].partition(b"\n")
    if not newline:
        raise TapelessError(f"{path} ends before its first row: nothing was recorded yet, or it is damaged.")
    header = _believed(line, path)
    return Record(header, whole_rows(content, len(line) + 1, header.width), len(line) + 1)


def whole_rows(content: bytes, start: int, width: int, first: int = 1) -> Array:
    """The rows that are whole, up to the first that is not later than the one before it. `first`: the least step."""
    count = (len(content) - start) // (4 * width)
    rows = np.frombuffer(content, "<f4", count * width, start).reshape(count, width)
    steps = steps_of(rows)
    sound = np.isfinite(steps) & (steps >= first) & (steps == np.floor(steps))
    sound[1:] &= steps[1:] > steps[:-1]
    return rows if sound.all() else rows[: int(sound.argmin())]


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
    branches = tuple(Joining(each["call"], each["direction"], each["name"]) for each in said.get("branches", ()))
    return Header(tuple(said["calls"]), results, said["sources"], said["every"], said.get("chosen", 0), branches)


def _is_header(said: Any) -> bool:
    if not isinstance(said, dict) or said.get("format") not in (1, FORMAT):
        return False
    if said["format"] == 1:  # an earlier version knew no branches
        said = {**said, "branches": [], "measured": list(MEASURED)}
    calls, results, sources = said.get("calls"), said.get("results"), said.get("sources")
    return (
        said.get("lead") == list(LEAD)
        and said.get("statistics") == list(STATISTICS)
        and _is_count(said.get("every"), 1)
        and _is_count(said.get("chosen", 0), 0)
        and isinstance(sources, dict)
        and all(isinstance(text, str) for text in sources.values())
        and isinstance(calls, list)
        and all(_is_call(call, number, len(calls)) for number, call in enumerate(calls))
        and isinstance(results, list)
        and all(isinstance(each, list) and len(each) == 2 for each in results)
        and all(_is_count(call, 0, len(calls)) for call, _ in results)
        and all(_is_count(index, 0, len(calls[call]["results"])) for call, index in results)
        and said.get("measured") == list(MEASURED)
        and isinstance(said.get("branches"), list)
        and all(_is_branch(each, len(calls)) for each in said["branches"])
    )


CALL = {
    "op": str,
    "direction": str,
    "phase": str,
    "section": str,
    "source": str,
    "stack": list,
    "flops": int,
    "results": list,
    "reads": dict,
    "scalars": dict,
    "kinds": list,
}
RESULT = {"argument": str, "buffer": str, "shape": list, "access": str, "sign": str, "formula": str, "reads_as": str}


def _is_call(call: Any, number: int, count: int) -> bool:
    return (
        _has(call, CALL)
        and call.get("call") == number
        and (call.get("partner") is None or _is_count(call["partner"], 0, count))
        and all(_has(result, RESULT) for result in call["results"])
        and all(_is_count(size, 0) for result in call["results"] for size in result["shape"])
        and all(isinstance(each, str) for each in (*call["kinds"], *call["stack"], *call["reads"].values()))
        and len(call["kinds"]) == len(call["results"])
    )


def _is_branch(said: Any, count: int) -> bool:
    return (
        _has(said, {"call": int, "direction": str, "name": str})
        and _is_count(said["call"], 0, count)
        and said["direction"] in DIRECTIONS
    )


def _has(found: Any, fields: Mapping[str, type]) -> bool:
    return isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in fields.items())


def _is_count(value: Any, least: int, below: int = 1 << 53) -> bool:
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
    found: dict[str, int] = {}
    for index, (number, result) in enumerate(header.results):
        call = header.calls[number]
        gradient = call["phase"] == "backward" and call["results"][result]["argument"].startswith("d")
        if gradient and call["kinds"][result] != "gradient":
            found[call["section"]] = index
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
