"""Saving a training: the one object that writes a run's metrics, its history and its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from tapeless.files.disk import UnwritableError, retried
from tapeless.train import checkpoint
from tapeless.train.chance import chance
from tapeless.train.loop import Evaluated, Event, Finished, Logged, SaveDue, Spiked, Trainer
from tapeless.train.metrics import Recorder
from tapeless.train.run import Run


class Keeper:
    """A callback of `train` that keeps what happens in a run's folder.

    Metrics and history that do not reach the disk wait in memory for the next checkpoint. A checkpoint is written only
    when all that was recorded before it is on the disk, so a run that goes on from it lacks nothing. If that fails it
    is tried again for some seconds; then the training ends with a sentence that says where the last good checkpoint is.
    """

    def __init__(
        self, run: Run, trainer: Trainer, recorder: Recorder, identity: Mapping[str, Any], *, complete: bool = False
    ) -> None:
        """`identity`: what makes the run the run it is. `complete`: its end is recorded already."""
        self.run, self.trainer, self.recorder = run, trainer, recorder
        self._identity, self._complete = dict(identity), complete
        self._saved: tuple[int, int] | None = None  # the step of the newest checkpoint, and batches of the next

    @property
    def last_saved(self) -> int | None:
        """The step of the newest checkpoint."""
        return None if self._saved is None else self._saved[0]

    def begin(self) -> None:
        """Keep what is known of a training before its first update."""
        trainer = self.trainer
        self.recorder.note("start", 0, **chance(trainer.model, trainer.task, trainer.first_spread))
        if trainer.recording:
            trainer.recording.snapshots.take(0)

    def resumed(self) -> None:
        """The training stands where its newest checkpoint does."""
        self._saved = self.trainer.step, self.trainer.added

    def __call__(self, event: Event) -> None:
        self._note(event)
        if isinstance(event, SaveDue):
            self.save(event.best)
        elif isinstance(event, Finished):
            self._finish()
        else:
            with suppress(UnwritableError):  # what waits is tried again with the next event
                self._write()

    def save(self, best: bool = False) -> None:
        """What there is to record, then a checkpoint."""
        retried(lambda: self._save(best))

    def _finish(self) -> None:
        if self._saved != (self.trainer.step, self.trainer.added):
            self.save()
        else:
            retried(lambda: self._write(now=True))

    def _save(self, best: bool) -> None:
        trainer, folder = self.trainer, self.run.checkpoints
        self._write(now=True)
        with trainer.phases("save"):
            state = trainer.state() | {"run": self._identity}
            checkpoint.save(folder, trainer.step, trainer.tensors(), state, keep=trainer.settings.keep, best=best)
        self._saved = trainer.step, trainer.added

    def _write(self, now: bool = False) -> None:
        """`now`: when this returns, it also survives a power cut."""
        try:
            self.recorder.write()
            if self.trainer.recording:
                self.trainer.recording.write(now)
            if now:
                self.recorder.sync()
        except UnwritableError as error:
            raise UnwritableError(f"{error} {checkpoint.standing(self.run.checkpoints)}.") from None

    def _note(self, event: Event) -> None:
        note = self.recorder.note
        if isinstance(event, Logged):
            values = asdict(event.step) | {
                "gradient_norms": event.gradient_norms,
                "update_ratios": event.update_ratios,
                "tokens_per_second": event.tokens_per_second,
                "phases": event.phases,
            }
            note("step", values.pop("number"), **values)
        elif isinstance(event, Evaluated):
            found = asdict(event)
            note("evaluation", found.pop("step"), **found.pop("measured"), **found)
        elif isinstance(event, Spiked):
            note("spike", event.step, message=event.message)
        elif isinstance(event, Finished) and not self._complete:
            note("stop", self.trainer.step, reason=event.reason)
