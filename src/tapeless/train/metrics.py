"""What a run measures of itself, and metrics.jsonl, the file it is kept in: one JSON object per line."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.files.disk import UnwritableError, write_whole
from tapeless.files.growing import Growing
from tapeless.files.plain import parse_json, read_plain
from tapeless.inputs import Packed, rows_of, unpacked
from tapeless.model import Model, Stepped
from tapeless.models.transformer import sections
from tapeless.ops.contract import Array
from tapeless.train.believed import is_line

FILE = "metrics.jsonl"
LARGEST = 1 << 30  # bytes; a million lines of a deep model
PHASES = ("data", "step", "evaluate", "save")
ENDS = ("all ", "stopped early")  # how the reasons of trainings begin that came to their end


def gradient_norms(model: Model, made: Stepped | None = None) -> dict[str, float]:
    """The norm of each layer's gradients in an update, or the one just made, as they were before clipping."""
    return _by_section(model, (made or model).read("gradient_norms"))


def update_ratios(model: Model) -> dict[str, float]:
    """How far the update just made moved each layer, as a share of where it was: ‖Δw‖ / ‖w before‖."""
    before, moved = (_by_section(model, model.read(name)) for name in ("weight_norms", "moved"))
    return {layer: far / before[layer] if before[layer] else inf for layer, far in moved.items()}


def _by_section(model: Model, values: Array) -> dict[str, float]:
    weights = model.program.phase("update")[0]["weights"].buffer
    return dict(zip(sections(weights), values.tolist(), strict=True))


def dead_units(model: Model, inputs: Any) -> dict[str, float]:
    """The share of each layer's ReLU units that no position of `inputs` activates; empty for other activations.

    `inputs` are one batch or several, one after the other: over few rows a unit that is merely choosy looks dead.
    """
    calls = model.program.phase("forward")
    if not any(call.op == "relu" for call in calls):
        return {}
    inputs = inputs if isinstance(inputs, Packed) else np.asarray(inputs)
    shape = np.shape(unpacked(inputs)[0])
    if not shape or shape[0] % model.batch or not shape[0]:
        raise TapelessError(
            f"dead units are counted over whole batches of {model.batch}, not over inputs of shape {shape}."
        )
    targets = np.zeros((model.batch,) if model.config.readout == "last" else (model.batch, model.time), np.int64)
    active: dict[str, Array] = {}
    drawn = model.draws
    try:
        for start in range(0, shape[0], model.batch):
            model.feed(rows_of(inputs, slice(start, start + model.batch)), targets)
            for call in model.engine.walk("forward"):
                if call.op == "relu":
                    rows = model.engine.read(call["y"]).reshape(-1, call["y"].shape[-1])
                    awake = active.setdefault(call.section, np.zeros(rows.shape[1], bool))
                    awake |= (rows > 0).any(axis=0)
    finally:
        model.draws = drawn  # nothing was learned from what was walked here
    return {layer: float(1 - awake.mean()) for layer, awake in active.items()}


