"""All that can be said of one op by itself: its mathematics, and its kernels on a backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from tapeless.backends.backend import Backend, thread_count
from tapeless.check.complex_step import TensorError
from tapeless.check.finding import Finding, Judgement
from tapeless.check.lockstep import Difference
from tapeless.check.ops import check_alone, check_backend_alone, check_op, op_alone
from tapeless.check.ranges import RangeError, check_ranges, range_errors
from tapeless.check.threads import check_on_threads
from tapeless.check.tolerances import TOLERANCES
from tapeless.ops import OPS

EXACT = TOLERANCES["complex step"]


@dataclass(frozen=True, repr=False)
class OpReport(Judgement):
    """`print(report)` to read it, `if report:` to use it, `report.raise_if_wrong()` to insist."""

    name: str
    backend: str | None  # whose kernels were tried; None: the reference alone
    gradients: tuple[TensorError, ...]  # every element of every input, by complex step
    findings: tuple[Finding, ...]  # whatever is wrong
    results: tuple[Difference, ...]  # each beside the reference
    ranges: tuple[RangeError, ...]
    threads: bool  # its kernels were tried on threads

    @property
    def ok(self) -> bool:
        held = [all(each.ok for each in part) for part in (self.gradients, self.results, self.ranges)]
        return not self.findings and all(held)

    def __str__(self) -> str:
        head = f"{self.name}: {'holds' if self.ok else 'does not hold'}."
        return "\n".join([head, *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        yield from (f"wrong: {finding}" for finding in self.findings)
        yield from (
            f"wrong: the gradient of {each.tensor} is off by {each.error:.1e}, allowed {EXACT:g}"
            for each in self.gradients
            if not each.ok
        )
        yield from (f"wrong: {each}" for each in self.results if not each.ok)
        yield from (f"wrong: {each}" for each in self.ranges if not each.ok)
        if not self.ok:
            return
        yield "definition: the forward is what its definition says, and nothing that is only read is changed"
        if self.gradients:
            elements = sum(each.elements for each in self.gradients)
            yield (
                f"derivative: {len(self.gradients)} gradients, {elements:,} elements, by complex step, the worst off "
                f"by {max(each.error for each in self.gradients):.1e} (allowed {EXACT:g})"
            )
        if self.backend is None:
            yield "kernels: none were tried"
        if self.results:
            worst = max(self.results, key=lambda each: each.share)
            yield (
                f"{self.backend}: {len(self.results):,} results beside the reference, the worst at "
                f"{worst.share:.0%} of what is allowed ({worst.argument} of {worst.call.title})"
            )
        if self.threads:
            yield "threads: at sizes that thread, in every order of the parallel loops, again and again"
        if self.ranges:
            over = max(self.ranges, key=lambda each: each.share)
            kernels = {each.direction: each.values for each in self.ranges}
            yield (
                f"range: {sum(kernels.values()):,} values, zeros, denormals and 1e30 among them, the worst at "
                f"{over.share:.0%} of what is allowed ({over.result} of {over.op}.{over.direction})"
            )


def check_one(name: str, backend: Backend | None) -> OpReport:
    """An op of the reference, and its kernels on a backend: beside the reference, and on the cpu on threads and over
    the whole range of the type as well."""
    findings = list(check_alone(name))
    gradients = tuple(check_op(name)) if OPS[name].SPEC.backward and not findings else ()
    if backend is None or findings:
        return OpReport(name, None, gradients, tuple(findings), (), (), threads=False)
    findings += check_backend_alone(name, backend)
    results = () if findings else tuple(op_alone(name, backend))
    here = thread_count(backend) is not None and not findings  # kernels that have this machine's threads and memory
    if here:
        findings += [*check_on_threads(name), *check_ranges(name, backend)]
    ranges = tuple(range_errors(name, backend)) if here else ()
    return OpReport(name, backend.name, gradients, tuple(findings), results, ranges, threads=here)


def has_kernels(name: str, backend: Backend) -> bool:
    return find_spec(f"tapeless.ops.{name}.{backend.name}") is not None
