"""Bugs of the training around the model: zeroing, accumulation, schedules, data, resuming."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tapeless.model import Model, Stepped
from tapeless.ops import OPS
from tapeless.ops.contract import Array
from tapeless.tasks.data import batches
from tapeless.train.loop import Step, Trainer
from tapeless.train.schedules import Schedule
from tests.bugs.planting import Bug, Plant, around, replaced

_forward_backward, _next = Model.forward_backward, batches.Batches.__next__
_batch, _draw, _restore, _evaluation = (
    Trainer.batch,
    Trainer._draw,
    Trainer.restore,
    batches._evaluation_batches,
)


class _Through:
    """A model whose loop-facing half is another; the rest is the model's own."""

    def __init__(self, model: Model, trainer: Trainer, change: Any) -> None:
        self._model, self._trainer, self._change = model, trainer, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward_backward(self, inputs: Any, targets: Any, *, accumulate: bool, count: int) -> float:
        changed: float = self._change(self._model, self._trainer, inputs, targets, accumulate, count)
        return changed

    def step(self, inputs: Any, targets: Any, *, lr: float, clip: float | None, **added: Any) -> Stepped:
        self.forward_backward(inputs, targets, **added)
        self._model.prepare_update(lr, clip)
        return self._model._ran("clip", "update")


def _loop_calls(change: Any) -> Plant:
    """The loop calls the model differently: change(model, trainer, inputs, targets, accumulate, count)."""

    def batch(self: Trainer) -> Step | None:
        right = self.model
        self.model = _Through(right, self, change)  # type: ignore[assignment]
        try:
            return _batch(self)
        finally:
            self.model = right

    return replaced(Trainer, "batch", batch)


def _own_count(targets: Array) -> int:
    return max(1, int((targets >= 0).sum()))


def _sum_of_means(model: Model, trainer: Trainer, inputs: Any, targets: Any, accumulate: bool, count: int) -> float:
    return model.forward_backward(inputs, targets, accumulate=accumulate, count=_own_count(targets))


def _mean_of_means(model: Model, trainer: Trainer, inputs: Any, targets: Any, accumulate: bool, count: int) -> float:
    own = _own_count(targets) * trainer.settings.accumulate
    return model.forward_backward(inputs, targets, accumulate=accumulate, count=own)


def _last_only(model: Model, trainer: Trainer, inputs: Any, targets: Any, accumulate: bool, count: int) -> float:
    return model.forward_backward(inputs, targets, count=count)


def _never_zeroed(model: Model, trainer: Trainer, inputs: Any, targets: Any, accumulate: bool, count: int) -> float:
    return model.forward_backward(inputs, targets, accumulate=True, count=count)


def _clipped_each(model: Model, trainer: Trainer, inputs: Any, targets: Any, accumulate: bool, count: int) -> float:
    share = model.forward_backward(inputs, targets, accumulate=accumulate, count=count)
    norm = float(np.sqrt(sum(float((g * g).sum()) for g in model.grads.values())))
    for gradient in model.grads.values():
        gradient *= min(1.0, (trainer.settings.clip or np.inf) / (trainer.settings.accumulate * norm))
    return share


def _same_batch(model: Model, trainer: Trainer, inputs: Any, targets: Any, accumulate: bool, count: int) -> float:
    inputs, targets = trainer._next.batches[0]
    return model.forward_backward(inputs, targets, accumulate=accumulate, count=max(count, _own_count(targets)))


def _rate_of(shift: Any) -> Plant:
    """The loop asks the schedule for another update's rate: shift(trainer)."""

    def batch(self: Trainer) -> Step | None:
        right = self.schedule
        self.schedule = _Shifted(right, shift(self))  # type: ignore[assignment]
        try:
            return _batch(self)
        finally:
            self.schedule = right

    return replaced(Trainer, "batch", batch)


class _Shifted:
    def __init__(self, schedule: Schedule, step: int) -> None:
        self.schedule, self.step = schedule, step

    def at(self, step: int) -> float:
        return self.schedule.at(self.step)


def _counted_with_padding(self: Trainer) -> None:
    _draw(self)
    self._next.count = sum(int(targets.size) for _, targets in self._next.batches)


