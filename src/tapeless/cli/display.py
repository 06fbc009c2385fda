"""The progress of a training: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from tapeless.cli.common import console
from tapeless.train.loop import Evaluated, Event, Logged, Spiked, Step
from tapeless.train.session import Session

WIDE, MEDIUM = 100, 64  # columns from which there is room for everything, and for a bar and the speed
QUIET_SECONDS = 10.0  # between lines of a log
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}  # with the exit status that shells know them by


class Display:
    """Shows a training while it runs, and knows afterwards how it went."""

    def __init__(self, session: Session, shown: bool) -> None:
        self.session, self.shown = session, shown
        self.losses: list[float] = []
        self.evaluations: list[Evaluated] = []
        self.reason = ""
        self.signal: int | None = None
        self.live = shown and console.is_terminal
        self._said = time.perf_counter()
        self._progress = Progress(*_columns(), console=console, transient=True, disable=not self.live)
        trainer = session.trainer
        self._task = self._progress.add_task(
            "", total=trainer.steps, completed=trainer.step, loss=float("nan"), lr=0.0, norm=0.0, speed=""
        )

    @property
    def code(self) -> int:
        """What to exit with."""
        return 0 if self.signal is None else SIGNALS[signal.Signals(self.signal)]

    def stopping(self) -> str | None:
        return None if self.signal is None else f"stopped by {signal.Signals(self.signal).name}"

    def __enter__(self) -> Self:
        self._progress.start()
        self._before = {each: signal.signal(each, self._stop) for each in SIGNALS}
        return self

    def __exit__(self, *raised: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)
        self._progress.stop()

    def _stop(self, number: int, frame: Any) -> None:
        """The first Ctrl-C or SIGTERM asks for an end after the batch at hand; the second ends at once."""
        self.signal = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        with suppress(RuntimeError):  # it came in the middle of a write, into which another cannot be put
            self.say("[yellow]finishing this batch, then saving; Ctrl-C again leaves at once[/]")

    def say(self, text: str) -> None:
        if self.shown:
            self._progress.console.print(text, markup=True)

    def show(self, event: Event) -> None:
        if isinstance(event, Step):
            self.losses.append(event.loss)
            values: dict[str, Any] = {"loss": event.loss, "lr": event.lr, "norm": event.gradient_norm}
            self._progress.update(self._task, completed=event.number, **values)
        elif isinstance(event, Logged):
            speed = f"{event.tokens_per_second:,.0f} tok/s"
            self._progress.update(self._task, speed=speed)
            if not self.live and time.perf_counter() - self._said > QUIET_SECONDS:
                self._said = time.perf_counter()
                step = event.step
                self.say(f"step {step.number:,}/{self.session.trainer.steps:,}   loss {step.loss:.4f}   {speed}")
        elif isinstance(event, Evaluated):
            self.evaluations.append(event)
            self.say(shown_line(event, self.losses))
        elif isinstance(event, Spiked):
            self.say(f"[yellow]step {event.step}: {escape(event.message)}[/]")


def shown_line(event: Evaluated, losses: Sequence[float]) -> str:
    """What is printed of an evaluation, after updates with these losses."""
    found = event.measured
    trained = losses[-1] if found.train_loss is None and losses else found.train_loss
    parts = [f"epoch {event.epoch:>5.2f}   step {event.step:>6,}"]
    if trained is not None:
        parts.append(f"loss {trained:.4f}")
    parts.append(f"held out [bold]{found.loss:.4f}[/]")
    if found.accuracy is not None:
        parts.append(f"right [bold]{found.accuracy:7.2%}[/]")
    if found.cross_entropy is not None:
        parts.append(f"cross-entropy {found.cross_entropy:.3f}")
    return "   ".join(parts) + ("  [green]best[/]" if event.best else "")


def _columns() -> list[ProgressColumn]:
    """As many as fit: a line that wraps would fill the screen with itself."""
    counted: list[Any] = [TextColumn("{task.completed:,.0f}/{task.total:,.0f}  loss {task.fields[loss]:.4f}")]
    if console.width < MEDIUM:
        return counted
    details = "lr {task.fields[lr]:.1e}  ‖d‖ {task.fields[norm]:.2f}  " if console.width >= WIDE else ""
    speed = TextColumn(details + "{task.fields[speed]}")
    return [counted[0], BarColumn(bar_width=None), speed, TimeRemainingColumn()]
