"""A kernel on one case: what its definition says there, and what is wrong."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tapeless.check.own.autograd import second_derivative
from tapeless.check.own.bounds import Allowed, Compared, compare
from tapeless.check.own.definition import Definition, Expected, disagreement, expected
from tapeless.check.own.example import drawn, rounded
from tapeless.check.own.given import Claims
from tapeless.check.own.harness import RefusalError
from tapeless.check.own.naming import diagnosis
from tapeless.check.own.pair import Kernel
from tapeless.check.own.report import Mistake, Row
from tapeless.check.own.table import HALVES, Case
from tapeless.check.own.target import AutogradKernel, KernelRaisedError, Ran, Way
from tapeless.ops.contract import Array

REPEATS, REPEAT_SECONDS = 200, 0.25
SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)  # that a case is made small to
FAR = ("numbers of 1e-25", "numbers of 1e19")  # that only PyTorch itself can be asked to take


@dataclass(frozen=True)
class Problem:
    """What is wrong at one case."""

    kind: str  # "numbers", or the class of a fault
    sentence: str
    name: str = ""  # the result
    compared: Compared | None = None
    limit: bool = False  # no mistake, but to be said

    def like(self, other: Problem) -> bool:
        return self.kind == other.kind and self.name == other.name


@dataclass
class Judge:
    """A definition, a kernel, and what has been found so far."""

    definition: Definition
    kernel: Kernel
    claims: Claims
    seed: int
    progress: Callable[[int, int, str], None] | None = None
    findings: list[Mistake] = field(default_factory=list)
    limits: dict[str, str] = field(default_factory=dict)
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    covered: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)  # in the order in which they are tried
    seen: bool = False
    _known: dict[tuple[Any, ...], Expected | None] = field(default_factory=dict)
    _bad: set[tuple[str, str]] = field(default_factory=set)

    @property
    def example(self) -> Any:
        return self.definition.example

    # What a case is compared with.

    def expected(self, case: Case) -> Expected | None:
        key = (*case.key, case.output, case.mode == "autocast")
        if key not in self._known:
            if len(self._known) > 24:
                self._known.clear()
            self._known[key] = self._expected(case)
        return self._known[key]

    def _values(self, case: Case, seed: int) -> list[Any]:
        example = self.example
        values = drawn(example, case.shapes(example), "float32" if case.mixed else case.dtype, case.numbers, seed)
        spread = {name for name, layout in case.layouts if layout == "expanded"}
        widest = max(len(leaf.axes) for leaf in example.leaves if leaf.floats)
        for index, leaf in enumerate(example.leaves):
            if leaf.name in spread:
                values[index][...] = values[index][:1]
            if case.mixed and leaf.floats and len(leaf.axes) == widest:
                values[index] = rounded(values[index], case.dtype)
        if case.same is not None:
            values[case.same[1]] = values[case.same[0]]
        return values

    def dy_of(self, case: Case) -> Callable[[list[Array]], list[Array]]:
        layout = dict(case.layouts).get("dy", "")

        def made(outputs: list[Array]) -> list[Array]:
            found = []
            for number, output in enumerate(outputs):
                dy = rounded(
                    dy_numbers(self.example.torch, output.shape, case.seed(self.seed) + 1 + number), case.dtype
                )
                if case.numbers == "positive":
                    dy = np.abs(dy)
                if layout == "one number":
                    dy = np.ones(output.shape)
                elif layout == "expanded" and output.ndim > 1:
                    dy = np.array(np.broadcast_to(dy[:1], output.shape))
                found.append(0 * dy if case.output not in (None, number) else dy)
            return found

        return made

    def _expected(self, case: Case) -> Expected | None:
        directions = self.kernel.directions
        at = expected(
            self.definition,
            self._values(case, case.seed(self.seed)),
            self.dy_of(case),
            case.dtype,
            self.options(case),
            finite=case.numbers != "NaN",
            gradients="backward" in directions and self.definition.way != "none",
            rounding="bfloat16" if case.mode == "autocast" else "",
            own=case.mode != "autocast",
        )
        if at is None or case.same is None:
            return at
        one, other = (f"d{self.example.leaves[index].name}" for index in case.same)
        both = [at.allowed[one], at.allowed[other]]
        own = None if both[0].own is None or both[1].own is None else both[0].own + both[1].own
        total = Allowed(
            both[0].true + both[1].true,
            both[0].spread + both[1].spread,
            both[0].terms,
            both[0].reduces,
            own,
            both[0].own_dtype,
        )
        return replace(at, allowed=at.allowed | {one: total})

    def options(self, case: Case) -> dict[str, Any]:
        usual = {
            name: values[0] if isinstance(values, list | tuple) else values
            for name, values in self.claims.options.items()
        }
        return usual | dict(case.options)

    # One case.

    def problems(self, case: Case) -> list[Problem] | None:
        """None where the definition does not take it."""
        at = self.expected(case)
        if at is None:
            return None
        if case.numbers == "NaN":
            return self._nan_problems(case, at)
        if case.mode == "double backward":
            return self._second(case, at)
        found: list[Problem] = []
        if (
            self.definition.way in ("itself", "backward")
            and case.mode == ""
            and case.same is None
            and not case.layouts
            and case.numbers in ("random", "as given")
        ):
            doubt = disagreement(self.definition, at, self.options(case), self.seed)
            if doubt:
                return [Problem("the backward is not the derivative of the forward", doubt)]
        way = Way(case.dtype, dict(case.layouts), self.options(case), case.mode, case.wanted, case.output, case.mixed)
        try:
            ran = self._run(at, way, case)
        except KernelRaisedError as error:
            return list(self._raised(case, error))
        except RefusalError as refusal:
            return [Problem("returns something else", str(refusal).rstrip("."))]
        for fault in ran.faults:
            declared = fault.kind.startswith("writes over") and "in place" in self.claims.limits
            found.append(Problem(fault.kind, fault.sentence, limit=declared))
        return found + list(self.compared(case, at, ran))

    def _run(self, at: Expected, way: Way, case: Case) -> Ran:
        other = None
        if case.mode == "two forwards":
            elsewhere = self._values(case, case.seed(self.seed) + 77)
            other = replace(at, values=elsewhere)
        if case.same is not None and isinstance(self.kernel, AutogradKernel):
            return _as_one(self.kernel, at, way, case.same)
        return self.kernel.run(at, way, other)

    def compared(self, case: Case, at: Expected, ran: Ran) -> Iterator[Problem]:
        computed = "bfloat16" if case.mode == "autocast" and case.dtype == "float32" else case.dtype
        for name, found in ran.results.items():
            if name not in at.allowed or found.shape != at.allowed[name].true.shape:
                continue
            one = compare(name, found, ran.dtypes.get(name, case.dtype), computed, at.allowed[name])
            if one.ok:
                self._keep_row(case, one)
                if one.limited:
                    yield Problem("no digit is right", self._limit_text(case, name), name, one, limit=True)
                continue
            if (
                case.dtype == "float64" != self.dtypes[0]
                and compare(name, found, "float32", "float32", _as_float32(at, name)).ok
            ):
                yield Problem("does not take float64", f"{name} has the digits of float32 alone", name, one, limit=True)
                continue
            blameless = case.numbers in FAR and self.definition.way in ("itself", "complex step")
            if case.mode == "inputs changed in between":
                sentence = f"{name} is computed from the input as it is after the change, and nothing is raised"
                yield Problem("inputs changed in between", f"{sentence}: keep tensors by save_for_backward", name, one)
                continue
            foreign = case.dtype in HALVES and case.dtype != self.dtypes[0] and at.allowed[name].reduces
            kind = f"sums in {case.dtype}" if foreign and np.isfinite(one.found) else "numbers"
            sentence = number_sentence(one, found, at, name)
            yield Problem(kind, sentence, name, one, limit=blameless or kind != "numbers")

    def _limit_text(self, case: Case, name: str) -> str:
        return f"{name} has no right digit at {case.title(self.example)}, and PyTorch in {case.dtype} has none either"

    def _keep_row(self, case: Case, one: Compared) -> None:
        key = (one.name, case.dtype)
        if key not in self.rows or self.rows[key].compared.share < one.share:
            self.rows[key] = Row(one, case.dtype, case.title(self.example))

    def _raised(self, case: Case, error: KernelRaisedError) -> Iterator[Problem]:
        """What a kernel refuses in words of its own it need not take; what breaks on the way it should."""
        kinds = {kind for kind, _ in case.parts()}
        empty = 0 in dict(case.dims).values()
        if case.mode == "inputs changed in between" and error.direction == "backward":
            return  # PyTorch says the same
        forward = error.direction == "forward"
        foreign = case.dtype != self.dtypes[0] or case.mixed
        if case.group == "example":
            leaf = "a leaf Variable that requires grad" in str(error)
            yield Problem("writes over an input" if leaf else "raises", f"{error}")
            return
        limit = (
            error.declared
            or empty
            or foreign
            or (forward and bool(kinds & {"rank", "mode"}))
            or case.mode == "autocast"
        )
        kind = "raises" if not limit else f"does not take {self._untaken(case)}"
        yield Problem(kind, f"{error}", limit=limit)

    def _untaken(self, case: Case) -> str:
        if case.dtype != self.dtypes[0]:
            return case.dtype
        if case.ranks:
            return "an axis more" if case.ranks[0][1] == "one axis more" else "a broadcast axis"
        if 0 in dict(case.dims).values():
            return "an axis of size 0"
        return " · ".join(value for _, value in case.parts()) or case.title(self.example)

    def _nan_problems(self, case: Case, at: Expected) -> list[Problem]:
        outputs = {name: at.allowed[name].true for name in at.outputs}
        if not any(np.isnan(each).any() for each in outputs.values()):
            return []
        try:
            ran = self.kernel.run(at, Way(case.dtype, {}, self.options(case)))
        except (KernelRaisedError, RefusalError):
            return []
        seen = {name: ran.results[name] for name in outputs if name in ran.results}
        if seen and not any(np.isnan(each).any() for each in seen.values()):
            return [
                Problem(
                    "NaN", f"a NaN in the input is not seen in {', '.join(seen)}: it is swallowed", next(iter(seen))
                )
            ]
        return []

    def _second(self, case: Case, at: Expected) -> list[Problem]:
        if self.definition.way != "autograd" or not isinstance(self.kernel, AutogradKernel):
            return []
        wrong = second_derivative(self.definition, self.kernel.function, at, case.dtype, self.options(case))
        return [Problem("no second derivative", wrong, limit=True)] if wrong else []

    def passes(self, case: Case) -> bool:
        found = self.problems(case)
        return found is not None and not any(not each.limit for each in found)


def dy_numbers(tensors: bool, shape: tuple[int, ...], seed: int) -> Array:
    if tensors:
        torch = sys.modules["torch"]
        generator = torch.Generator().manual_seed(seed)
        return np.asarray(torch.empty(shape).uniform_(-2, 2, generator=generator).numpy())
    return np.asarray(np.random.default_rng(seed).uniform(-2, 2, shape), np.float32)


def number_sentence(one: Compared, found: Array, at: Expected, name: str) -> str:
    place = f" at {one.where}" if one.where else ""
    own = "" if one.torch is None else f"; PyTorch's own error is {one.torch:.3g}"
    hint = diagnosis(name, found, at)
    return (
        f"{name} is {one.found!r}{place}, the definition says {one.true!r} (off by {one.error:.3g} ulps, allowed "
        f"{one.allowed:.3g}{own}){hint}"
    )


def _as_float32(at: Expected, name: str) -> Allowed:
    """What a kernel may lose that computes in float32 whatever it is given."""
    one = at.allowed[name]
    return replace(one, spread=one.spread * 2.0**29, own=None)


def _as_one(kernel: AutogradKernel, at: Expected, way: Way, same: tuple[int, int]) -> Ran:
    """One tensor in two places."""
    first, second = same
    inner = kernel.function
    place = {leaf: number for number, leaf in enumerate(_flat(kernel.example.tree))}

    def function(*arguments: Any, **options: Any) -> Any:
        given = list(arguments)
        given[place[second]] = given[place[first]]
        return inner(*given, **options)

    if any(not isinstance(each, int) for each in kernel.example.tree):
        return Ran()
    return AutogradKernel(function, kernel.example, kernel.name, kernel.aliases).run(at, way)


def _flat(tree: Sequence[Any]) -> list[int]:
    return [leaf for each in tree for leaf in ([each] if isinstance(each, int) else _flat(each))]