def _restored_without(*forgotten: str) -> Plant:
    """Restoring leaves out some of the state."""

    def restore(self: Trainer, checkpoint: Any) -> None:
        kept = {"updates": self.model.steps, "step": self.step, "data": self.batches.state()}
        state = {key: kept[key] if key in forgotten else value for key, value in checkpoint.state.items()}
        _restore(self, _Partial(checkpoint, state, forgotten))  # type: ignore[arg-type]

    return replaced(Trainer, "restore", restore)


class _Partial:
    def __init__(self, checkpoint: Any, state: dict[str, Any], forgotten: tuple[str, ...]) -> None:
        self._checkpoint, self.state, self._forgotten = checkpoint, state, forgotten

    def read(self, stem: str, like: Any, write: Any) -> None:
        if stem not in self._forgotten:
            self._checkpoint.read(stem, like, write)


def _all_targets_counted(right: Any, self: Model, inputs: Any, targets: Any, count: int | None = None) -> None:
    right(self, inputs, targets, int(np.asarray(targets).size) if count is None else count)


def _count_ignored(
    self: Model, inputs: Any, targets: Any, *, accumulate: bool = False, count: int | None = None
) -> float:
    return _forward_backward(self, inputs, targets, accumulate=accumulate, count=None)


def _accumulate_ignored(
    self: Model, inputs: Any, targets: Any, *, accumulate: bool = False, count: int | None = None
) -> float:
    return _forward_backward(self, inputs, targets, accumulate=False, count=count)


def _zero_forgotten(
    self: Model, inputs: Any, targets: Any, *, accumulate: bool = False, count: int | None = None
) -> float:
    return _forward_backward(self, inputs, targets, accumulate=True, count=count)


def _rate(at: Any) -> Plant:
    return replaced(Schedule, "at", at)


def _warm_up_from_zero(self: Schedule, step: int) -> float:
    return self.lr * step / self.warmup if step < self.warmup else _at(self, step)


def _whole_length(self: Schedule, step: int) -> float:
    return _at(self, step) if step < self.warmup else self.lr * self._share(min(step, self.steps))


def _one_early(self: Schedule, step: int) -> float:
    return _at(self, step + 1)


def _unbounded(self: Schedule, step: int) -> float:
    return _at(self, step) if step < self.warmup else self.lr * self._share(step - self.warmup)


_at = Schedule.at


def _target_is_input(self: Any) -> tuple[Array, Array]:
    inputs, _ = _next(self)
    return inputs, inputs.copy()


def _target_after_next(self: Any) -> tuple[Array, Array]:
    inputs, targets = _next(self)
    return inputs, np.roll(targets, -1, axis=1)


def _padding_as_targets(*args: Any) -> Iterator[tuple[Array, Array]]:
    for inputs, targets in _evaluation(*args):
        yield inputs, np.maximum(targets, 0)


