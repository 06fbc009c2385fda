"""All that `tapeless check` can say about a program, the smallest parts first: the first finding is the nearest to the
cause; and what it says of planted bugs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tapeless.backends.backend import backend_named
from tapeless.check.decoding import check_decoding
from tapeless.check.finding import Finding
from tapeless.check.models import WALKED, check_program, check_updates, check_walk
from tapeless.check.ops import check_alone, check_backend_alone
from tapeless.check.planted import Bug
from tapeless.check.ranges import check_ranges
from tapeless.check.steps import check_steps
from tapeless.check.threads import check_on_threads
from tapeless.check.training import check_training
from tapeless.ops import OPS


def check_everything(trusted: Collection[str] = (), trusted_on_threads: Collection[str] = ()) -> Iterator[Finding]:
    """Ops alone, lists of calls, whole steps and the loop (which hold whatever the gradients are), models call by call,
    decoding, and the ops of the cpu backend, on their examples, on extreme numbers and on threads. `trusted` ops of the
    reference, and those `trusted_on_threads` of the cpu backend, are not looked at again."""
    for name in OPS:
        if name not in trusted:
            yield from check_alone(name)
    for configuration in WALKED:
        yield from check_program(configuration)
    yield from check_updates()
    yield from check_steps()
    yield from check_training()
    for configuration in WALKED:
        yield from check_walk(configuration)
    yield from check_decoding()
    cpu = backend_named("cpu")
    for name in OPS:
        yield from check_backend_alone(name, cpu)
    for name in OPS:
        yield from check_ranges(name, cpu)
    for name in OPS:
        if name not in trusted_on_threads:
            yield from check_on_threads(name)


@dataclass(frozen=True)
class Verdict:
    bug: Bug
    finding: Finding | None  # the first

    @property
    def caught(self) -> bool:
        return self.finding is not None

    @property
    def named(self) -> bool:
        """The report points at what has the bug."""
        return self.finding is not None and self.finding.place == self.bug.where


def run_catalogue(bugs: Iterable[Bug]) -> Iterator[Verdict]:
    """The checkers do not know what was planted, nor where: they look at everything, the smallest parts first. Only an
    op whose module is, object for object, what it was when it was found healthy, is not asked again; on threads, which
    takes longest, one whose module is what it was before the first bug."""
    healthy = {name: dict(vars(op)) for name, op in OPS.items() if not any(check_alone(name))}
    on_cpu = {name: import_module(f"tapeless.ops.{name}.cpu") for name in OPS}
    before = {name: dict(vars(module)) for name, module in on_cpu.items()}
    for bug in bugs:
        with bug.plant(), np.errstate(all="ignore"):
            trusted = [name for name, was in healthy.items() if _same(vars(OPS[name]), was)]
            untouched = [name for name, was in before.items() if _same(vars(on_cpu[name]), was)]
            verdict = Verdict(bug, next(check_everything(trusted, untouched), None))
        yield verdict


def _same(now: Mapping[str, Any], was: Mapping[str, Any]) -> bool:
    return now.keys() == was.keys() and all(now[name] is was[name] for name in was)
