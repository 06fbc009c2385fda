"""What is measured of a recorded step right after each call: how large its results are, and how large each branch is
that joins the residual stream, beside what is there.

Forward a branch is what a block adds to the stream; backward, what it adds to the stream's gradient. The cosine between
the branch and what was there before it says which way it goes: 1 the same way, 0 across, −1 against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.kernels.native import Native
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.program.call import Argument, Call, Program, View

MEASURED = ("size", "highway", "cosine")  # of a branch: root mean squares of it and of what was there, and the angle
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Joining:
    """One addition to the stream."""

    call: int
    direction: str  # "forward", or "backward" where it is the gradient that is added to
    name: str  # of what is added


def joinings(program: Program) -> tuple[Joining, ...]:
    """Every addition to the residual stream in a step, in the order of its calls."""
    found = []
    for number, call in enumerate(program.calls):
        if call.op == "residual" and call.phase == "forward":
            found.append(Joining(number, "forward", call["branch"].name))
        elif added(call) is not None:
            # What comes back through the call is the gradient that it reads.
            found.append(Joining(number, "backward", call["dy"].name if call.has("dy") else call.title))
    return tuple(found)


def added(call: Call) -> Argument | None:
    """The stream's gradient, where a call adds to it."""
    adds = (each for each in call.writes if each.mode == "add" and each.view.buffer.role == "stream")
    return next(adds, None) if call.phase == "backward" else None


def compare(out: Array, highway: Array, branch: Array) -> None:
    """What is MEASURED of a branch beside the highway that it joins."""
    one, other = (np.asarray(array).astype(np.float64).ravel() for array in (highway, branch))
    sizes = [float(np.sqrt(np.mean(np.square(each)))) for each in (one, other)]
    together = sizes[0] * sizes[1]
    out[:] = sizes[1], sizes[0], float(np.mean(one * other)) / together if together > 0 else 0.0


def branch_measuring(model: Model, joined: tuple[Joining, ...], rows: Array) -> Iterator[tuple[int, list[Native]]]:
    """What measures every branch into its row: after which call, and what runs then. The stream's gradient is copied
    before each +=, after the call that comes before it."""
    calls = model.program.calls
    streams = {each.call: target.view for each in joined if (target := added(calls[each.call])) is not None}
    widest = max((stream.elements for stream in streams.values()), default=0)
    scratch = np.empty((2, widest), np.float32)  # one branch at a time needs them
    for each, out in zip(joined, rows, strict=True):
        if each.call in streams:
            before, after = _around(model, out, streams[each.call], scratch)
            yield each.call - 1, before
            yield each.call, after
        else:
            yield each.call, _beside(model, out, calls[each.call]["x"], calls[each.call]["branch"])


def _beside(model: Model, out: Array, highway: View, branch: View) -> list[Native]:
    arrays = [_direct(model, each) for each in (highway, branch)]
    if arrays[0] is None or arrays[1] is None:
        return [lambda: compare(out, model.engine.read(highway), model.engine.read(branch))]
    from tapeless.kernels.cpu import bind_beside

    return [bind_beside(out, *arrays)]


def _around(model: Model, out: Array, stream: View, scratch: Array) -> tuple[list[Native], list[Native]]:
    values = _direct(model, stream)
    if values is None:
        kept = np.empty(stream.shape)

        def gained() -> None:
            compare(out, kept, np.asarray(model.engine.read(stream)).astype(np.float64) - kept)

        return [lambda: np.copyto(kept, model.engine.read(stream), casting="unsafe")], [gained]
    from tapeless.kernels.cpu import bind_beside

    before, branch = scratch[:, : values.size]
    return (
        [lambda: np.copyto(before, values)],
        [lambda: np.subtract(values, before, out=branch), bind_beside(out, before, branch)],
    )


def _direct(model: Model, view: View) -> Array | None:
    """The memory itself, flat, where the kernel can read it."""
    if model.backend != "cpu" or model.precision.dtype(view.buffer.role) != "float32":
        return None
    values: Array = model.engine.view(view)
    return values.reshape(-1) if values.flags.c_contiguous else None


def result_measuring(model: Model, call: Call, index: int, out: Array) -> list[Native]:
    """What measures one result of a call into four numbers."""
    target = call.writes[index].view
    if model.backend != "cpu" or model.precision.dtype(target.buffer.role) != "float32":
        return [lambda: measure(out, model.engine.read(target))]
    from tapeless.kernels.cpu import bind_statistics

    values: Any = model.engine.view(target)
    if values.flags.c_contiguous:
        return [bind_statistics(out, values.reshape(-1))]
    copied = np.empty(values.shape, np.float32)
    return [lambda: np.copyto(copied, values), bind_statistics(out, copied.reshape(-1))]


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