BUGS = (
    Bug(
        "zero-does-nothing",
        "zero",
        "The fill that should zero the gradients does not.",
        "Gradients of all steps so far are added up; the loss falls, then explodes.",
        replaced(OPS["zero"], "forward", lambda y: None),
    ),
    Bug(
        "gradients-not-zeroed",
        "zero in model",
        "forward_backward always adds.",
        "Like momentum of 1: the loss falls, then explodes.",
        replaced(Model, "forward_backward", _zero_forgotten),
        public="micrograd, pull request 102: inner nodes keep their gradients; every autograd beginner once.",
    ),
    Bug(
        "accumulate-ignored",
        "accumulation in model",
        "forward_backward always starts from zero.",
        "Of the batches of an update only the last counts.",
        replaced(Model, "forward_backward", _accumulate_ignored),
    ),
    Bug(
        "count-ignored",
        "accumulation in model",
        "Each batch is divided by its own targets, whatever count says.",
        "Accumulated gradients are as many times too large as there are batches.",
        replaced(Model, "forward_backward", _count_ignored),
        public="nanoGPT, issue 206, discusses it; torchtune, pull request 1875, fixes it.",
    ),
    Bug(
        "mean-over-all-positions",
        "feed in model",
        "The loss is divided by all positions, ignored ones too.",
        "The more padding, the smaller loss and gradient.",
        around(Model, "feed", _all_targets_counted),
    ),
    Bug(
        "sum-of-means",
        "loop",
        "The gradients of accumulated batches are added without dividing.",
        "The learning rate is effectively multiplied by the number of batches.",
        _loop_calls(_sum_of_means),
        public="nanoGPT, issues 168 and 206, discuss it.",
    ),
    Bug(
        "mean-of-means",
        "loop",
        "Every accumulated batch counts the same, however many targets it has.",
        "Other losses than with one big batch; short texts weigh too much.",
        _loop_calls(_mean_of_means),
        public="transformers' Trainer until October 2024 (its post 'Fixing gradient accumulation').",
    ),
    Bug(
        "last-batch-only",
        "loop",
        "Gradients are zeroed before every batch of an update.",
        "Noise as if there were no accumulation, at its price.",
        _loop_calls(_last_only),
    ),
    Bug(
        "never-zeroed",
        "loop",
        "Gradients are never zeroed between updates.",
        "The loss falls, then explodes.",
        _loop_calls(_never_zeroed),
    ),
    Bug(
        "clipped-every-batch",
        "loop",
        "Each batch of an update is clipped by itself, as it is added.",
        "The limit depends on the accumulation.",
        _loop_calls(_clipped_each),
        public="super-gradients, pull request 653.",
    ),
    Bug(
        "same-batch-twice",
        "loop",
        "Every batch of an update is the first.",
        "Half the data is never seen.",
        _loop_calls(_same_batch),
    ),
    Bug(
        "padding-counted-in-accumulation",
        "loop",
        "The count of an update includes ignored targets.",
        "The more padding, the smaller the step.",
        replaced(Trainer, "_draw", _counted_with_padding),
    ),
    Bug(
        "rate-of-the-next-update",
        "loop",
        "Each update takes the rate of the one after it.",
        "The first rate is skipped, the last is used twice.",
        _rate_of(lambda trainer: trainer.step + 1),
        public="PyTorch before 1.1 stepped schedulers first; now it warns.",
    ),
    Bug(
        "rate-by-batch",
        "loop",
        "The schedule is stepped per batch instead of per update.",
        "With accumulation the rate is down to its floor long before the end.",
        _rate_of(lambda trainer: trainer.step * trainer.settings.accumulate),
    ),
    Bug(
        "schedule-one-early",
        "schedule",
        "The schedule counts from 1 where the loop counts from 0.",
        "Warm-up and decay are one update early.",
        _rate(_one_early),
    ),
    Bug(
        "warm-up-from-zero",
        "schedule",
        "The first update of the warm-up has rate 0.",
        "One update does nothing.",
        _rate(_warm_up_from_zero),
    ),
    Bug(
        "decay-counts-the-warm-up",
        "schedule",
        "The decay is laid over the updates after the warm-up but counted from the first.",
        "A jump after the warm-up, and the end is reached too early.",
        _rate(_whole_length),
    ),
    Bug(
        "schedule-goes-on",
        "schedule",
        "After the last update the schedule does not stay where it ended.",
        "A cosine rises again.",
        _rate(_unbounded),
    ),
    Bug(
        "target-is-the-input",
        "batches",
        "Targets are not shifted.",
        "The loss is zero at once: the model copies.",
        replaced(batches.Batches, "__next__", _target_is_input),
    ),
    Bug(
        "target-after-next",
        "batches",
        "Targets are shifted twice.",
        "The loss stays high; the model predicts the word after the next.",
        replaced(batches.Batches, "__next__", _target_after_next),
    ),
    Bug(
        "evaluation-counts-padding",
        "batches",
        "What is missing in the last window of an evaluation counts as word 0.",
        "The validation loss depends on the batch size.",
        replaced(batches, "_evaluation_batches", _padding_as_targets),
    ),
    Bug(
        "resume-forgets-step-number",
        "resume in loop",
        "After resuming, Adam counts from 0 again.",
        "A jump in the loss after every restart.",
        _restored_without("updates"),
    ),
    Bug(
        "resume-forgets-schedule",
        "resume in loop",
        "After resuming, the schedule starts again.",
        "A second warm-up.",
        _restored_without("step"),
        public="Lightning, issues 1772 and 4655: one epoch behind after resuming.",
    ),
    Bug(
        "resume-forgets-data",
        "resume in loop",
        "After resuming, the data start from the beginning.",
        "The first batches are seen twice, the last never.",
        _restored_without("data"),
    ),
    Bug(
        "resume-forgets-moments",
        "resume in loop",
        "Weights are restored, Adam's m and v are not.",
        "A jump in the loss after every restart.",
        _restored_without("optimizer"),
    ),
    Bug(
        "resume-forgets-gradients",
        "resume in loop",
        "Stopped in the middle of an update, the batches already added are lost.",
        "One update that is too small: nobody notices.",
        _restored_without("gradients"),
    ),
)
