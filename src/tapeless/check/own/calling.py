"""A float32 kernel of any make, called once: on watched memory, in the form it was written in, and refused where it
misbehaves.

A kernel either *writes* into arrays that it is given, outputs first, as C and most of Triton do; or it *returns* its
results, as NumPy and torch do. Which of the two it does shows in how many arguments it takes.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.check.own.callables import (
    Pair,
    RefusalError,
    as_array,
    first_line,
    gradients_of,
    outputs_of,
    share_memory,
)
from tapeless.check.own.rooms import PATTERN, Room, room
from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.ops.contract import NONE, Array

OPTIONS = ("add", "threads")  # parameters that are no arrays: filled where a kernel has them
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Form:
    """How one direction of a kernel is called."""

    function: Callable[..., Any]
    writes: bool  # into what it is given, or else it returns
    options: frozenset[str]  # those of OPTIONS that it has


@dataclass(frozen=True)
class Ran:
    """What became of a call. `faults` are of memory: a kernel that has one is not called again."""

    results: Arrays
    saved: Any
    faults: tuple[str, ...]


def form_of(
    direction: str, function: Any, writing: Sequence[str], returning: Sequence[str], writes: bool | None
) -> Form:
    """Told from the number of its parameters, unless `writes` says. `writing`, `returning`: what either is given."""
    if not callable(function):
        raise TapelessError(f"the kernel's {direction} must be a function, not {function!r}.")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # compiled: nobody wrote a signature
        parameters = []
    options = frozenset(each.name for each in parameters if each.name in OPTIONS)
    if writes is not None:
        return Form(function, writes, options)
    plain = [each for each in parameters if each.name not in options]
    positional = [each for each in plain if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    least = sum(each.default is each.empty for each in positional)
    any_number = not parameters or any(each.kind == each.VAR_POSITIONAL for each in plain)
    if any_number:
        raise TapelessError(
            f"how many arguments the kernel's {direction} takes cannot be seen: say writes=True if it writes into "
            f"outputs that it is given first, writes=False if it returns its results."
        )
    counts = {True: len(writing), False: len(returning)}
    fitting = [way for way, count in counts.items() if least <= count <= len(positional)]
    exact = [way for way in fitting if counts[way] == least] or fitting
    if len(exact) == 1:
        return Form(function, exact[0], options)
    raise TapelessError(
        f"the kernel's {direction} takes {len(positional)} arguments, but one that writes into its outputs takes "
        f"{len(writing)} ({', '.join(writing)}), and one that returns them {len(returning)} ({', '.join(returning)})."
    )


@dataclass(frozen=True)
class Caller:
    """A kernel's two directions, and how arguments become what it takes."""

    pair: Pair  # names, devices, saved or not: those of the definition
    wrt: tuple[int, ...]
    forms: Mapping[str, Form]  # by direction
    adds: frozenset[str] = NONE  # gradients that it always adds to

    def plainly(self, like: Arrays) -> dict[str, Any]:
        """The way to call a backward so that it leaves its gradients, and nothing besides."""
        return {"start": {name: np.zeros(like[name].shape) for name in self.adds}} if self.adds else {}

    def forward(self, inputs: Sequence[Any], like: Arrays, saved: Arrays, **ways: Any) -> Ran:
        """`like`, `saved`: what the definition returns and saves, whose shapes the results have."""
        return self._run("forward", inputs, [], like | saved, lambda found: self._returned(found, like, saved), **ways)

    def backward(self, inputs: Sequence[Any], dy: Arrays, saved: Any, like: Arrays, **ways: Any) -> Ran:
        """`saved`: what the kernel's forward kept; arrays where it wrote them."""
        return self._run(
            "backward", inputs, [dy, saved], like, lambda found: (self._gradients(found, like), ()), **ways
        )

    def _run(
        self,
        direction: str,
        inputs: Sequence[Any],
        before: list[Any],
        like: Arrays,
        returned: Callable[[Any], tuple[list[Any], Any]],
        fill: float = np.nan,
        start: Arrays | None = None,
        add: frozenset[str] = NONE,
        gaps: bool = False,
        threads: int | None = None,
        repeat: Callable[[Callable[[], Arrays]], None] | None = None,
    ) -> Ran:
        """`repeat` is given a way to call the kernel on the same arrays once more, with nothing around it."""
        form = self.forms[direction]
        device = next((each for each in self.pair.devices if each is not None), None)
        read: list[Room] = []

        def handed(name: str, value: Any, where: Any) -> Any:
            if not isinstance(value, np.ndarray):
                return value
            narrow = value.astype(np.float32) if value.dtype.kind == "f" else value
            read.append(room(name, narrow, where, gaps))
            return read[-1].given

        named = zip(self.pair.names, inputs, self.pair.devices, strict=True)
        given = [handed(name, value, where) for name, value, where in named]
        if before:
            dy, saved = before
            incoming = [handed(name, value, device) for name, value in dy.items()]
            kept = [handed(name, value, device) for name, value in saved.items()] if isinstance(saved, dict) else saved
            given = [*_before_the_inputs(form.writes, self.pair.saved, incoming, kept), *given]
        held = start or {}
        written = [
            room(name, np.asarray(held.get(name, np.full(value.shape, fill)), np.float32), device, margin=PATTERN)
            for name, value in (like.items() if form.writes else ())
        ]
        options: dict[str, Any] = {"add": add} if "add" in form.options else {}
        options |= {"threads": threads} if "threads" in form.options else {}

        def once() -> Arrays:
            for each in written:
                if each.name in held:
                    as_array(each.given)[...] = held[each.name]
            found = form.function(*(each.given for each in written), *given, **options)
            results = [each.given for each in written] if form.writes else returned(found)[0]
            return {name: as_array(value) for name, value in zip(like, results, strict=False)}

        try:
            if repeat is not None:
                repeat(once)
            found = form.function(*(each.given for each in written), *given, **options)
        except TapelessError:
            raise
        except Exception as error:  # the user's own code: say which call it was
            raise KernelRaisedError(
                f"the kernel's {direction} raised {type(error).__name__}: {first_line(error)}"
            ) from error
        if form.writes:
            results, saved = [each.given for each in written], None
            if found is not None and not isinstance(found, int) and all(_untouched(each) for each in written):
                raise RefusalError(
                    f"the kernel's {direction} returns a {type(found).__name__} and writes nothing into the outputs "
                    f"that it is given first."
                )
        else:
            results, saved = returned(found)
            _check_results(direction, dict(zip(like, results, strict=False)), like, read)
        faults = [sentence for each in written for sentence in each.strays()]
        faults += [sentence for each in read for sentence in each.changes()]
        values = {name: as_array(value).copy() for name, value in zip(like, results, strict=False)}
        return Ran(values, saved, tuple(f"the kernel's {direction}: {each}" for each in faults))

    def _returned(self, found: Any, like: Arrays, saved: Arrays) -> tuple[list[Any], Any]:
        if found is None:
            raise RefusalError("the kernel's forward returned None: is there a `return` at its end?")
        try:
            outputs, kept = outputs_of(self.pair, found)
        except RefusalError as refusal:
            raise RefusalError(str(refusal).replace("the forward", "the kernel's forward")) from None
        if len(outputs) != len(like):
            raise RefusalError(f"the kernel's forward returned {len(outputs)} outputs, the definition {len(like)}.")
        return outputs, kept

    def _gradients(self, found: Any, like: Arrays) -> list[Any]:
        try:
            gradients = gradients_of(self.pair, self.wrt, found)
        except RefusalError as refusal:
            raise RefusalError(str(refusal).replace("the backward", "the kernel's backward")) from None
        zeros = (np.zeros(value.shape, np.float32) for value in like.values())
        return [zero if each is None else each for each, zero in zip(gradients, zeros, strict=True)]


