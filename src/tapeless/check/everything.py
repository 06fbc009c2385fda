"""Every op and every cpu kernel, and what these checks say of planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tapeless.backends.backend import backend_named
from tapeless.check.finding import Finding
from tapeless.check.ops import check_alone, check_backend_alone
from tapeless.check.planted import Bug
from tapeless.check.ranges import check_ranges
from tapeless.check.threads import check_on_threads
from tapeless.ops import OPS

# Checks everything but the ops and the kernels that are named: what is known to be healthy need not be asked again.
Checker = Callable[[Collection[str], Collection[str]], Iterator[Finding]]


def check_ops(trusted: Collection[str] = (), trusted_on_threads: Collection[str] = ()) -> Iterator[Finding]:
    """Check every op of the reference, then every kernel of the cpu backend. The first finding is nearest to the cause.

    `trusted` ops of the reference are skipped, and so are `trusted_on_threads` kernels where threads are tried.
    """
    yield from check_reference(trusted)
    yield from check_kernels(trusted_on_threads)


def check_reference(trusted: Collection[str] = ()) -> Iterator[Finding]:
    for name in OPS:
        if name not in trusted:
            yield from check_alone(name)


def check_kernels(trusted_on_threads: Collection[str] = ()) -> Iterator[Finding]:
    """Check the cpu backend's kernels on examples, on extreme numbers and on threads."""
    cpu = backend_named("cpu")
    for name in OPS:
        yield from check_backend_alone(name, cpu)
    for name in OPS:
        yield from check_ranges(name, cpu)
    for name in OPS:
        if name not in trusted_on_threads:
            yield from check_on_threads(name)


@dataclass(frozen=True)
class BugVerdict:
    bug: Bug
    finding: Finding | None  # the first

    @property
    def caught(self) -> bool:
        return self.finding is not None

    @property
    def named(self) -> bool:
        """Whether the report points at what has the bug."""
        return self.finding is not None and self.finding.place == self.bug.where


def run_catalogue(bugs: Iterable[Bug], check: Checker = check_ops) -> Iterator[BugVerdict]:
    """Plant each bug and say what `check` finds first. It does not know what was planted, nor where.

    Only an op whose module is, object for object, what it was when it was found healthy is not asked again; on threads,
    which takes longest, one whose module is what it was before the first bug.
    """
    healthy = {name: dict(vars(op)) for name, op in OPS.items() if not any(check_alone(name))}
    on_cpu = {name: import_module(f"tapeless.ops.{name}.cpu") for name in OPS}
    before = {name: dict(vars(module)) for name, module in on_cpu.items()}
    for bug in bugs:
        with bug.plant(), np.errstate(all="ignore"):
            trusted = [name for name, was in healthy.items() if _same(vars(OPS[name]), was)]
            untouched = [name for name, was in before.items() if _same(vars(on_cpu[name]), was)]
            verdict = BugVerdict(bug, next(check(trusted, untouched), None))
        yield verdict


def _same(now: Mapping[str, Any], was: Mapping[str, Any]) -> bool:
    return now.keys() == was.keys() and all(now[name] is was[name] for name in was)
