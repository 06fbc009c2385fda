"""A model: programs, an arena and a backend, ready to step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np

from tapeless.backends.execute import Run, arguments_of, backend_named, bind, execute, precision_for
from tapeless.errors import NonFiniteError, TapelessError, unknown
from tapeless.generate import generate
from tapeless.inputs import (
    check_seed,
    check_shape,
    check_update,
    checked_count,
    checked_inputs,
    checked_targets,
    inputs_name,
)
from tapeless.models import transformer
from tapeless.models.config import Config, Optimizer
from tapeless.models.presets import preset
from tapeless.ops.contract import Array, Shape
from tapeless.ops.positions.reference import sinusoid
from tapeless.program.arena import Arena, Plan, make_plan
from tapeless.program.call import Call, gradient_name

DEFAULT_BACKEND = "cpu"


class Model:
    """`Model("gpt2-4x256", batch=2, time=64, layers=2)`: a preset, with any field overridden by name."""

    def __init__(
        self,
        name: str | Config,
        *,
        batch: int = 1,
        time: int | None = None,
        backend: str = DEFAULT_BACKEND,
        precision: str | None = None,
        optimizer: str | Optimizer | None = "preset",
        seed: int = 0,
        **fields: Any,
    ) -> None:
        if "dtype" in fields:
            raise unknown("field", "dtype", ("precision",))
        self.config = (name if isinstance(name, Config) else preset(name)).override(**fields)
        time = self.config.context if time is None else time
        check_shape(self.config, batch, time)
        self.batch, self.time = int(batch), int(time)
        check_seed(seed)
        if optimizer == "preset":
            optimizer = self.config.optimizer
        if not isinstance(optimizer, Optimizer | None):
            optimizer = Optimizer(optimizer)
        self.optimizer = optimizer
        self.backend_module = backend_named(backend)
        self.backend = backend
        self.precision = precision_for(backend, precision)

        self.program = transformer.training(self.config, self.batch, self.time, self.optimizer)
        self.plan: Plan = make_plan(self.program, self.precision)
        self.arena = Arena(self.plan)
        self._zero = self._runs(self.program.phase("zero"), self.arena)
        self._forward_backward = self._runs(self.program.phase("forward", "recompute", "backward"), self.arena)
        self._clip = self._runs(self.program.phase("clip"), self.arena)
        self._update = self._runs(self.program.phase("update"), self.arena)
        evaluation = transformer.evaluation(self.config, self.batch, self.time)
        plan = make_plan(evaluation, self.precision, beside=self.plan)
        beside = Arena(plan, block=self.arena.block, scratch=self.arena.scratch)
        self._evaluation = self._runs(evaluation.calls, beside)
        self._evaluated = _named(beside, "evaluated")
        self._readout: tuple[Shape, Arena, list[Run]] | None = None

        weights = {weight.name: self.arena.array(weight) for weight in self.program.weights}
        self.params: Mapping[str, Array] = MappingProxyType(weights)
        self.grads: Mapping[str, Array] = MappingProxyType(
            {weight.name: self._array(gradient_name(weight.name)) for weight in self.program.trained}
        )
        state = [placement.buffer for placement in self.plan.placements.values() if placement.buffer.kind == "state"]
        moments = {each.name: self.arena.array(each) for each in state if each.name != "step"}  # that one is `steps`
        self.state: Mapping[str, Array] = MappingProxyType(moments)
        self._run_number = 0  # of the lists that write a loss or a norm
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for weight in self.program.weights:
            if weight.initial is not None:
                self.params[weight.name][...] = weight.initial.draw(weight.shape, rng)
        if self.config.positions == "sinusoidal":
            self._array("positions.table")[...] = sinusoid(self.config.context, self.config.channels)
        if self.config.class_weights:
            self._array("class_weights")[...] = self.config.class_weights
        if self.optimizer is not None:  # which squares gradients in their own type
            self._array("largest")[0] = np.sqrt(np.finfo(self.precision.gradient).max)

    def _runs(self, calls: tuple[Call, ...], arena: Arena) -> list[Run]:
        return [run for _, runs in bind(calls, arena, self.backend_module) for run in runs]

    def _array(self, name: str) -> Array:
        return self.arena.array(self.plan.placements[name].buffer)

    @property
    def parameters(self) -> int:
        return self.program.parameters

    @property
    def steps(self) -> int:
        """Updates made. The list of calls counts them itself."""
        return 0 if self.optimizer is None else int(self._array("step")[0])

    @steps.setter
    def steps(self, made: int) -> None:
        self._array("step")[0] = made

    def forward_backward(
        self, inputs: Any, targets: Any, *, accumulate: bool = False, count: float | None = None
    ) -> float:
        """The loss, and in `grads` its gradient. `inputs`: token ids (B, T), or features (B, T, features).

        `accumulate` adds to the gradients that are there instead of starting from zero. Loss and gradients are means
        over this batch's targets; with `count`, the number of targets in all the batches that are added up (`weigh`
        tells), they are this batch's share of the mean over all of them, and the sum is what one big batch would give.
        """
        self.feed(inputs, targets, count)
        return self._ran(*([] if accumulate else [self._zero]), self._forward_backward).loss

    def loss(self, inputs: Any, targets: Any) -> float:
        """The loss alone; gradients, and what an update needs to know, stay as they are."""
        self.feed(inputs, targets)
        _run(self._evaluation)
        loss: float = _number(self._evaluated)
        return loss

    def update(self, lr: float, *, clip: float | None = None) -> float:
        """One optimizer step with the gradients as they are; returns their global norm before clipping.

        Gradients that are not finite, or too large to be squared, are refused, and so is a loss that is not: nothing
        has changed then.
        """
        self.prepare_update(lr, clip)
        made = self._ran(self._clip, self._update)
        if not made.finite:
            raise NonFiniteError(f"{made.refusal}.")
        return made.norm

    def step(
        self,
        inputs: Any,
        targets: Any,
        *,
        lr: float,
        clip: float | None = None,
        accumulate: bool = False,
        count: float | None = None,
    ) -> Stepped:
        """`forward_backward` and `update` as one list, from the first call to the last, without a look at any number.

        Where the loss or the gradients are not finite nothing is updated, and what is returned says so.
        """
        self._check_update(lr, clip)
        self.feed(inputs, targets, count)
        self.prepare_update(lr, clip)
        return self._ran(*([] if accumulate else [self._zero]), self._forward_backward, self._clip, self._update)

    def _ran(self, *lists: list[Run]) -> Stepped:
        self._run_number += 1
        for runs in lists:
            _run(runs)
        return Stepped(self, self._run_number)

    def _check_update(self, lr: Any, clip: Any) -> None:
        if self.optimizer is None:
            raise TapelessError("this model was made with optimizer=None: it has gradients but no update.")
        check_update(lr, clip, self.precision.master)

    def prepare_update(self, lr: float, clip: float | None) -> None:
        """What changes each step lives in buffers; the list of calls never changes."""
        self._check_update(lr, clip)
        self._array("lr")[0] = lr
        self._array("limit")[0] = inf if clip is None else clip

    def logits(self, inputs: Any) -> Array:
        """The scores of every word, (B, T, vocab), or (B, vocab) where the model answers once per sequence.

        Any batch, any time up to the context. For squared-error models: minus the squared distance to every
        embedding. Runs in memory of its own (the scores can be larger than the model); weights are shared.
        """
        array = checked_inputs(self.config, inputs, None, self.precision.activation)
        batch, time = array.shape[:2]
        if self._readout is None or self._readout[0] != (batch, time):
            program = transformer.readout(self.config, batch, time)
            arena = Arena(make_plan(program, self.precision, lent=True), lender=self.arena)
            self._readout = (batch, time), arena, self._runs(program.calls, arena)
        _, arena, runs = self._readout
        _named(arena, inputs_name(self.config))[...] = array
        _run(runs)
        scores = _named(arena, "scores").copy()
        return scores[:, -1] if self.config.readout == "last" else scores

    def generate(self, tokens: Any, count: int, **options: Any) -> list[int]:
        """Up to `count` tokens that follow `tokens`; the options are those of `tapeless.generate.generate`."""
        return list(generate(self, tokens, count, **options))

    def trace(self, inputs: Any, targets: Any, *, lr: float | None = None) -> Iterator[tuple[Call, dict[str, Array]]]:
        """Zero, forward and backward, call by call, each with its arrays by argument name, right after it ran.

        With `lr`, clip and update too. The arrays are views: what a later call overwrites is gone, so copy what
        you want to keep.
        """
        calls = self.program.phase("zero", "forward", "recompute", "backward")
        if lr is not None:
            self._check_update(lr, None)
        self.feed(inputs, targets)
        if lr is not None:
            self.prepare_update(lr, None)
            calls += self.program.phase("clip", "update")
        self._run_number += 1
        walk = execute(bind(calls, self.arena, self.backend_module))
        return ((call, arguments_of(call, self.arena)) for call in walk)

    def weigh(self, targets: Any) -> float:
        """What a mean over these targets is divided by: how many there are, or the sum of their classes' weights."""
        valid = np.asarray(targets)
        valid = valid[valid >= 0]
        weights = self.config.class_weights
        return float(len(valid)) if weights is None else float(np.asarray(weights)[valid].sum())

    def feed(self, inputs: Any, targets: Any, count: float | None = None) -> None:
        """Check everything, then fill the input buffers: a refused batch changes nothing."""
        array = checked_inputs(self.config, inputs, (self.batch, self.time), self.precision.activation)
        wanted = checked_targets(self.config, targets, self.batch, self.time, empty=count is not None)
        counted = checked_count(count, self.weigh(wanted))
        self._array(inputs_name(self.config))[...] = array
        self._array("targets")[...] = wanted
        self._array("count")[0] = counted


