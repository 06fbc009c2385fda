"""Whatever is called a kernel, run once: a `torch.autograd.Function`, a module, a function or custom op that autograd
goes through; a pair of functions that return their results; or one that writes them into arrays that it is given first,
as C and most of Triton do. Inputs lie between margins, and what a kernel must not touch is compared byte by byte.
"""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tapeless.check.guarded import GARBAGE, PATTERN, where_of
from tapeless.check.own.definition import (
    Expected,
    dtype_of,
    flattened,
    floats_of,
    named,
    picked,
    taken_by,
)
from tapeless.check.own.example import Example, Placed, as_float64, placed
from tapeless.check.own.harness import (
    POSITIONAL,
    RefusalError,
    first_line,
    is_tensor,
    parameters_of,
    poisoned,
    share_memory,
)
from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.ops.contract import NONE, Array

OPTIONS = ("add", "threads")  # parameters that are no arrays: filled where a kernel has them


@dataclass(frozen=True)
class Fault:
    """What is wrong apart from numbers: the class of mistake, and a sentence."""

    kind: str
    sentence: str


class KernelRaisedError(Exception):
    """The kernel raised something. `declared`: by a `raise` or an `assert` of its own."""

    def __init__(self, direction: str, error: BaseException) -> None:
        super().__init__(f"the {direction} raises {type(error).__name__}: {first_line(error)}")
        self.direction, self.declared = direction, _declared(error)


