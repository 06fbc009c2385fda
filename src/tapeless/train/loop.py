"""Training: one loop that tells its callbacks what happens. Stopped after any batch it goes on bit for bit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import Any

import numpy as np

from tapeless.errors import NonFiniteError, TapelessError
from tapeless.files.disk import UnwritableError
from tapeless.inputs import joined
from tapeless.model import Model, Stepped
from tapeless.ops.contract import Array
from tapeless.program.call import gradient_name
from tapeless.tasks.task import Measured, Task
from tapeless.train.base import read_base
from tapeless.train.believed import check_state
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.guard import Spikes, explain_nonfinite, norms_by_layer, usual_norms
from tapeless.train.history.recording import StepRecording
from tapeless.train.metrics import ENDS, Phases, dead_units, gradient_norms, update_ratios
from tapeless.train.settings import Settings

ROWS = 500  # positions that units are watched over


@dataclass(frozen=True)
class Step:
    """One update."""

    number: int
    loss: float
    lr: float
    gradient_norm: float


@dataclass(frozen=True)
class Logged:
    """What a line of metrics says besides, for the update just made."""

    step: Step
    gradient_norms: dict[str, float]
    update_ratios: dict[str, float]
    tokens_per_second: float
    phases: dict[str, float]


@dataclass(frozen=True)
class Evaluated:
    step: int
    epoch: float
    measured: Measured
    best: bool
    dead_units: dict[str, float]  # share of ReLU units that no position of some batches wakes, by layer
    spread: float | None  # of the embeddings, over that at the start; only where the loss could make them collapse


@dataclass(frozen=True)
class Spiked:
    step: int
    message: str


@dataclass(frozen=True)
class SaveDue:
    """It is time for a checkpoint. The training goes on when every callback has returned."""

    step: int
    best: bool


@dataclass(frozen=True)
class Finished:
    reason: str


Event = Step | Logged | Evaluated | Spiked | SaveDue | Finished
Callback = Callable[[Event], None]


@dataclass(frozen=True)
class Upcoming:
    """All that an update will be made of, besides the model."""

    batches: list[tuple[Array, Array]]
    count: float  # what the loss is divided by, over all of them
    lr: float
    clip: float | None


@dataclass
class Drawn:
    """An update from when its batches are drawn until it is known what came of it."""

    batches: list[tuple[Any, Array]]
    count: float  # what the loss is divided by, over all of them
    data: dict[str, Any]  # the stream's state before them
    draws: int  # the model's, before them
    loss: float = 0.0  # of the batches that were looked at
    seen: int = 0  # how many these are
    shares: list[Callable[[], float]] = field(default_factory=list)  # of the loss, by those launched since
    begun: float = 0.0  # when the first of these was
    lr: float = 0.0
    made: Stepped | None = None  # once all were
    awaited: bool = False  # whether nothing is launched before it is taken in


class Trainer:
    """A model, what it learns from, and how far it has come."""

    def __init__(self, model: Model, task: Task, settings: Settings) -> None:
        self.model, self.task, self.settings = model, task, settings
        self.batches = task.batches(model.batch)
        # Batches per epoch, over batches per update.
        self.steps_per_epoch = self.batches.steps_per_epoch / settings.accumulate
        self.steps = settings.steps or max(1, ceil((settings.epochs or 1) * self.steps_per_epoch))
        self.schedule = settings.learning_rate(self.steps)
        self.eval_every = settings.eval_every or (
            max(1, round(self.steps_per_epoch)) if settings.epochs else max(1, self.steps // 10)
        )
        self.save_every = settings.save_every or self.eval_every
        self.step = 0  # updates made
        self.added = 0  # batches of the next update whose gradients are already added up
        self.best: float | None = None
        self.without_better = 0  # evaluations since the best
        self._aims = self._first_targets()  # a sample of what is predicted, the same in a resumed run
        self.first_spread = _spread(model, self._aims)
        self.phases = Phases()
        self.recording: StepRecording | None = None  # whoever keeps a run gives it one
        self.base: str | None = None  # the SHA-256 of what is not trained, where that is kept beside the checkpoints
        self.spikes = Spikes()
        self.norms: deque[dict[str, float]] = deque(maxlen=50)  # by layer, as they were logged
        self.ahead = False  # whether a batch may be launched before it is known what came of the update before it
        self.made: Stepped | None = None  # of the last update
        self._next = Drawn([], 0.0, {}, 0)  # whose batches are being added up
        self._launched: Drawn | None = None  # with all its batches, and not taken in yet
        self._taken_in = 0.0  # when the last one was

    @property
    def epoch(self) -> float:
        return self.step / self.steps_per_epoch

    def logs(self, number: int) -> bool:
        """The first of all tells how large a step the learning rate is for weights that have learned nothing yet."""
        return number in (1, self.steps) or number % self.settings.log_every == 0

    def evaluates(self, number: int) -> bool:
        return number == self.steps or number % self.eval_every == 0

    def saves(self, number: int) -> bool:
        return number == self.steps or number % self.save_every == 0

    @property
    def done(self) -> bool:
        return self.step >= self.steps or self.out_of_patience

    @property
    def out_of_patience(self) -> bool:
        return self.settings.patience is not None and self.without_better >= self.settings.patience

    def end(self) -> str:
        """Why nothing is left to be done."""
        if not self.out_of_patience:
            return f"{ENDS[0]}{self.steps:,} updates are done"
        than = "not finite" if self.best is None else f"no better than {self.best:.4f}"
        return f"{ENDS[1]}: {self.without_better} evaluations were {than}"

    @property
    def in_flight(self) -> bool:
        """Whether something was launched that nobody has looked at."""
        return self._launched is not None or bool(self._next.shares)

    def batch(self) -> Step | None:
        """One batch: its share of the gradient and, with the last of an update, the update.

        Where the trainer runs `ahead`, the batch is launched, and then what came of the update before it is taken in:
        the device works while somebody waits for its numbers. Updates that somebody looks at are taken in first.
        """
        before = self._launched
        data = self.batches.state() if before else {}
        if before and (before.awaited or not self.ahead or self._walks_next()):
            return self._take_in(before)
        if self._next.shares and not self.ahead:
            return self._take_in(self._next)
        try:
            self._launch()
        except TapelessError:
            if not self.in_flight:
                raise
            if before:
                self.batches.restore(data)  # it is told when it comes again, after what was launched before it
            return self._take_in(before or self._next)
        update = before or self._launched or self._next
        if update is before or update.awaited or not self.ahead:
            return self._take_in(update)
        return None

    def _launch(self) -> None:
        if self.added == 0:
            self._draw()
        update, last = self._next, self.added + 1 == self.settings.accumulate
        how: dict[str, Any] = {"accumulate": self.added > 0, "count": update.count}
        with self.phases("step"), np.errstate(all="ignore"):  # what NumPy would warn of is caught when it is taken in
            if not update.shares:
                update.begun = time.perf_counter()
            if last:
                update.made = made = self._update(update, **how)
                update.shares.append(lambda: made.loss)
            else:
                update.shares.append(self._add(*update.batches[self.added], **how))
        self.added = 0 if last else self.added + 1
        if last:
            self._launched = update

    def _add(self, inputs: Any, targets: Array, **how: Any) -> Callable[[], float]:
        """A batch of an update before its last."""
        if not self.ahead:
            share = self.model.forward_backward(inputs, targets, **how)
            return lambda: share
        made = self.model.partial_step(inputs, targets, **how)
        made.keep()
        return lambda: made.loss

    def _update(self, update: Drawn, **how: Any) -> Stepped:
        """The last batch of an update, and the update; call by call where it is recorded, with the same result."""
        number = self._number()
        update.lr = self.schedule.at(number - 1)
        how |= {"lr": update.lr, "clip": self.settings.clip or None}
        if self.recording and self._walks(number):
            walk, made = self.model.walk_step(*update.batches[-1], **how)
            self.recording.see(number, update.lr, walk, made)
            update.awaited = True
            return made
        made = self.model.step(*update.batches[-1], **how)
        update.awaited = not self.ahead or self._is_awaited(number)
        if not update.awaited:
            made.keep()
        return made

    def _number(self) -> int:
        """Of the update that is launched next, or whose batches are being added up."""
        return self.step + (2 if self._launched else 1)

    def _walks(self, number: int) -> bool:
        return self.recording is not None and self.recording.due(number, last=number == self.steps)

    def _walks_next(self) -> bool:
        return self.settings.accumulate == 1 and self._walks(self._number())

    def _is_awaited(self, number: int) -> bool:
        """Whether somebody looks at the model after this update; after an evaluation, it may be the last."""
        looked = self.logs(number) or self.evaluates(number) or self.saves(number)
        return looked or bool(self.recording and self.recording.snapshots.due(number))

    def _take_in(self, update: Drawn) -> Step | None:
        """What came of its batches, and of the update if they are all."""
        made = update.made
        with self.phases("step"):
            shares = [share() for share in update.shares]
            if made and self.recording:
                now = time.perf_counter()
                self.recording.took(now - max(update.begun, self._taken_in))
                self._taken_in = now
        for share in shares:
            if not isfinite(share):
                raise self._stopped(update, f"the loss is {share:g}", [update.seen])
            update.loss += share
            update.seen += 1
        update.shares.clear()
        if made is None:
            return None
        if not made.finite:
            raise self._stopped(update, made.refusal, range(len(update.batches)))
        if self._launched is update:
            self._launched = None
        self.step += 1
        self.made = made
        if self.recording:
            self.recording.watch(self.step, update.loss, made.norm)
            self.recording.snapshots.take(self.step, last=self.step == self.steps)
        return Step(self.step, update.loss, update.lr, made.norm)

    def _draw(self) -> None:
        """All batches of the next update: the mean is over the targets of all of them."""
        with self.phases("data"):
            before, data = self._launched, self.batches.state()
            # Asking the model would wait for it.
            draws = before.draws + len(before.batches) if before else self.model.draws - self.added
            drawn = [next(self.batches) for _ in range(self.settings.accumulate)]
            self._next = Drawn(drawn, sum(self.model.weigh(targets) for _, targets in drawn), data, draws)

    def upcoming(self) -> Upcoming:
        """What the next update will be made of, if none of its batches were added up yet. The stream of batches is
        where it was."""
        before = self.batches.state()
        self._draw()
        self.batches.restore(before)
        return Upcoming(self._next.batches, self._next.count, self.schedule.at(self.step), self.settings.clip or None)

    def _stopped(self, update: Drawn, what: str, numbers: Iterable[int]) -> NonFiniteError:
        """Back to before this update, of which no weight has seen anything, nor of what was launched since; then find
        who began it."""
        self.added, self._launched = 0, None
        self._next.shares.clear()
        self.batches.restore(update.data)
        if self.recording and update.made and len(update.batches) == 1:
            self.model.draws = update.draws
            how: dict[str, Any] = {"lr": update.lr, "clip": self.settings.clip or None, "count": update.count}
            with np.errstate(all="ignore"):
                self.recording.broke(self.step + 1, update.lr, lambda: self.model.walk_step(*update.batches[0], **how))
        self.model.allow_updates()
        reasons = (self._explained(update, number) for number in numbers)
        reason = next(filter(None, reasons), "No batch of the update shows it by itself: their sum is too large.")
        self.model.draws = update.draws
        return NonFiniteError(f"update {self.step + 1} was stopped: {what}. {reason}")

    def _explained(self, update: Drawn, number: int) -> str:
        """One of its batches, walked again with the random numbers that it had."""
        self.model.draws = update.draws + number
        return explain_nonfinite(self.model, *update.batches[number])

    def spike(self, step: Step) -> Spiked | None:
        """The loss has leapt: with the gradient norms of that update beside the usual ones."""
        message = self.spikes.see(step.number, step.loss)
        if message is None:
            return None
        norms = norms_by_layer(gradient_norms(self.model, self.made), usual_norms(self.norms))
        return Spiked(step.number, f"{message} {norms}")

    def logged(self, step: Step, tokens_per_second: float) -> Logged:
        self.norms.append(gradient_norms(self.model))
        ratios = update_ratios(self.model)
        return Logged(step, self.norms[-1], ratios, tokens_per_second, self.phases.shares())

    def evaluate(self) -> Evaluated:
        with self.phases("evaluate"), np.errstate(all="ignore"):
            measured = self.task.evaluate(self.model, self.settings.eval_batches)
        # NaN and infinity are never the best: nothing could be better than the one, and no checkpoint can hold either.
        better = isfinite(measured.loss) and (self.best is None or measured.loss < self.best)
        self.without_better = 0 if better else self.without_better + 1
        if better:
            self.best = measured.loss
        return Evaluated(self.step, self.epoch, measured, better, self._dead_units(), self._relative_spread())

    def _dead_units(self) -> dict[str, float]:
        """Over as many batches as hold ROWS positions that reach the last block: over fewer, choosy units look dead."""
        model = self.model
        if model.config.activation != "relu":
            return {}
        rows = model.batch * (1 if model.config.readout == "last" else model.time)
        stream = self.task.batches(model.batch)  # one of its own, and so the same batches every time
        return dead_units(model, joined([next(stream)[0] for _ in range(ceil(ROWS / rows))]))

    def _first_targets(self) -> Array:
        if self.model.config.loss != "squared_error":
            return np.empty(0, np.int64)
        beginning = self.batches.state()
        _, targets = next(self.batches)
        self.batches.restore(beginning)
        return targets[targets >= 0]

    def _relative_spread(self) -> float | None:
        now = _spread(self.model, self._aims)
        return now / self.first_spread if now is not None and self.first_spread else None

    def state(self) -> dict[str, Any]:
        """With `tensors`, all that the rest of the training depends on."""
        if self.in_flight:
            raise TapelessError("a part of the training is in flight: set `ahead` to False, and go on until none is.")
        return {
            "step": self.step,
            "added": self.added,
            "loss": self._next.loss if self.added else 0.0,
            "data": self._next.data if self.added else self.batches.state(),
            "best": self.best,
            "without_better": self.without_better,
            "updates": self.model.steps,
            "draws": self.model.draws,
            "first_spread": self.first_spread,
            "spikes": self.spikes.state(),
            "norms": [*self.norms],
            "base": self.base,
        }

    def tensors(self) -> dict[str, dict[str, Array]]:
        found = {"weights": self._weights(), "optimizer": self._optimizer()}
        return found | {"gradients": self._gradients()} if self.added else found

    def _weights(self) -> dict[str, Array]:
        return self.model.weights() if self.base is None else {name: self.model.read(name) for name in self.model.grads}

    def _optimizer(self) -> dict[str, Array]:
        return {name: self.model.read(name) for name in self.model.state}

    def _gradients(self) -> dict[str, Array]:
        return {name: self.model.read(gradient_name(name)) for name in self.model.grads}

    def restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        check_state(state, self.settings.accumulate, str(checkpoint.path))
        if state["base"] != self.base:  # what is frozen stays what it is once it is there
            for name, array in read_base(checkpoint).items():
                self.model.write(name, array)
            self.base = state["base"]
        for stem, values in (("weights", self._weights()), ("optimizer", self._optimizer())):
            if values:
                checkpoint.read(stem, values, self.model.write)
        self.batches.restore(state["data"])
        self.step, self.model.steps = state["step"], state["updates"]
        self.model.draws = state["draws"]
        self.best, self.without_better = state["best"], state["without_better"]
        self.added, self.first_spread = state["added"], state["first_spread"]
        self.spikes.restore(state["spikes"])
        self.norms.clear()
        self.norms.extend(state["norms"])
        if self.added:
            self._draw()
            self._next.loss, self._next.seen = state["loss"], self.added
            write = self.model.write
            checkpoint.read("gradients", self._gradients(), lambda name, array: write(gradient_name(name), array))


def _spread(model: Model, aims: Array) -> float | None:
    """How far embeddings lie from their mean, each counted as often as it is predicted. A loss that is a distance to
    embeddings could pull them together; words that are never predicted stay where they are and would hide it."""
    if not len(aims):
        return None
    table = model.read("tokens.weight")[aims]
    return float(np.sqrt(np.mean(np.square(table - table.mean(axis=0)))))


def train(trainer: Trainer, *callbacks: Callback, stopping: Callable[[], str | None] = lambda: None) -> Finished:
    """Train to the end, and tell every callback what happens, in order.

    `stopping` is asked after every batch and all that it brought about. As soon as it gives a reason, what is in flight
    is taken in, and the training ends there, to be restored from its state later.
    """

    def tell(event: Event) -> None:
        for callback in callbacks:
            callback(event)

    trainer.ahead = trainer.model.engine.backend.traits.asynchronous
    reason: str | None = None
    speed = Throughput(trainer)
    try:
        while not trainer.done and (reason is None or trainer.in_flight):
            step = trainer.batch()
            if step is not None:
                tell(step)
                if spike := trainer.spike(step):
                    tell(spike)
                if trainer.logs(step.number):
                    tell(trainer.logged(step, speed.measure()))
                evaluated = trainer.evaluate() if trainer.evaluates(step.number) else None
                if evaluated:
                    tell(evaluated)
                best = evaluated is not None and evaluated.best
                if best or trainer.saves(step.number):
                    tell(SaveDue(step.number, best))
                    speed.restart()  # evaluating and saving are not training
            reason = reason or stopping()
            if reason:
                trainer.ahead = False  # what is in flight is taken in, and nothing more is launched
        finished = Finished(reason or trainer.end())
        tell(finished)
        return finished
    except NonFiniteError as error:  # the weights have seen nothing of it, and can be kept
        try:
            tell(Finished(str(error)))
        except UnwritableError as unsaved:
            raise NonFiniteError(f"{error} {unsaved}") from None
        raise
    finally:
        trainer.ahead = False


class Throughput:
    """Tokens per second since the last line of metrics or the last checkpoint."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._tokens = trainer.model.batch * trainer.model.time * trainer.settings.accumulate  # of an update
        self.restart()

    def restart(self) -> None:
        self._since, self._step = time.perf_counter(), self._trainer.step

    def measure(self) -> float:
        tokens = self._tokens * (self._trainer.step - self._step)
        speed = tokens / (time.perf_counter() - self._since)
        self.restart()
        return speed