class Stepped:
    """What came of a run of the model. It is read from the model's memory when it is asked for: before the model runs
    again."""

    def __init__(self, model: Model, number: int) -> None:
        self._model, self._number = model, number

    def _read(self, name: str) -> Any:
        if self._number != self._model._run_number:
            raise TapelessError("the model has run again since: ask for what came of a step before the next.")
        return _number(self._model._array(name))

    @property
    def loss(self) -> float:
        """A complex number where the model is complex, for the complex step; else a float."""
        loss: float = self._read("loss")
        return loss

    @property
    def norm(self) -> float:
        """Of all gradients, before clipping."""
        return float(self._read("gradient_norm"))

    @property
    def finite(self) -> bool:
        """Whether the update was made."""
        return bool(self._read("finite"))

    @property
    def refusal(self) -> str:
        """Why it was not."""
        loss = self.loss
        what = f"the gradients have a norm of {self.norm:g} in {self._model.precision.gradient}"
        return f"{what if np.isfinite(loss) else f'the loss is {loss:g}'}: the weights were not changed"


def _number(array: Array) -> Any:
    return array[0].item()


def _named(arena: Arena, name: str) -> Array:
    return arena.array(arena.plan.placements[name].buffer)


def _run(runs: list[Run]) -> None:
    """The fast path: the same list, bound once, with nothing between the calls."""
    for run in runs:
        run()
