"""Plant each bug, let the checkers look, and see what they say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tapeless.check.bugs.planting import Bug
from tapeless.check.everything import check_everything
from tapeless.check.finding import Finding
from tapeless.check.ops import check_alone
from tapeless.ops import OPS


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
