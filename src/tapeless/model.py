"""A model: programs, an arena and a backend, ready to step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np

from tapeless.backends.execute import Bound, arguments_of, backend_named, bind, execute
from tapeless.errors import TapelessError, unknown
from tapeless.models import transformer
from tapeless.models.config import Config, Optimizer, check_size
from tapeless.models.initialise import initial_value
from tapeless.models.presets import preset
from tapeless.ops.contract import Array, Shape
from tapeless.ops.positions.reference import sinusoid
from tapeless.program.arena import Arena, Plan, make_plan
from tapeless.program.call import Call, gradient_name

DEFAULT_BACKEND = "reference"


class Model:
    """`Model("gpt2-4x256", batch=2, time=64, layers=2)`: a preset, with any field overridden by name."""

    def __init__(
        self,
        name: str | Config,
        *,
        batch: int = 1,
        time: int | None = None,
        backend: str = DEFAULT_BACKEND,
        dtype: str | None = None,
        optimizer: str | Optimizer | None = "preset",
        seed: int = 0,
        **fields: Any,
    ) -> None:
        self.config = (preset(name) if isinstance(name, str) else name).override(**fields)
        self.batch, self.time = batch, self.config.context if time is None else time
        check_shape(self.config, self.batch, self.time)
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise TapelessError(f"seed must be a whole number of at least 0, not {seed!r}.")
        if optimizer == "preset":
            optimizer = self.config.optimizer
        self.optimizer = Optimizer(optimizer) if isinstance(optimizer, str) else optimizer
        self._backend = backend_named(backend)
        self.backend = backend
        self.dtype = dtype or self._backend.DEFAULT_DTYPE
        if self.dtype not in self._backend.DTYPES:
            raise unknown(f"dtype for the {backend} backend", self.dtype, self._backend.DTYPES)

        self.program = transformer.training(self.config, self.batch, self.time, self.optimizer)
        self.plan: Plan = make_plan(self.program, self.dtype)
        self.arena = Arena(self.plan)
        self._bound = {
            phases: bind(self.program.phase(*phases), self.arena, self._backend)
            for phases in (("zero",), ("forward", "recompute", "backward"), ("clip", "update"))
        }
        evaluation = transformer.evaluation(self.config, self.batch, self.time)
        beside = Arena(make_plan(evaluation, self.dtype, beside=self.plan), block=self.arena.block)
        self._evaluation = bind(evaluation.calls, beside, self._backend)
        self._readout: tuple[Shape, Arena, list[Bound]] | None = None

        weights = {weight.name: self.arena.array(weight) for weight in self.program.weights}
        self.params: Mapping[str, Array] = MappingProxyType(weights)
        self.grads: Mapping[str, Array] = MappingProxyType(
            {name: self._array(gradient_name(name)) for name in weights}
        )
        self.steps = 0
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for weight in self.program.weights:
            self.params[weight.name][...] = initial_value(self.config, weight, rng)
        if self.config.positions == "sinusoidal":
            self._array("positions.table")[...] = sinusoid(self.config.context, self.config.channels)

    def _array(self, name: str) -> Array:
        return self.arena.array(self.plan.placements[name].buffer)

    @property
    def parameters(self) -> int:
        return self.program.parameters

    def forward_backward(self, inputs: Any, targets: Any, *, accumulate: bool = False) -> float:
        """The loss, and in `grads` its gradient. `inputs`: token ids (B, T), or features (B, T, features).

        `accumulate` adds to the gradients that are there instead of starting from zero.
        """
        self._feed(inputs, targets)
        if not accumulate:
            _run(self._bound[("zero",)])
        _run(self._bound[("forward", "recompute", "backward")])
        return self._loss()

    def loss(self, inputs: Any, targets: Any) -> float:
        """The loss alone; gradients stay as they are."""
        self._feed(inputs, targets)
        _run(self._evaluation)
        return self._loss()

    def _loss(self) -> float:
        """A complex number where the model is complex, for the complex step; else a float."""
        loss: float = self._array("loss")[0].item()
        return loss

    def update(self, lr: float, *, clip: float | None = None) -> float:
        """One optimizer step with the gradients as they are; returns their global norm before clipping."""
        self._prepare_update(lr, clip)
        _run(self._bound[("clip", "update")])
        return float(self._array("gradient_norm")[0])

    def _prepare_update(self, lr: float, clip: float | None) -> None:
        """What changes each step lives in buffers; the list of calls never changes."""
        if self.optimizer is None:
            raise TapelessError("this model was made with optimizer=None: it has gradients but no update.")
        if not (isinstance(lr, int | float) and not isinstance(lr, bool) and 0 <= lr < inf):
            raise TapelessError(f"lr must be 0 or a finite number above, not {lr!r}.")
        if clip is not None and not clip > 0:
            raise TapelessError(f"clip must be above 0, or None for no clipping, not {clip!r}.")
        self.steps += 1
        self._array("lr")[0] = lr
        self._array("limit")[0] = inf if clip is None else clip
        if "step" in self.plan.placements:
            self._array("step")[0] = self.steps

    def logits(self, inputs: Any) -> Array:
        """The scores of every word, (B, T, vocab), or (B, vocab) where the model answers once per sequence.

        Any batch, any time up to the context. For squared-error models: minus the squared distance to every
        embedding. Runs in memory of its own (the scores can be larger than the model); weights are shared.
        """
        array = np.asarray(inputs)
        wanted = ("batch", "time", self.config.features) if self.config.features else ("batch", "time")
        if array.ndim != len(wanted) or 0 in array.shape:
            raise TapelessError(
                f"inputs must have shape ({', '.join(map(str, wanted))}), not {_shape(array.shape)}."
            )
        batch, time = array.shape[:2]
        check_shape(self.config, batch, time)
        array = self._checked_inputs(array, (batch, time))
        if self._readout is None or self._readout[0] != (batch, time):
            program = transformer.readout(self.config, batch, time)
            arena = Arena(make_plan(program, self.dtype), lender=self.arena)
            self._readout = (batch, time), arena, bind(program.calls, arena, self._backend)
        _, arena, bound = self._readout
        _named(arena, "features" if self.config.features else "tokens")[...] = array
        _run(bound)
        scores = _named(arena, "scores").copy()
        return scores[:, -1] if self.config.readout == "last" else scores

    def trace(
        self, inputs: Any, targets: Any, *, lr: float | None = None
    ) -> Iterator[tuple[Call, dict[str, Array]]]:
        """Zero, forward and backward, call by call, each with its arrays by argument name, right after it ran.

        With `lr`, clip and update too. The arrays are views: what a later call overwrites is gone, so copy what
        you want to keep.
        """
        self._feed(inputs, targets)
        calls = self.program.phase("zero", "forward", "recompute", "backward")
        if lr is not None:
            self._prepare_update(lr, None)
            calls += self.program.phase("clip", "update")
        for call in execute(bind(calls, self.arena, self._backend)):
            yield call, arguments_of(call, self.arena)

    def _feed(self, inputs: Any, targets: Any) -> None:
        """Check everything, then fill the input buffers: a refused batch changes nothing."""
        array = self._checked_inputs(np.asarray(inputs), (self.batch, self.time))
        wanted = self._checked_targets(np.asarray(targets))
        self._array("features" if self.config.features else "tokens")[...] = array
        self._array("targets")[...] = wanted
        self._array("count")[0] = np.count_nonzero(wanted >= 0)

    def _checked_inputs(self, array: Array, shape: Shape) -> Array:
        if not self.config.features:
            return _checked_ids("tokens", array, shape, 0, self.config.vocab)
        wanted = (*shape, self.config.features)
        if array.shape != wanted:
            raise TapelessError(f"features must have shape {_shape(wanted)}, not {_shape(array.shape)}.")
        if not np.issubdtype(array.dtype, np.number):
            raise TapelessError(f"features must be numbers, not {array.dtype}.")
        if np.iscomplexobj(array) and self.dtype != "complex128":
            raise TapelessError("features must be real numbers; give real and imaginary part as two features.")
        if not np.isfinite(array).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise TapelessError(f"features hold {array[where]} at {where}; clean the signal before training.")
        return array

    def _checked_targets(self, array: Array) -> Array:
        if self.config.readout == "last":
            if array.shape == (self.batch, self.time) and np.issubdtype(array.dtype, np.integer):
                early = np.argwhere(array[:, :-1] != -1)
                if len(early):
                    row, column = (int(i) for i in early[0])
                    raise TapelessError(
                        f"this model answers at the last position only, so targets before it must be −1, "
                        f"not {array[row, column]} at ({row}, {column}); or give targets of shape ({self.batch},)."
                    )
                array = array[:, -1]
            wanted: Shape = (self.batch,)
        else:
            wanted = (self.batch, self.time)
        array = _checked_ids("targets", array, wanted, -1, self.config.vocab)
        if (array < 0).all():
            raise TapelessError(
                "all targets are −1, so there is nothing to learn from; give at least one that is not."
            )
        return array


def check_shape(config: Config, batch: int, time: int) -> None:
    check_size("batch", batch)
    check_size("time", time)
    if time > config.context:
        raise TapelessError(
            f"time={time} is longer than the {config.context} positions of {config.name}: "
            f"use at most {config.context}, or override context."
        )


def _checked_ids(what: str, array: Array, shape: Shape, lowest: int, vocab: int) -> Array:
    if not np.issubdtype(array.dtype, np.integer):
        raise TapelessError(f"{what} must be integers, not {array.dtype}; convert them with .astype(int).")
    if array.shape != shape:
        raise TapelessError(f"{what} must have shape {_shape(shape)}, not {_shape(array.shape)}.")
    outside = (array < lowest) | (array >= vocab)
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        raise TapelessError(
            f"{what} hold {array[where]} at {where}; they must lie between {lowest} and {vocab - 1}."
        )
    return array


def _shape(shape: Shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def _named(arena: Arena, name: str) -> Array:
    return arena.array(arena.plan.placements[name].buffer)


def _run(bound: list[Bound]) -> None:
    for _, run in bound:
        run()
