"""python -m tools.kills: trainings that are killed again and again, each compared with one that was not.

A training is a process that this one forks, so that a life costs no import. It is killed by SIGKILL: entering a phase
or leaving it, before, midway through or after a file operation in it, or at any moment by the clock. Then it is
resumed, until it comes to its end; all that it has recorded must be, byte for byte, what an uninterrupted training
records, save what tells the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tapeless.cli import main as command_line
from tapeless.files import disk
from tapeless.train import checkpoint, keeping, loop, session
from tapeless.train.history import recording

CLOCK = {"tokens_per_second", "phases"}  # what metrics say of time
PHASES = ("start", "update", "recording", "evaluation", "save", "report")
ANY = "any moment"
TEXT = "".join(f"the {number} quick brown foxes jump over {number + 1} lazy dogs.\n" * 8 for number in range(12))
SMALL = (
    "--set",
    "layers=1",
    "--set",
    "channels=8",
    "--set",
    "heads=2",
    "--threads",
    "1",
    "--set",
    "products=own",
    "--record",
    "2",
    "--set",
    "record_tensors=3,17",
    "--save-every",
    "5",
    "--eval-every",
    "3",
    "--set",
    "log_every=2",
)
TRAININGS = {
    "operations": ("ops-102k", "--batch", "100", "--steps", "40", *SMALL),
    "text": (
        "gpt2-4x256",
        "--data",
        "text.txt",
        "--time",
        "8",
        "--batch",
        "4",
        "--steps",
        "30",
        "--accumulate",
        "2",
        "--dropout",
        "0.1",
        "--frozen",
        "tokens.*",
        "--set",
        "lean=false",
        *SMALL,
    ),
}
MOST_RECORD, MOST_SNAPSHOTS = 90_000, 70_000  # bytes: both are thinned on the way


class Life:
    """In the process that is to be killed: counts what happens in each phase, and ends at the number-th of one."""

    def __init__(self, phase: str, number: int) -> None:
        self.phase, self.number = phase, number
        self.inside = ["start"]
        self.seen: Counter[str] = Counter()

    def happens(self) -> bool:
        """Whether this is where it ends."""
        self.seen[self.inside[-1]] += 1
        return self.inside[-1] == self.phase and self.seen[self.phase] == self.number

    def moment(self) -> None:
        if self.happens():
            os.kill(os.getpid(), signal.SIGKILL)

    def perform(self, operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.moment()
        if operation is os.write and self.happens():
            os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        result = operation(*arguments, **named)
        self.moment()
        return result

    def around(self, owner: Any, name: str, phase: str) -> None:
        right = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.inside.append(phase)
            self.moment()
            try:
                result = right(*arguments, **named)
                self.moment()
                return result
            finally:
                self.inside.pop()

        setattr(owner, name, watched)

    def live(self, words: tuple[str, ...]) -> int:
        disk.perform = self.perform
        self.around(loop.Trainer, "batch", "update")
        self.around(loop.Trainer, "evaluate", "evaluation")
        self.around(keeping.Keeper, "_write", "recording")
        self.around(checkpoint, "save", "save")
        train = session.Session.train

        def trained(*arguments: Any, **named: Any) -> Any:
            self.inside[0] = "update"
            finished = train(*arguments, **named)
            self.inside[0] = "report"
            self.moment()
            return finished

        setattr(session.Session, "train", trained)  # noqa: B010 (a method is put in another's place)
        sys.argv = ["tapeless", *words]
        self.moment()
        try:
            command_line()
        except SystemExit as ended:
            self.moment()
            return int(ended.code or 0)
        return 0


def forked(words: tuple[str, ...], folder: Path, life: Life, seconds: float | None = None) -> int:
    """The exit status of a training in a process of its own; minus nine where it was killed."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.chdir(folder)
            for name, descriptor in (("said", 1), ("complained", 2)):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            status = life.live(words)
            Path("seen.json").write_text(json.dumps(life.seen), encoding="utf-8")
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    if seconds is not None:
        time.sleep(seconds)  # no event is waited for: the moment is to be any
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def warm(words: tuple[str, ...], folder: Path) -> None:
    """What a training compiles or loads is here before any is forked."""
    before = Path.cwd()
    os.chdir(folder)
    sys.argv = ["tapeless", "train", *words, "--out", "warm"]
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.suppress(SystemExit),
    ):
        command_line()
    shutil.rmtree("warm")
    os.chdir(before)


