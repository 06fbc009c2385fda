"""Who notices a mutant: the tests of the real suite, in a process of their own, forked from one that holds them all.

pytest collects once. Then, in place of its own loop over the tests, this plugin forks a child per mutant. The child
puts the mutated functions into the modules that are loaded already and runs the tests, those first that most likely
fail, until one does. Nothing is written to the source tree, and a run that is stopped leaves nothing behind.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tools.mutants.inject import check_indices, inject
from tools.mutants.make import Mutant
from tools.mutants.suite import checked_tests_for, tests_for

Send = Callable[[dict[str, str]], None]
Plan = tuple[list[pytest.Item], list[pytest.Item]]  # what judges a mutant, and what judges it with every index checked

PATIENCE = 90.0  # seconds that one test may take: many times what the slowest needs on a busy machine
MEMORY = 8 << 30
CHECKED = ", every index checked"


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    killer: str  # the test that failed; "" for a survivor
    how: str  # "failed", "crashed", "ran too long", "import", "survived"
    tests: int  # how many it took
    seconds: float


class UnhealthyError(Exception):
    """Tests that fail without any mutant: they would kill everything and prove nothing."""


class Judge:
    """The plugin. `verdicts` is called with each verdict as it comes."""

    def __init__(self, mutants: list[Mutant], jobs: int, verdict: Callable[[Verdict], None]) -> None:
        self.mutants, self.jobs, self.verdict = mutants, jobs, verdict
        self.failed: list[str] = []
        self.healthy: set[str] = set()
        self.items: dict[str, pytest.Item] = {}
        self.trouble: Exception | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        _without_shrinking()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        _warm()
        gc.freeze()  # so that children share this memory
        files = sorted({mutant.file for mutant in self.mutants})
        plans = {file: (tests_for(file, session.items), checked_tests_for(file, session.items)) for file in files}
        self.items = {item.nodeid: item for item in session.items}
        try:
            self._judge(plans)
        except Exception as trouble:  # pytest would print it as its own; the command tells it
            self.trouble = trouble
        return True

    def _judge(self, plans: dict[str, Plan]) -> None:
        waiting = iter(self.mutants)
        running: dict[int, Child] = {}
        try:
            while True:
                for mutant in _next(waiting, self.jobs - len(running)):
                    child = Child(mutant, partial(self._child, mutant, plans[mutant.file]))
                    running[child.pipe] = child
                if not running:
                    return
                for pipe in select.select(list(running), [], [], 1.0)[0]:
                    running[pipe].listen()
                for pipe, child in list(running.items()):
                    if child.done():
                        del running[pipe]
                        verdict = child.verdict()
                        self._check_health(verdict.killer)
                        self.verdict(verdict)
        finally:
            for child in running.values():
                child.kill()

    def _check_health(self, killer: str) -> None:
        """A test that has killed must pass on the code as it is. Most mutants fall to a few tests, so few are asked."""
        item = self.items.get(killer.removesuffix(CHECKED))
        if item is None or killer in self.healthy:
            return

        def work(send: Send) -> None:
            if killer.endswith(CHECKED):
                check_indices()
            self._run([item], send)

        child = Child(None, work)
        while not child.done():
            if select.select([child.pipe], [], [], 1.0)[0]:
                child.listen()
        if child.how() != "survived":
            raise UnhealthyError(f"{killer} fails on the code as it is, without any mutant.")
        self.healthy.add(killer)

    def _child(self, mutant: Mutant, plan: Plan, send: Send) -> None:
        try:
            inject(mutant)
        except Exception:
            send({"failed": "the module itself", "how": "import"})
            return
        tests, checked_tests = plan
        self._run(tests, send)
        if checked_tests and not self.failed:
            check_indices()
            inject(mutant)
            self._run(checked_tests, send, CHECKED)

    def _run(self, items: list[pytest.Item], send: Send, manner: str = "") -> None:
        """Until one fails."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            send({"failed" if self.failed else "passed": item.nodeid + manner})
            if self.failed:
                return


class Child:
    """One forked process: what it has said so far, and since when it has been silent."""

    def __init__(self, mutant: Mutant | None, work: Callable[[Send], None]) -> None:
        self.mutant, self.began = mutant, time.monotonic()
        self.heard, self.failed, self.tests, self.ended = self.began, list[str](), 0, False
        self.how_it_failed, self.status, self._rest = "failed", 0, b""
        self.pipe, end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _be_a_child(end, work)
        os.close(end)

    def listen(self) -> None:
        said = os.read(self.pipe, 65536)
        self.heard, self.ended = time.monotonic(), not said
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.tests += 1
            self.how_it_failed = message.get("how", "failed")
            if "failed" in message:
                self.failed.append(message["failed"])

    def done(self) -> bool:
        late = time.monotonic() - self.heard > PATIENCE
        if late:
            self.how_it_failed = "ran too long"
            self.failed.append("time limit")
        if late or self.ended:
            self.kill()
        return late or self.ended

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        _, self.status = os.waitpid(self.pid, 0)
        os.close(self.pipe)

    def how(self) -> str:
        if self.failed:
            return self.how_it_failed
        return "survived" if self.ended and os.WIFEXITED(self.status) and not self.status else "crashed"

    def verdict(self) -> Verdict:
        assert self.mutant is not None
        killer = self.failed[0] if self.failed else ""
        return Verdict(self.mutant, killer, self.how(), self.tests, time.monotonic() - self.began)


def _be_a_child(pipe: int, work: Callable[[Send], None]) -> None:
    """Never returns. Says goodbye with a status of its own, so that one who was silenced by a crash is told apart."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        work(partial(_send, pipe))
        code = 0
    finally:
        os._exit(code)


def _send(pipe: int, message: dict[str, str]) -> None:
    os.write(pipe, json.dumps(message).encode() + b"\n")


def _next(waiting: Iterator[Mutant], count: int) -> Iterable[Mutant]:
    return [mutant for _, mutant in zip(range(count), waiting, strict=False)]


def _warm() -> None:
    """Numba's type rules and LLVM are loaded once, here. No thread may start before the forks: so serial code only."""
    import numba

    numba.njit(lambda x: x + 1.0)(1.0)


def _without_shrinking() -> None:
    """A failing case is all that is wanted here, not the smallest; nor does a busy machine make a test unhealthy."""
    from hypothesis import HealthCheck, Phase, settings
    from tests import random_cases

    plain = random_cases.cases

    def cases(count: int) -> Any:
        kept = plain(count)
        return settings(kept, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))

    random_cases.cases = cases