def _before_the_inputs(writes: bool, with_saved: bool, incoming: list[Any], kept: Any) -> list[Any]:
    """dy and what was saved, each by itself for a kernel that writes; else as `backward(dy, saved, *inputs)` has them.
    `kept`: a list of arrays that a kernel wrote, or whatever one returned."""
    if writes:
        return [*incoming, *(kept if isinstance(kept, list | tuple) else [kept] if with_saved else [])]
    dy = incoming[0] if len(incoming) == 1 else tuple(incoming)
    if not with_saved:
        return [dy]
    return [dy, (kept[0] if len(kept) == 1 else tuple(kept)) if isinstance(kept, list) else kept]


class KernelRaisedError(Exception):
    """The kernel itself raised something."""


def _untouched(written: Room) -> bool:
    return bool(np.isnan(written.values()).all())


def _check_results(direction: str, results: Mapping[str, Any], like: Arrays, read: Sequence[Room]) -> None:
    """What comes before the numbers of what a kernel returned."""
    for name, value in results.items():
        what = f"{name} of the kernel's {direction}"
        if not hasattr(value, "shape"):
            raise RefusalError(f"{what} is a {type(value).__name__}, not an array of float32.")
        array = as_array(value)
        if array.dtype != np.float32:
            raise RefusalError(f"{what} is {array.dtype}: a float32 kernel gives float32.")
        if array.shape != like[name].shape:
            raise RefusalError(
                f"{what} has shape {spelled(array.shape)}, the definition's has {spelled(like[name].shape)}."
            )
        for each in read:
            if share_memory(value, each.given):
                raise RefusalError(f"{what} shares its memory with {each.name}: who changes one changes the other.")


@contextmanager
def poisoned(tensors: bool) -> Iterator[None]:
    """torch's fresh memory is full of NaN, so that what a kernel allocates and does not write shows."""
    torch = sys.modules.get("torch")
    if not tensors or torch is None:
        yield
        return
    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)
        torch.utils.deterministic.fill_uninitialized_memory = fills
