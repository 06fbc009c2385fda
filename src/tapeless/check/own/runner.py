"""A kernel on all cases: what is wrong is made small and named."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tapeless.check.own.definition import Expected
from tapeless.check.own.given import Claims
from tapeless.check.own.harness import RefusalError
from tapeless.check.own.judge import Judge, Problem
from tapeless.check.own.naming import class_of
from tapeless.check.own.pair import PairKernel, unwritten
from tapeless.check.own.raw import raw_problems
from tapeless.check.own.report import Mistake
from tapeless.check.own.script import script_for
from tapeless.check.own.table import EXTREME, HALVES, Case, cases
from tapeless.check.own.target import KernelRaisedError, Way
from tapeless.errors import TapelessError

REPEATS, REPEAT_SECONDS = 200, 0.25
SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)  # that a case is made small to


class Bench(Judge):
    """A definition, a kernel, and all cases."""

    def run(self, dtypes: list[str], outputs: int) -> None:
        self.dtypes = dtypes
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


_ALL = ("transposed", "a gap between columns", "a gap between rows", "expanded", "misaligned", "one number")


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
