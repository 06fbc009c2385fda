"""A kernel on all cases: each judged, what is wrong made small and named."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tapeless.check.own.bounds import Allowed, Compared, compare
from tapeless.check.own.definition import Definition, Expected, disagreement, expected
from tapeless.check.own.example import drawn, rounded
from tapeless.check.own.harness import RefusalError
from tapeless.check.own.naming import class_of, diagnosis
from tapeless.check.own.raw import raw_problems
from tapeless.check.own.report import Mistake, Row
from tapeless.check.own.script import script_for
from tapeless.check.own.second import second_derivative
from tapeless.check.own.table import EXTREME, HALVES, Case, Claims, cases
from tapeless.check.own.target import AutogradKernel, Kernel, KernelRaisedError, PairKernel, Ran, Way, unwritten
from tapeless.errors import TapelessError
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
class Bench:
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
            yield Problem("numbers", number_sentence(one, found, at, name), name, one, limit=blameless)

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
            yield Problem("raises", f"{error}")
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

    # All cases.

    @property
    def dtypes(self) -> list[str]:
        return self._dtypes

    def run(self, dtypes: list[str], outputs: int) -> None:
        self._dtypes = dtypes
        until = time.perf_counter() + self.claims.seconds
        raw = self.kernel.raw
        listed = list(cases(self.example, self.claims, dtypes, outputs, raw, self.seed))
        if self.claims.case is None:
            self._memory(listed[0])
        for number, case in enumerate(listed):
            title = case.title(self.example)
            if self.claims.case is not None:
                if title != self.claims.case:
                    continue
                self.seen = True
            if self.progress is not None:
                self.progress(number, len(listed), title)
            if time.perf_counter() > until and self.claims.case is None:
                self.left[case.group] += 1
            elif not self._skipped(case):
                self._try(case)
            if self.findings and (case.group == "example" or self.claims.first):
                break  # what is wrong on the example is so everywhere
            if number == 1 and not self.findings and self.claims.case is None:
                self._once(case)
        if self.progress is not None:
            self.progress(len(listed), len(listed), "")

    def _skipped(self, case: Case) -> bool:
        parts = set(case.parts()) | {("dtype", case.dtype)}
        return bool(parts & self._bad) and self.claims.case is None

    def _try(self, case: Case) -> None:
        problems = self.problems(case)
        if problems is None:
            return
        self.covered[case.group] += 1
        if any(way == "broadcast" for _, way in case.ranks):  # nobody said that it takes that
            name = self.example.leaves[case.ranks[0][0]].name
            problems = [replace(each, kind=f"{name} that is broadcast", limit=True) for each in problems]
        for problem in problems:
            if problem.limit:
                self._limited(case, problem)
        wrong = [each for each in problems if not each.limit]
        if wrong:
            self._found(case, wrong)

    def _limited(self, case: Case, problem: Problem) -> None:
        if problem.kind == f"does not take {case.dtype}":
            self.notes.append(f"{problem.kind}: {problem.sentence}")
            self._bad.add(("dtype", case.dtype))
            return
        if case.ranks and ("raises" in problem.sentence or problem.kind.startswith("does not take")):
            self.notes.append(f"{problem.kind}: {problem.sentence}")
            return
        word = problem.kind
        if problem.kind in ("no digit is right", "numbers"):
            word = " · ".join(value for kind, value in case.parts() if kind != "axis") or case.title(self.example)
            if case.dtype != self.dtypes[0]:
                word += f" in {case.dtype}"
            if case.numbers in EXTREME or len(case.parts()) > 1:
                word = case.numbers if case.numbers != "random" else word
        if word not in self.limits:
            self.limits[word] = problem.sentence

    def _memory(self, case: Case) -> None:
        """What a raw kernel leaves unwritten comes first: whatever else is said may come of it."""
        at = self.expected(case)
        if not isinstance(self.kernel, PairKernel) or not self.kernel.writes or at is None:
            return
        way = Way(case.dtype, {}, self.options(case))
        try:
            ran = self.kernel.run(at, way)
            if not ran.faults:
                for fault in unwritten(self.kernel, at, way, ran):
                    self._found(case, [Problem(fault.kind, fault.sentence)])
        except (KernelRaisedError, RefusalError):
            return  # the first case says so

    def _once(self, case: Case) -> None:
        """What is asked once: memory and threads of raw kernels; the same bits every time."""
        at = self.expected(case)
        if at is None:
            return
        try:
            if isinstance(self.kernel, PairKernel):
                for check, sentence in raw_problems(
                    self.kernel, at, Way(case.dtype, {}, self.options(case)), self, case
                ):
                    self._found(case, [Problem(check, sentence)])
            self._repeat(case, at)
        except (KernelRaisedError, RefusalError) as error:
            self._found(case, [Problem("raises", f"{error}, when it is called again")])

    def _repeat(self, case: Case, at: Expected) -> None:
        way, until = Way(case.dtype, {}, self.options(case)), time.perf_counter() + REPEAT_SECONDS
        first = self.kernel.run(at, way)
        for count in range(REPEATS):
            again = self.kernel.run(at, way)
            wrong = [each for each in self.compared(case, at, again) if not each.limit]
            if wrong:
                self._found(
                    case,
                    [
                        replace(
                            wrong[0],
                            kind="another result when called again",
                            sentence=f"{wrong[0].sentence}, at call {count + 2}",
                        )
                    ],
                )
                return
            for name, found in first.results.items():
                same = np.array_equal(found, again.results[name], equal_nan=True)
                if not same and self.claims.repeatable and "not deterministic" not in self.claims.limits:
                    self.limits.setdefault("not deterministic", f"{name} has not the same bits every time")
            if time.perf_counter() > until and count:
                return

    # What is wrong.

    def _found(self, case: Case, problems: Sequence[Problem]) -> None:
        order = {name: number for number, name in enumerate(("y", "y0", "y1", "y2"))}
        problem = min(problems, key=lambda each: (each.kind == "numbers", order.get(each.name, 9)))
        case = self._one_axis(case, problem)
        small = self._small(case, problem)
        again = self.problems(small)
        seen = next((each for each in again or () if each.like(problem)), problem)
        kind = class_of(self, small, seen, case)
        self._bad |= {part for part in case.parts() if part[0] != "wanted"} or {("dtype", case.dtype)}
        if case.changed:
            self._bad |= {("axis", name) for name in case.changed}
        if any(layout for _, layout in case.layouts):
            self._bad |= {(part[0], layout) for part in case.parts() if part[0] in ("dy", "input") for layout in _ALL}
        if any(each.kind == kind for each in self.findings):
            return
        at = self.expected(small)
        others = sorted({each.name for each in problems if each.name and each.name != seen.name})
        self.findings.append(
            Mistake(
                kind,
                seen.sentence,
                small.title(self.example),
                case.title(self.example),
                seen.compared,
                tuple(others),
                script_for(self, small, seen, at) if at is not None else "",
                tuple(at.values) if at is not None else (),
                tuple(at.dys) if at is not None else (),
            )
        )

    def _one_axis(self, case: Case, problem: Problem) -> Case:
        """Where several axes were changed: one alone, if that shows the same."""
        usual, sizes = dict(self.example.dims), dict(case.dims)
        for name in case.changed if len(case.changed) > 1 else ():
            dims = tuple((usual | {name: sizes[name]}).items())
            candidate = replace(case, dims=dims, changed=(name,))
            found = self.problems(candidate) if sizes[name] != usual[name] else None
            if any(each.like(problem) and not each.limit for each in found or ()):
                return candidate
        return case

    def _small(self, case: Case, problem: Problem) -> Case:
        """The smallest case, axis by axis, that shows the same."""
        if case.numbers == "as given" or self.claims.case is not None:
            return case

        def fails(candidate: Case) -> bool:
            found = self.problems(candidate)
            return any(each.like(problem) and not each.limit for each in found or ())

        until = time.perf_counter() + 3.0
        for name, size in case.dims:
            passing = 0
            for smaller in SIZES:
                if smaller >= size or time.perf_counter() > until:
                    break
                if self.claims.sizes.get(name) is not None and smaller not in self.claims.sizes[name]:
                    continue
                candidate = self._sized(case, name, smaller)
                if fails(candidate):
                    case, size = candidate, smaller
                    break
                passing = smaller
            while size - passing > 1 and passing and time.perf_counter() < until and name not in self.claims.sizes:
                middle = (size + passing) // 2
                candidate = self._sized(case, name, middle)
                if fails(candidate):
                    case, size = candidate, middle
                else:
                    passing = middle
        return case

    @staticmethod
    def _sized(case: Case, name: str, size: int) -> Case:
        return replace(case, dims=tuple((each, size if each == name else old) for each, old in case.dims))

    def passes(self, case: Case) -> bool:
        found = self.problems(case)
        return found is not None and not any(not each.limit for each in found)


_ALL = ("transposed", "a gap between columns", "a gap between rows", "expanded", "misaligned", "one number")


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


def primary(example: Any, claims: Claims, raw: bool) -> list[str]:
    """The dtypes in the order in which they are tried: the example's first."""
    if claims.dtypes:
        return list(claims.dtypes)
    if not example.torch:
        return ["float32"]
    given = next((leaf.dtype for index, leaf in enumerate(example.leaves) if index in example.wrt), "float32")
    first = given if given in ("float32", *HALVES) else "float32"
    others = [each for each in ("float32", "bfloat16", "float16", "float64") if each != first]
    return [first, *others] if not raw else [first]


def unknown_case(bench: Bench) -> None:
    if bench.claims.case is not None and not bench.seen:
        raise TapelessError(f"there is no case {bench.claims.case!r}: give it as a report's `again:` says it.")
