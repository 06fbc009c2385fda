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

from tapeless.check.own.definition import (
    Expected,
    dtype_of,
    floats_of,
    named,
    taken_by,
)
from tapeless.check.own.example import Example
from tapeless.check.own.harness import (
    POSITIONAL,
    RefusalError,
    first_line,
    is_tensor,
    parameters_of,
    poisoned,
    share_memory,
)
from tapeless.check.own.memory import Placed, as_float64, placed
from tapeless.inputs import spelled
from tapeless.ops.contract import Array


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
        self.in_place = False  # it may write over its inputs
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
        sources = [given[index] for index in wanted]
        if self.in_place:  # a leaf may not be written
            given = [each.clone() if is_tensor(each) else each for each in given]
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
                self.forward(
                    [each.clone() if self.in_place and is_tensor(each) else each for each in second], way.options
                )
            changed = way.mode == "inputs changed in between"
            if changed:
                with torch.no_grad():
                    for index in wanted:
                        given[index].add_(1)
            self._backward(ran, outputs, incoming, sources, wanted, way, at)
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
            if not self.aliases and not self.in_place and output.numel():
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
        sources: list[Any],
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