def recorded(run: Path) -> dict[str, Any]:
    """Everything in a run's folder by its path: bytes, and lines of metrics without what the clock said."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.name == "metrics.jsonl":
            lines = map(json.loads, path.read_text().splitlines())
            found[name] = [{key: value for key, value in line.items() if key not in CLOCK} for line in lines]
        elif path.name == checkpoint.BEST:
            found[name] = json.loads(path.read_bytes())["step"]
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def differing(run: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    return sorted(name for name in run.keys() | whole.keys() if run.get(name) != whole.get(name))


class Trial:
    """One kind of training, killed at many moments."""

    def __init__(self, kind: str, place: Path, rng: random.Random) -> None:
        self.words, self.place, self.rng = TRAININGS[kind], place / kind, rng
        self.place.mkdir()
        (self.place / "text.txt").write_text(TEXT)
        warm(self.words, self.place)
        self.run = self.place / "run"
        begun = time.perf_counter()
        self.live(PHASES[0], 0)
        self.seconds = time.perf_counter() - begun
        self.seen: dict[str, int] = json.loads((self.place / "seen.json").read_text())
        self.whole = recorded(self.run)
        shutil.rmtree(self.run)

    def live(self, phase: str, number: int, seconds: float | None = None) -> int:
        begun = (self.run / "config.toml").exists()
        if not begun and self.run.exists():
            shutil.rmtree(self.run)  # it never began, and says so
        words = ("train", "--resume", "run") if begun else ("train", *self.words, "--out", "run")
        status = forked(words, self.place, Life(phase, number), seconds)
        if status not in (0, -signal.SIGKILL):
            said = (self.place / "complained").read_text() + (self.place / "said").read_text()
            raise SystemExit(f"{' '.join(words)} in {self.place} ended with {status}, killed in {phase}: {said}")
        return status

    def kill(self, phase: str) -> bool:
        """Whether this life was killed; where it came to its end instead, it has been compared."""
        number = self.rng.randint(1, max(1, self.seen.get(phase, 1) // (1 if phase in ("start", "report") else 3)))
        status = self.live(phase, number, self.rng.uniform(0, self.seconds) if phase == ANY else None)
        if status == 0 and phase != ANY:
            self.compare()
        return status != 0

    def finish(self) -> None:
        if self.run.exists():
            self.live(PHASES[0], 0)
            self.compare()

    def compare(self) -> None:
        wrong = differing(recorded(self.run), self.whole)
        if wrong:
            raise SystemExit(f"{self.run}: not what an uninterrupted training records: {', '.join(wrong)}")
        shutil.rmtree(self.run)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None, help="of the moments; by default others each time")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    for room, name, most in ((session, "StepRecording", MOST_RECORD), (recording, "Snapshots", MOST_SNAPSHOTS)):
        setattr(room, name, partial(getattr(room, name), most=most))
    rng, counted, compared = random.Random(seed), Counter[str](), 0
    place = Path(tempfile.mkdtemp(prefix="tapeless-kills-"))
    print(f"seed {seed}, in {place}", flush=True)
    trials = [Trial(kind, place, rng) for kind in TRAININGS]
    phases = (*PHASES, ANY)
    while counted.total() < options.kills:
        phase, trial = phases[counted.total() % len(phases)], trials[rng.randrange(len(trials))]
        if trial.kill(phase):
            counted[phase] += 1
            if sys.stdout.isatty() or counted.total() % 50 == 0:
                print(f"{counted.total()} of {options.kills} kills, {compared} trainings compared", flush=True)
        elif phase != ANY:
            compared += 1
    for trial in trials:
        compared += trial.run.exists()
        trial.finish()
    shutil.rmtree(place)
    told = ", ".join(
        f"{counted[phase]} in {phase}" if phase != ANY else f"{counted[phase]} at {phase}" for phase in phases
    )
    print(f"{counted.total()} kills ({told}): all {compared} trainings recorded what uninterrupted ones do.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