class Phases:
    """Where the time goes: `with phases("data"): …`, then `shares()` of all time since it was last asked."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start()

    def _start(self) -> None:
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._since = self._clock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if name not in PHASES:
            raise unknown("phase", name, PHASES)
        begun = self._clock()
        try:
            yield
        finally:
            self._spent[name] += self._clock() - begun

    def shares(self) -> dict[str, float]:
        """Of each phase, and of what belongs to none as "other": together 1."""
        whole, spent = self._clock() - self._since, self._spent
        self._start()
        shares = {name: seconds / whole if whole else 0.0 for name, seconds in spent.items()}
        return shares | {"other": max(0.0, 1.0 - sum(shares.values()))}


class Recorder:
    """Appends to a run's metrics, and where it is asked to, to event files for TensorBoard."""

    def __init__(self, folder: Path, tensorboard: bool = False) -> None:
        self._file = Growing(folder / FILE)
        self._lines: list[tuple[int, bytes]] = []  # by step, that are not in the file yet
        self._events = None
        if tensorboard:
            from tapeless.train.tensorboard import Events

            self._events = Events(folder / "tensorboard")
        if self._path.exists():
            lines, content = read_metrics(folder), read_plain(self._path)
            if content and not content.endswith(b"\n"):  # torn by a kill: the next line must not be glued to it
                self._rewrite(lines)

    @property
    def _path(self) -> Path:
        return self._file.path

    def note(self, kind: str, step: int, **values: Any) -> None:
        """What `write` then writes."""
        line = json.dumps(_plain({"kind": kind, "step": step, **values}), ensure_ascii=False, allow_nan=False)
        self._lines.append((step, f"{line}\n".encode()))
        if self._events:
            self._events.note(kind, step, values)

    def write(self) -> None:
        """All that was noted. Where it does not reach the disk it is kept, and can be tried again."""
        try:
            while self._lines:
                self._file.add(self._lines[0][1])
                self._lines.pop(0)
        except OSError as error:
            raise _unrecorded(self._lines[0][0], self._path, error) from None
        if self._events:
            self._events.write()

    def sync(self) -> None:
        """What was written survives a power cut from here on."""
        try:
            self._file.sync()
        except OSError as error:
            raise UnwritableError(f"cannot write {self._path}: {error.strerror}.") from None

    def record(self, kind: str, step: int, **values: Any) -> None:
        self.note(kind, step, **values)
        self.write()

    def cut_after(self, step: int) -> list[str]:
        """Forget what was recorded beyond a step: the run goes on from an earlier checkpoint. Says what it noticed."""
        noticed = []
        if self._path.exists():
            lines = read_metrics(self._path.parent)
            if twice(lines):
                noticed = [f"{self._path} has step {twice(lines)[0]} twice: two trainings wrote to it at once."]
            self._rewrite(line for line in lines if line["step"] <= step)
        if self._events:
            self._events.cut_after(step)
        return noticed

    def ended(self, step: int) -> bool:
        """Whether the last line says that the training came to its end at this step."""
        line = read_metrics(self._path.parent)[-1:] if self._path.exists() else []
        return bool(line) and line[0]["step"] == step and came_to_its_end(line[0])

    def _rewrite(self, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_whole(self._path, text.encode())


def _unrecorded(step: int, path: Path, error: OSError) -> UnwritableError:
    return UnwritableError(f"cannot record step {step} in {path}: {error.strerror}.")


def came_to_its_end(line: Mapping[str, Any]) -> bool:
    """Whether a line of metrics is the last of a training that nothing cut short."""
    return line["kind"] == "stop" and str(line.get("reason", "")).startswith(ENDS)


def twice(lines: Iterable[Mapping[str, Any]]) -> list[int]:
    """The steps that were recorded more than once: two trainings wrote to the run at the same time."""
    counted = Counter(line["step"] for line in lines if line["kind"] == "step")
    return sorted(step for step, times in counted.items() if times > 1)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every line of a run's metrics. A last line that was torn by a kill is left out; any other damage is an error."""
    return [*each_line(folder)]


def each_line(folder: Path) -> Iterator[dict[str, Any]]:
    """The same one by one, for who needs no more than the first."""
    path, content = folder / FILE, _content(folder)
    start = number = 0
    while (end := content.find(b"\n", start)) >= 0:
        row, start, number = content[start:end], end + 1, number + 1
        line = parsed(row)
        if line is None:
            raise TapelessError(
                f"line {number} of {path} is not a line of metrics: {_start_of(row)}; repair or remove that line."
            )
        yield line
    whole = parsed(content[start:])  # empty where the file ends as it should, or a line that lacks nothing but its end
    if whole is not None:
        yield whole


def last_step(folder: Path) -> int | None:
    """The last update that was measured, read from the end; None where none was."""
    content = _content(folder)
    end = len(content)
    while end > 0:
        start = content.rfind(b"\n", 0, end) + 1
        line = parsed(content[start:end])
        if line is not None and line["kind"] == "step":
            return int(line["step"])
        end = start - 1
    return None


def _content(folder: Path) -> bytes:
    path = folder / FILE
    try:
        if path.stat().st_size > LARGEST:
            raise TapelessError(f"{path} is longer than {LARGEST:,} bytes, too long to be the metrics of a run.")
        return read_plain(path)
    except FileNotFoundError:
        raise TapelessError(f"there are no metrics in {folder}: give the folder of a run.") from None
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None


def parsed(row: bytes) -> dict[str, Any] | None:
    """The line of metrics that a row is; None where it is none."""
    try:
        # Without an escape there is no half of a surrogate pair, and no need to look for one: a run has many lines.
        line = parse_json(row) if b"\\" in row else json.loads(row.decode())
    except (ValueError, RecursionError):
        return None
    return line if is_line(line) else None


def _start_of(row: bytes) -> str:
    return repr(row[:40].decode("utf-8", "replace")) + (" …" if len(row) > 40 else "")


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's, and null for NaN and infinity, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not isfinite(value) else value