def _declared(error: BaseException) -> bool:
    """Whether somebody wrote that this is not taken."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or isinstance(error, NotImplementedError):
        return True
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    return line.startswith(("raise", "assert")) and "site-packages" not in trace.tb_frame.f_code.co_filename


@dataclass
class Ran:
    """What became of a call: results in float64 and their dtypes by name."""

    results: dict[str, Array] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True)
class Way:
    """How a kernel is called: the dtype, where inputs and dy lie, the mode."""

    dtype: str
    layouts: Mapping[str, str] = field(default_factory=dict)  # by name of a leaf, or "dy"
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: str = ""
    wanted: tuple[int, ...] | None = None  # the leaves whose gradients are asked for; None: all
    output: int | None = None  # the only output that is used
    mixed: bool = False  # leaves with fewer axes than others stay float32


@contextmanager
def called(direction: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except (KernelRaisedError, RefusalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's own code, which may exit, too
        raise KernelRaisedError(direction, error) from error


def leaf_dtype(example: Example, index: int, way: Way) -> str:
    leaf = example.leaves[index]
    widest = max(len(each.axes) for each in example.leaves if each.floats)
    return "float32" if way.mixed and len(leaf.axes) < widest else way.dtype


def place_all(example: Example, at: Expected, way: Way) -> tuple[list[Placed], list[Placed]]:
    """The inputs and dy in memory."""
    tensors = example.torch
    inputs = [
        placed(
            leaf.name,
            value,
            leaf_dtype(example, index, way) if leaf.floats else "",
            leaf.device,
            way.layouts.get(leaf.name, ""),
            leaf.device is not None,
        )
        if leaf.array
        else Placed(leaf.name, value)
        for index, (leaf, value) in enumerate(zip(example.leaves, at.values, strict=True))
    ]
    names = named("dy", at.dys)
    incoming = [
        placed(name, value, way.dtype, example.device, way.layouts.get("dy", ""), tensors)
        for name, value in names.items()
    ]
    return inputs, incoming


def touched(inputs: Sequence[Placed], incoming: Sequence[Placed], direction: str) -> Iterator[Fault]:
    """What was written of what is only read."""
    for each in [*inputs, *incoming]:
        stray = next(each.strays(), None)
        if stray:
            yield Fault("writes outside its arrays", stray)
        elif each.changed():
            dy = each in incoming
            kind = "writes over dy" if dy else "writes over an input"
            whose = "who else uses dy reads something else" if dy else "the caller still needs it"
            yield Fault(kind, f"the {direction} changes {each.name} in place: {whose}; work on a copy")


class AutogradKernel:
    """A kernel that autograd goes through."""

    directions = ("forward", "backward")
    writes = False
    raw = False

    def __init__(self, function: Callable[..., Any], example: Example, name: str, aliases: bool = False) -> None:
        self.function, self.example, self.name = function, example, name
        self.source = function
        self.aliases = aliases  # the definition's output shares memory with an input, too

    def forward(self, given: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        with called("forward"):
            return floats_of(self.function(*self.example.arguments(given), **taken_by(self.function, options)))

    def run(self, at: Expected, way: Way, other: Expected | None = None) -> Ran:
        """`other`: other numbers of the same shapes, for a second forward in between."""
        torch, example = sys.modules["torch"], self.example
        inputs, incoming = place_all(example, at, way)
        given = [each.given for each in inputs]
        wanted = example.wrt if way.wanted is None else way.wanted
        if "backward" not in self.directions or way.mode == "no_grad":
            wanted = ()
        for index in wanted:
            given[index] = given[index].detach().requires_grad_()
        ran = Ran()
        with ExitStack() as stack:
            if example.device is None or example.device.type == "cpu":
                stack.enter_context(poisoned(True))
            stack.enter_context(torch.enable_grad() if wanted else torch.no_grad())
            outputs = self._forward_in(way, given)
            self._check_outputs(ran, outputs, at, inputs, way)
            if ran.faults or not wanted:
                ran.faults += touched(inputs, incoming, "forward")
                return ran
            before = [each.detach().clone() for each in outputs]
            if way.mode == "two forwards" and other is not None:
                second = [each.given for each in place_all(example, other, way)[0]]
                for index in wanted:
                    second[index] = second[index].detach().requires_grad_()
                self.forward(second, way.options)
            changed = way.mode == "inputs changed in between"
            if changed:
                with torch.no_grad():
                    for index in wanted:
                        given[index].add_(1)
            self._backward(ran, outputs, incoming, given, wanted, way, at)
            if not all(torch.equal(a, b) or bool(a.isnan().any()) for a, b in zip(before, outputs, strict=True)):
                ran.faults.append(Fault("writes over its output", "the backward changes the output of the forward"))
        if not changed and not ran.faults:
            ran.faults += touched(inputs, incoming, "backward")
        return ran

    def _forward_in(self, way: Way, given: Sequence[Any]) -> list[Any]:
        torch = sys.modules["torch"]
        if way.mode == "autocast":
            with torch.autocast(self.example.device.type, torch.bfloat16):
                return self.forward(given, way.options)
        return self.forward(given, way.options)

    def _check_outputs(self, ran: Ran, outputs: list[Any], at: Expected, inputs: list[Placed], way: Way) -> None:
        names = at.outputs
        if len(outputs) != len(names):
            ran.faults.append(
                Fault("wrong number of outputs", f"the forward returns {len(outputs)} outputs, not {len(names)}")
            )
            return
        for name, output in zip(names, outputs, strict=True):
            true = at.allowed[name]
            self.take(ran, name, output, true.true.shape, way.dtype, true.own_dtype)
            if not self.aliases and output.numel():
                for each in inputs:
                    if is_tensor(each.given) and share_memory(output, each.given):
                        ran.faults.append(
                            Fault(
                                "an output shares memory with an input",
                                f"{name} shares its memory with {each.name}: who changes one changes the other",
                            )
                        )

    def take(self, ran: Ran, name: str, value: Any, shape: tuple[int, ...], dtype: str, own: str) -> None:
        """One result, if its shape, dtype and device are right."""
        device = self.example.device
        if tuple(value.shape) != shape:
            ran.faults.append(
                Fault("wrong shape", f"{name} has shape {spelled(tuple(value.shape))}, not {spelled(shape)}")
            )
        elif device is not None and value.device.type != device.type:
            ran.faults.append(Fault("wrong device", f"{name} is on {value.device}, not on {device}"))
            return
        elif own and dtype_of(value) not in (dtype, own, "float32" if dtype in ("bfloat16", "float16") else dtype):
            ran.faults.append(Fault("wrong dtype", f"{name} is {dtype_of(value)} for inputs of {dtype}, not {own}"))
        ran.results[name], ran.dtypes[name] = as_float64(value), dtype_of(value)

    def _backward(
        self,
        ran: Ran,
        outputs: list[Any],
        incoming: list[Placed],
        given: list[Any],
        wanted: Sequence[int],
        way: Way,
        at: Expected,
    ) -> None:
        torch, names = sys.modules["torch"], at.outputs
        used = [way.output] if way.output is not None else range(len(outputs))
        dtypes = [ran.dtypes[name] for name in names]
        asked = [
            (
                outputs[n],
                incoming[n].given
                if dtypes[n] == dtype_of(incoming[n].given)
                else incoming[n].given.to(outputs[n].dtype),
            )
            for n in used
            if outputs[n].requires_grad
        ]
        if not asked:
            sentence = "no output asks for a gradient though an input does: the graph is cut, or the forward detaches"
            ran.faults.append(Fault("no gradient", sentence))
            return
        twice = way.mode == "second backward of a graph"
        sources = [given[index] for index in wanted]

        def gradients(keep: bool) -> Any:
            with called("backward"):
                return torch.autograd.grad(
                    [y for y, _ in asked], sources, [dy for _, dy in asked], allow_unused=True, retain_graph=keep
                )

        if twice:
            gradients(True)
        found = gradients(False)
        for index, gradient in zip(wanted, found, strict=True):
            name = f"d{self.example.leaves[index].name}"
            shape = at.allowed[name].true.shape
            if gradient is None:
                ran.results[name], ran.dtypes[name] = np.zeros(shape), way.dtype
            else:
                self.take(ran, name, gradient, shape, leaf_dtype(self.example, index, way), "")


# A pair of functions.


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


def signature_of(function: Any) -> list[str]:
    """The names of a kernel's parameters, without a context."""
    torch, target, skip = sys.modules.get("torch"), function, 0
    if torch is not None and isinstance(function, type) and issubclass(function, torch.autograd.Function):
        made: Any = function
        target = made.forward
        skip = int(made.setup_context is torch.autograd.Function.setup_context)
    elif torch is not None and isinstance(function, torch.nn.Module):
        target = function.forward
    return [each.name for each in parameters_of(target)[skip:] if each.kind in POSITIONAL]
