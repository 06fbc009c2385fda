"""A kernel that is a pair of functions, which return their results or write them into arrays that they are given first,
as C and most of Triton do. Which of the two shows in how many arguments they take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.check.guarded import GARBAGE, PATTERN, where_of
from tapeless.check.own.definition import Expected, dtype_of, flattened, named, picked, taken_by
from tapeless.check.own.example import Example
from tapeless.check.own.harness import POSITIONAL, RefusalError, is_tensor, parameters_of, poisoned, share_memory
from tapeless.check.own.memory import Placed, as_float64, placed
from tapeless.check.own.target import AutogradKernel, Fault, Ran, Way, called, place_all, touched
from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.ops.contract import NONE, Array

OPTIONS = ("add", "threads")  # parameters that are no arrays: filled where a kernel has them


@dataclass(frozen=True)
class Form:
    """How one direction is called."""

    function: Callable[..., Any]
    writes: bool
    options: frozenset[str]


def form_of(
    direction: str, function: Any, writing: Sequence[str], returning: Sequence[str], writes: bool | None
) -> Form:
    """Told from the number of its parameters, unless `writes` says. `writing`, `returning`: what either is given."""
    if not callable(function):
        raise TapelessError(f"the kernel's {direction} must be a function, not {function!r}.")
    parameters = parameters_of(function)
    options = frozenset(each.name for each in parameters if each.name in OPTIONS)
    if writes is not None:
        return Form(function, writes, options)
    plain = [each for each in parameters if each.name not in options]
    positional = [each for each in plain if each.kind in POSITIONAL]
    least = sum(each.default is each.empty for each in positional)
    if not parameters or any(each.kind == each.VAR_POSITIONAL for each in plain):
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


class PairKernel:
    """Two functions, either of them None. `adds`: gradients that it always adds to."""

    raw = True

    def __init__(
        self,
        functions: Sequence[Any],
        example: Example,
        like: Expected,
        saved: bool,
        writes: bool | None,
        adds: frozenset[str] = NONE,
    ) -> None:
        self.example, self.saved, self.adds, self.name = example, saved, adds, "the kernel"
        names, gradients = [leaf.name for leaf in example.leaves], list(example.gradients)
        unknown = adds - set(gradients)
        if unknown:
            raise TapelessError(
                f"adds names {min(unknown)!r}, which is no gradient: choose among {', '.join(gradients)}."
            )
        kept = [name for name in like.allowed if name.startswith("saved")]
        dy = list(named("dy", like.dys))
        self.forms: dict[str, Form] = {}
        for direction, function in zip(("forward", "backward"), functions, strict=True):
            if function is None:
                continue
            forward = direction == "forward"
            results, read = ([*like.outputs, *kept], names) if forward else (gradients, [*dy, *kept, *names])
            returning = names if forward else ["dy", *(["saved"] if saved else []), *names]
            self.forms[direction] = form_of(direction, function, [*results, *read], returning, writes)
        self.directions = tuple(self.forms)
        if adds and not ("backward" in self.forms and self.forms["backward"].writes):
            raise TapelessError("adds is for a backward that writes into its outputs: this one returns them.")

    @property
    def writes(self) -> bool:
        return any(form.writes for form in self.forms.values())

    def run(
        self,
        at: Expected,
        way: Way,
        other: Expected | None = None,
        *,
        fill: float = np.nan,
        start: Mapping[str, Array] | None = None,
        add: frozenset[str] = NONE,
        threads: int | None = None,
        only: str = "",
        repeat: Callable[[Callable[[], dict[str, Array]]], None] | None = None,
    ) -> Ran:
        """`fill`: what outputs hold before; `start`: those that hold something; `repeat` calls the kernel again."""
        ran, kept = Ran(), narrowed(at.raw_saved, way.dtype)
        for direction in self.directions:
            if only and direction != only and not (direction == "forward" and self.saved):
                continue
            form = self.forms[direction]
            names = (
                [n for n in at.allowed if n[0] in "ys" and n[:2] != "d"]
                if direction == "forward"
                else list(self.example.gradients)
            )
            inputs, incoming = place_all(self.example, at, way)
            given, first = [each.given for each in inputs], []
            if direction == "backward":
                first = self._before_the_inputs(form.writes, [each.given for each in incoming], kept, way)
            begun = {name: value for name, value in (start or {}).items() if name in names}
            if direction == "backward":
                begun = {name: np.zeros(at.allowed[name].true.shape) for name in self.adds} | begun
            written = [
                placed(
                    name,
                    begun.get(name, np.full(at.allowed[name].true.shape, fill)),
                    way.dtype,
                    self.example.device,
                    "",
                    self.example.torch,
                    PATTERN,
                )
                for name in (names if form.writes else ())
            ]
            keywords: dict[str, Any] = dict(taken_by(form.function, way.options))
            keywords |= {"add": add & set(names)} if "add" in form.options else {}
            keywords |= {"threads": threads} if threads and "threads" in form.options else {}

            def call(
                form: Form = form,
                written: Any = written,
                first: Any = first,
                given: Any = given,
                keywords: Any = keywords,
            ) -> Any:
                return form.function(
                    *(each.given for each in written), *first, *self.example.arguments(given), **keywords
                )

            def once(
                call: Any = call,
                written: Any = written,
                begun: Any = begun,
                names: Any = names,
                direction: str = direction,
            ) -> dict[str, Array]:
                for each in written:
                    if each.name in begun:
                        each.given[...] = begun[each.name]
                found = call()
                results = [each.given for each in written] if written else self._returned(direction, found, at)[0]
                return {name: np.array(as_float64(value)) for name, value in zip(names, results, strict=False)}

            with called(direction), ExitStack() as stack:
                if self.example.torch and not form.writes and self.example.device.type == "cpu":
                    stack.enter_context(poisoned(True))
                if repeat is not None:
                    repeat(once)
                found = call()
            if form.writes:
                self._written(ran, direction, found, written)
                if direction == "forward" and self.saved:
                    kept = [each.given for each in written[len(at.outputs) :]]
            else:
                results, kept_now = self._returned(direction, found, at)
                kept = kept_now if direction == "forward" and self.saved else kept
                used = names if direction == "backward" else at.outputs
                self._check(ran, dict(zip(used, results, strict=True)), at, inputs, way)
            ran.faults += touched(inputs, incoming, direction)
        return ran

    def _before_the_inputs(self, writes: bool, incoming: list[Any], kept: Any, way: Way) -> list[Any]:
        """dy and what was saved, each by itself for a kernel that writes; else as `backward(dy, saved, *inputs)` has
        them."""
        if writes:
            return [*incoming, *(flattened(kept) if self.saved else [])]
        dy = incoming[0] if len(incoming) == 1 else tuple(incoming)
        if not self.saved:
            return [dy]
        return [dy, (kept[0] if len(kept) == 1 else tuple(kept)) if isinstance(kept, list) else kept]

    def _written(self, ran: Ran, direction: str, found: Any, written: Sequence[Placed]) -> None:
        untouched = all(np.isnan(each.values()).all() for each in written)
        if found is not None and not isinstance(found, int) and untouched and written:
            raise RefusalError(
                f"the kernel's {direction} returns a {type(found).__name__} and writes nothing into the outputs that "
                f"it is given first."
            )
        for each in written:
            ran.faults += [Fault("writes outside its arrays", f"the {direction}: {stray}") for stray in each.strays()]
            ran.results[each.name], ran.dtypes[each.name] = each.values(), dtype_of(each.given)

    def _returned(self, direction: str, found: Any, at: Expected) -> tuple[list[Any], Any]:
        if found is None:
            raise RefusalError(f"the kernel's {direction} returned None: is there a `return` at its end?")
        if direction == "backward":
            try:
                gradients = picked(found, self.example)
            except RefusalError as refusal:
                raise RefusalError(str(refusal).replace("the backward", "the kernel's backward")) from None
            zeros = (np.zeros(at.allowed[name].true.shape, np.float32) for name in self.example.gradients)
            return [zero if each is None else each for each, zero in zip(gradients, zeros, strict=True)], None
        kept = None
        if self.saved:
            if not isinstance(found, tuple) or len(found) != 2:
                raise RefusalError("with saved=True the kernel's forward must return (y, saved).")
            found, kept = found
        outputs = list(found) if isinstance(found, tuple | list) else [found]
        if len(outputs) != len(at.outputs):
            raise RefusalError(
                f"the kernel's forward returned {len(outputs)} outputs, the definition {len(at.outputs)}."
            )
        return outputs, kept

    def _check(self, ran: Ran, results: Mapping[str, Any], at: Expected, read: Sequence[Placed], way: Way) -> None:
        for name, value in results.items():
            direction = "forward" if name in at.outputs else "backward"
            what, shape = f"{name} of the kernel's {direction}", at.allowed[name].true.shape
            if not hasattr(value, "shape"):
                value = np.asarray(value, way.dtype) if isinstance(value, float) else value
            if not hasattr(value, "shape"):
                raise RefusalError(f"{what} is a {type(value).__name__}, not an array of {way.dtype}.")
            if dtype_of(value) not in (way.dtype, at.allowed[name].own_dtype or way.dtype):
                ran.faults.append(
                    Fault("wrong dtype", f"{what} is {dtype_of(value)}: a {way.dtype} kernel gives {way.dtype}")
                )
            if tuple(value.shape) != shape:
                sentence = f"{what} has shape {spelled(tuple(value.shape))}, the definition's has {spelled(shape)}"
                ran.faults.append(Fault("wrong shape", sentence))
                continue
            for each in read:
                if hasattr(each.given, "shape") and share_memory(value, each.given):
                    sentence = f"{what} shares its memory with {each.name}: who changes one changes the other"
                    ran.faults.append(Fault("an output shares memory with an input", sentence))
            ran.results[name] = as_float64(value)
            ran.dtypes[name] = (
                dtype_of(value) if dtype_of(value) in ("float32", "float64", "bfloat16", "float16") else way.dtype
            )


def narrowed(kept: Any, dtype: str) -> Any:
    """What a definition saves, in the kernel's dtype."""
    if isinstance(kept, tuple | list):
        return type(kept)(narrowed(each, dtype) for each in kept)
    if isinstance(kept, dict):
        return {name: narrowed(each, dtype) for name, each in kept.items()}
    if is_tensor(kept):
        return kept.detach().to(getattr(sys.modules["torch"], dtype)) if kept.is_floating_point() else kept
    return kept.astype(dtype) if isinstance(kept, np.ndarray | np.floating) and kept.dtype.kind == "f" else kept


def unwritten(kernel: PairKernel, at: Expected, way: Way, first: Ran) -> Iterator[Fault]:
    """Outputs full of NaN, and of a number: what is not written shows, and what is added to."""
    again = kernel.run(at, way, fill=GARBAGE)
    for name, found in first.results.items():
        if (
            name in kernel.adds
            or not kernel.forms["backward" if name in kernel.example.gradients else "forward"].writes
        ):
            continue
        other = again.results[name]
        untouched = np.isnan(found) & (other == GARBAGE)
        if untouched.any():
            yield Fault("does not write all of its results", f"it does not write {name} at {where_of(untouched)}")
        elif (depends := (found != other) & ~(np.isnan(found) & np.isnan(other))).any():
            sentence = f"{name} depends on what it held before, at {where_of(depends)}: it is added to, or read"
            yield Fault("adds where it should overwrite", f"{sentence}, where it should be overwritten")


Kernel = AutogradKernel | PairKernel
