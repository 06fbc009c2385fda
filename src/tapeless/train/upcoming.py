"""The update that a run made right after a checkpoint, ready to be made again: its model, its batches, its rate.

Of a run folder that somebody else may have written: nothing is written, and what is not in it is not read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import unpacked
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks import conversations, operations, text
from tapeless.tasks.chat.packing import every_row
from tapeless.tasks.kinds import KINDS, kind_of
from tapeless.tasks.task import Reader, Task, TaskKind
from tapeless.train import checkpoint, metrics
from tapeless.train.loop import Trainer, Upcoming
from tapeless.train.run import Run
from tapeless.train.session import make_model, open_task


@dataclass(frozen=True)
class Standing:
    """A run as it stood after so many updates."""

    step: int
    model: Model
    reader: Reader  # of what its tokens stand for
    upcoming: Upcoming


def kept_steps(opened: Run) -> list[int]:
    """Where a run can be taken up again: at its first weights, which its seed gives again, and at its checkpoints."""
    return sorted({*_made_from_seed(opened), *checkpoint.steps(opened.checkpoints)})


def last_update(opened: Run) -> int:
    """As far as is known: the last that it kept weights of, or has measured."""
    made = kept_steps(opened)
    with suppress(TapelessError):  # of metrics that are not there nothing is known
        made.append(metrics.last_step(opened.folder) or 0)
    return max(made, default=0)


def standing_at(opened: Run, step: int) -> Standing:
    """The run after `step` updates. 0: as it began, where it did not begin from another run's weights."""
    request, preset = opened.request(), opened.preset()
    kind = kind_of(request.settings.data, opened.folder)
    task = _kept_task(opened, kind)
    found = checkpoint.at(opened.checkpoints, step)
    if found is None and step not in _made_from_seed(opened):
        kept = ", ".join(f"{each:,}" for each in kept_steps(opened)) or "none"
        raise TapelessError(f"{opened.folder} keeps no weights of step {step}: those of steps {kept}.")
    if found is not None and "data" not in found.state:
        raise TapelessError(f"{opened.folder} holds weights without a training, so there is no update to look at.")
    trainer = Trainer(make_model(request, preset, kind), task, request.settings)
    if found is not None:
        trainer.restore(found)
        if trainer.added:
            raise TapelessError(f"the checkpoint of step {step} was made in the middle of an update: take another.")
    return Standing(step, trainer.model, kind.reader(opened.folder, opened.tokenizer_spec()), trainer.upcoming())


def held_out(opened: Run, count: int, length: int) -> list[tuple[Array, Array]]:
    """Some of what was held out, each as tokens and targets of a batch of one, of at most so many tokens."""
    kind = kind_of(opened.request().settings.data, opened.folder)
    task, config = _kept_task(opened, kind), opened.preset().architecture
    if isinstance(task, operations.Operations):
        chosen = task.validation
        targets = operations.targets_for(config, chosen.answers[:count])
        return [(chosen.tokens[n : n + 1], targets[n : n + 1]) for n in range(min(count, len(chosen)))]
    if isinstance(task, conversations.Conversations):
        return [_one_conversation(*row, length) for row in every_row(task.validation, 1, count)]
    assert isinstance(task, text.Text)
    tokens = task.data.validation
    taken = min(length, task.time, len(tokens) - 1)
    if taken < 1:
        return []
    stride = max(1, (len(tokens) - taken - 1) // count)
    starts = range(0, max(1, len(tokens) - taken - 1), stride)[:count]
    windows = [tokens.window(start, taken + 1) for start in starts]
    return [(window[None, :-1], window[None, 1:]) for window in windows]


def _one_conversation(inputs: Any, targets: Array, length: int) -> tuple[Array, Array]:
    """The first of a row, as much of it as reaches into an answer."""
    tokens, segments = unpacked(inputs)
    own = slice(None) if segments is None else segments[0] == segments[0, 0]
    tokens, targets = tokens[:, own], targets[:, own]
    learned = np.flatnonzero(targets[0] >= 0)
    stop = min(int(learned[-1]) + 1, int(learned[0]) + max(1, length // 2))
    chosen = slice(max(0, stop - length), stop)
    return tokens[:, chosen], targets[:, chosen]


def drawn_for(opened: Run, step: int) -> list[tuple[Any, Array]]:
    """The batches that an update learned from, as the training drew them."""
    request = opened.request()
    settings = request.settings
    stream = _kept_task(opened, kind_of(settings.data, opened.folder)).batches(settings.batch or 1)
    epoch, position = divmod((step - 1) * settings.accumulate, stream.steps_per_epoch)
    stream.restore({**stream.state(), "epoch": epoch, "position": position})
    return [next(stream) for _ in range(settings.accumulate)]


def _made_from_seed(opened: Run) -> set[int]:
    """Weights that came from elsewhere were saved as the checkpoint of step 0; all others a seed gives again."""
    return {0} if checkpoint.steps(opened.checkpoints) else set()


def _kept_task(opened: Run, kind: TaskKind) -> Task:
    """The task with data from the run's own folder alone."""
    if opened.preset().architecture.features:
        raise TapelessError(f"{opened.folder.name} reads features, not words: there are no tokens to show.")
    if kind not in KINDS:
        raise TapelessError(f"{opened.folder.name} learns {kind.name}, whose batches cannot be made again here yet.")
    if kind.length is None and not opened.data.is_dir():
        raise TapelessError(
            f"the tokens that {opened.folder.name} learned from are not in its folder, and nothing else is read here."
        )
    return open_task(opened, kind)
