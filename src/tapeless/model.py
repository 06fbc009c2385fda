"""A model: engines that share weights and memory, with the checks that a user needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from math import inf, sqrt
from threading import RLock
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from tapeless.attention import attention_weights
from tapeless.backends.backend import Backend, backend_named
from tapeless.backends.engine import Engine
from tapeless.errors import NonFiniteError, TapelessError, unknown
from tapeless.generate import generate
from tapeless.inputs import (
    check_seed,
    check_update,
    checked_count,
    checked_inputs,
    checked_steps,
    checked_targets,
    documents,
    inputs_name,
    spelled,
    unpacked,
)
from tapeless.lowering import lower
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset
from tapeless.models.parts import dropout
from tapeless.models.parts.rotary import turning_rates
from tapeless.models.presets import preset
from tapeless.ops.contract import Array, Shape
from tapeless.ops.positions.reference import sinusoid
from tapeless.program.arena import make_plan
from tapeless.program.call import Call, gradient_name
from tapeless.program.explanation import Explanation
from tapeless.shown import Sheet, Shown, size
from tapeless.step import DEFAULT_BACKEND, StepSpec

GRADIENTS, UPDATE = ("forward", "recompute", "backward"), ("clip", "update")
OF_AN_UPDATE = ("gradient_norm", "finite", "gradient_norms")  # what is known of one besides its loss
P = ParamSpec("P")
R = TypeVar("R")


def _alone(method: Callable[Concatenate[Model, P], R]) -> Callable[Concatenate[Model, P], R]:
    """One thread at a time: what a run reads and leaves is the same memory for all."""

    @wraps(method)
    def locked(self: Model, /, *given: P.args, **named: P.kwargs) -> R:
        with self._in_use:
            return method(self, *given, **named)

    return locked


class Model(Shown):
    """`Model("gpt2-4x256", batch=2, time=64, layers=2)`: a preset, with any field overridden by name. `params`, `grads`
    and `state` map names to arrays; `config` has its sizes, `plan` every byte, `program` every call."""

    def __init__(
        self,
        name: str | Preset,
        *,
        batch: int = 1,
        time: int | None = None,
        backend: str | Backend = DEFAULT_BACKEND,
        precision: str | None = None,
        optimizer: str | Optimizer | None = "preset",
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
        **fields: Any,
    ) -> None:
        """`class_weights`: how much each class counts in the loss, where rare ones are to count for more.

        `params`, `grads` and `state` are views of the backend's memory: NumPy arrays, and on the cuda backend torch
        tensors. `read` and `write` speak NumPy everywhere.
        """
        if "dtype" in fields:
            raise unknown("field", "dtype", ("precision",))
        check_seed(seed)
        kind = backend_named(backend)
        self.spec = spec = StepSpec.of(
            (name if isinstance(name, Preset) else preset(name)).override(**fields),
            batch=batch,
            seq_len=time,
            optimizer=optimizer,
            backend=kind,
            precision=precision,
            class_weights=class_weights,
        )
        self.preset, self.config, self.class_weights = spec.preset, spec.preset.architecture, spec.class_weights
        self.batch, self.time = spec.batch, spec.seq_len
        self.optimizer, self.backend, self.precision = spec.optimizer, kind.name, spec.precision
        self.plan, evaluation = spec.plans_that_fit()
        self.program = self.plan.program.original
        self.engine = Engine(self.plan, kind)
        self._evaluation = Engine(evaluation, kind, memory=self.engine.memory, full=self.engine)
        self._readout: tuple[Shape, Engine] | None = None

        weights = {weight.name: self.engine.view(weight) for weight in self.program.weights}
        self.params: Mapping[str, Any] = MappingProxyType(weights)
        gradients = {weight.name: self.engine.view(gradient_name(weight.name)) for weight in self.program.trained}
        self.grads: Mapping[str, Any] = MappingProxyType(gradients)
        state = [buffer for buffer in self.program.buffers if buffer.kind == "state"]
        # Counts are `steps` and `draws`.
        moments = {each.name: self.engine.view(each) for each in state if each.role != "index"}
        self.state: Mapping[str, Any] = MappingProxyType(moments)
        self._masters = self.engine.masters
        for name in self._masters:  # only `write` keeps a weight and its master copy together
            if isinstance(weights[name], np.ndarray):
                weights[name].flags.writeable = False
        self._run_number = 0  # of the lists that write a loss or a norm
        self._ended_run = 0  # the last of them that came to its end: a walk may be left before
        self._uses = 0  # of its memory, by whatever runs there
        self._lean = self.program.lean
        self._overwritten = False  # whether something lies where gradients that are lent would
        self._half_made = False  # whether a walk over the calls that make gradients was left before its end
        self._in_use = RLock()
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for weight in self.program.weights:
            if weight.initial is not None:
                self.write(weight.name, weight.initial.draw(weight.shape, rng))
        if self.config.positions == "sinusoidal":
            self.write("positions.table", sinusoid(self.config.context, self.config.channels))
        if self.preset.dropout:
            self.write(dropout.SEED, seed)
        if self.config.positions == "rotary":
            self.write("rotary.rates", turning_rates(self.config))
        if self.class_weights:
            self.write("class_weights", self.class_weights)
        if self.optimizer is not None:
            self.allow_updates()

    def _sheet(self) -> Sheet:
        made = f"{self.steps:,} update{'s' * (self.steps != 1)} made"
        learns = "no optimizer" if self.optimizer is None else f"{self.optimizer.name}, {made}"
        lines = [
            ("model", f"{self.config.described()}, context {self.config.context:,}"),
            ("weights", f"{self.parameters:,} parameters; {learns}"),
            ("step", f"batch {self.batch} × time {self.time}, {len(self.program.calls)} calls"),
            ("runs", f"on {self.backend} in {self.precision.described()}, in {size(self.plan.peak_bytes)}"),
        ]
        return Sheet(f"Model {self.preset.name}", lines)

    def explain(self, layer: int | None = None) -> Explanation:
        """The training step, call by call, with formulas and shapes; of one block alone with `layer`."""
        number = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
        if layer is not None and not (number and 0 <= layer < self.config.layers):
            raise TapelessError(f"there is no layer {layer!r}: this model has layers 0 to {self.config.layers - 1}.")
        return Explanation(self.preset.name, self.program, layer)

    def read(self, name: str) -> Array:
        """The values of a buffer, to be looked at before the next step. Of a weight that has a master copy, that. What
        a step needs only on its way lies where there was room, and between calls that run as one it is not written:
        `trace` shows everything."""
        self._check_known(name)
        master = self._masters.get(name)
        return self.engine.read(name) if master is None else self.engine.read(master).reshape(self.params[name].shape)

    def weights(self) -> dict[str, Array]:
        """The values of all weights, as `read` gives them: what a checkpoint keeps."""
        return {name: self.read(name) for name in self.params}

    def write(self, name: str, values: Any) -> None:
        """Into a buffer. Of a weight that has a master copy, into that, and the weight is its rounding."""
        self._check_known(name)
        if name in self.params:
            values = _spread(name, np.asarray(values), tuple(self.params[name].shape))
        if name in self._masters:
            self.engine.write(self._masters[name], values.reshape(-1))
            values = self.read(name)
        self.engine.write(name, values)

    def _check_known(self, name: str) -> None:
        if name not in self.plan.placements:
            raise unknown("buffer", name, self.plan.placements)

    @property
    def parameters(self) -> int:
        """How many numbers its weights are."""
        return self.program.parameters

    @property
    def steps(self) -> int:
        """Updates made. The list of calls counts them itself."""
        return 0 if self.optimizer is None else int(self.read("step")[0])

    @steps.setter
    def steps(self, made: int) -> None:
        if self.optimizer is None:
            raise TapelessError("this model was made with optimizer=None: it makes no updates that could be counted.")
        self.write("step", checked_steps(made))

    @property
    def draws(self) -> int:
        """Batches that were learned from: each has random numbers of its own, where there is dropout. Set back to what
        it was, the same come again."""
        return int(self.read(dropout.NUMBER)[0]) if self.preset.dropout else 0

    @draws.setter
    def draws(self, made: int) -> None:
        if self.preset.dropout:
            self.write(dropout.NUMBER, made)

    @property
    def gradient_norms(self) -> dict[str, float]:
        """The norm of each layer's gradients as they are now: of "embedding", "blocks.0", …, "head"."""
        squares: dict[str, float] = {}
        for weight in self.program.weights:
            if weight.name in self.grads:
                norm = np.linalg.norm(self.read(gradient_name(weight.name)).astype(np.complex128))
                squares[weight.section] = squares.get(weight.section, 0.0) + float(norm) ** 2
        return {section: sqrt(square) for section, square in squares.items()}

    @_alone
    def forward_backward(
        self, inputs: Any, targets: Any, *, accumulate: bool = False, count: float | None = None
    ) -> float:
        """The loss, and in `grads` its gradient. `inputs`: token ids (B, T), or features (B, T, features), or `Packed`.

        `accumulate` adds to the gradients that are there instead of starting from zero. Loss and gradients are means
        over this batch's targets; with `count`, the number of targets in all the batches that are added up (`weigh`
        tells), they are this batch's share of the mean over all of them, and the sum is what one big batch would give.
        """
        return self.partial_step(inputs, targets, accumulate=accumulate, count=count).loss

    @_alone
    def partial_step(
        self, inputs: Any, targets: Any, *, accumulate: bool = False, count: float | None = None
    ) -> Stepped:
        """`forward_backward`, without a look at the loss."""
        phases = self._gradients(accumulate)
        self.feed(inputs, targets, count)
        return self._ran(*phases)

    @_alone
    def loss(self, inputs: Any, targets: Any) -> float:
        """The loss alone; gradients, and what an update needs to know, stay as they are, unless the model is lean."""
        self.feed(inputs, targets)
        self._overwritten = self._lean
        self._evaluation.run()
        loss: float = self._evaluation.read("evaluated")[0].item()
        return loss

    @_alone
    def update(self, lr: float, *, clip: float | None = None) -> float:
        """One optimizer step with the gradients as they are; returns their global norm before clipping.

        Gradients that are not finite, or too large to be squared, are refused, and so is a loss that is not: nothing
        has changed then.
        """
        self.prepare_update(lr, clip)
        self._check_whole()
        if self._overwritten:
            raise TapelessError(
                "the gradients are gone: of a lean model they lie where the loss, which was asked for since, has been "
                "computed; make them again (forward_backward), or the model with lean=False."
            )
        made = self._ran(*UPDATE)
        if not made.finite:
            raise NonFiniteError(f"{made.refusal}.")
        return made.norm

    @_alone
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
        return self._ran(*self._prepared(inputs, targets, lr, clip, accumulate, count))

    def walk_step(
        self,
        inputs: Any,
        targets: Any,
        *,
        lr: float,
        clip: float | None = None,
        accumulate: bool = False,
        count: float | None = None,
    ) -> tuple[Iterator[Call], Stepped]:
        """`step`, call by call: each is yielded right after it ran. What came of it can be asked when all have."""
        phases = self._prepared(inputs, targets, lr, clip, accumulate, count)
        self._run_number += 1
        return self._walk(phases, self._uses, self._run_number), Stepped(self, self._run_number, phases)

    def _prepared(
        self, inputs: Any, targets: Any, lr: float, clip: float | None, accumulate: bool, count: float | None
    ) -> tuple[str, ...]:
        """A step ready to run: the phases it consists of."""
        phases = self._gradients(accumulate)
        self._check_update(lr, clip)
        self.feed(inputs, targets, count)
        self.prepare_update(lr, clip)
        return (*phases, *UPDATE)

    def _gradients(self, accumulate: bool) -> tuple[str, ...]:
        """The phases that make them."""
        if accumulate and self._lean:
            raise TapelessError(
                "this model is lean: its gradients lie where activations do, so those of several batches cannot be "
                "added up; make it with lean=False."
            )
        if accumulate:
            self._check_whole()
        self._overwritten = self._half_made = False
        return (*([] if accumulate else ["zero"]), *GRADIENTS)

    def _check_whole(self) -> None:
        if self._half_made:
            raise TapelessError(
                "the gradients are half made: a walk over the calls that make them was left before its end; make them "
                "again (forward_backward)."
            )

    def _walk(self, phases: tuple[str, ...], use: int, number: int) -> Iterator[Call]:
        self._check_walked(use)
        calls = [call for call in self.program.calls if call.phase in phases]
        last_gradient = [call for call in calls if call.phase in GRADIENTS][-1]
        self._half_made = True
        for call in self.engine.walk(*phases):
            if call is last_gradient:
                self._overwritten = self._half_made = False
            if call is calls[-1]:
                self._ended_run = number
            yield call
            if call is not calls[-1]:
                self._check_walked(use)

    def _check_walked(self, use: int) -> None:
        if self._uses != use:
            raise TapelessError(
                "the model ran again in the middle of a walk over its calls, in the same memory: end the one "
                "before the other, or take two models."
            )

    def _ran(self, *phases: str) -> Stepped:
        self._uses += 1
        self._run_number += 1
        self.engine.run(*phases)
        self._ended_run = self._run_number
        return Stepped(self, self._run_number, phases)

    def _check_update(self, lr: Any, clip: Any) -> None:
        if self.optimizer is None:
            raise TapelessError("this model was made with optimizer=None: it has gradients but no update.")
        check_update(lr, clip, self.precision.master)

    def prepare_update(self, lr: float, clip: float | None) -> None:
        """What changes each step lives in buffers; the list of calls never changes."""
        self._check_update(lr, clip)
        self.write("lr", lr)
        self.write("limit", inf if clip is None else clip)

    def allow_updates(self) -> None:
        """From now on updates are made, of gradients that can be squared in their own type: so it is at the beginning,
        and so it is again after a step that was kept and was not finite (`Stepped.keep`)."""
        self.write("largest", np.sqrt(np.finfo(self.precision.gradient).max))

    @_alone
    def logits(self, inputs: Any) -> Array:
        """The scores of every word, (B, T, vocab), or (B, vocab) where the model answers once per sequence.

        Any batch, any time up to the context. For squared-error models: minus the squared distance to every
        embedding. Runs in memory of its own (the scores can be larger than the model); weights are shared.
        """
        engine = self._reader(inputs)
        engine.run()
        scores = engine.read("scores").copy()
        return scores[:, -1] if self.config.readout == "last" else scores

    @_alone
    def attention(self, inputs: Any) -> dict[str, Array]:
        """What every head looks at: for each block, by its name ("blocks.0", …), weights of shape (B, heads, T, T).

        `attention(tokens)["blocks.2"][0, 5]` is head 5 of block 2 on the first sequence; its row t says how much
        position t takes of each position, and adds up to 1. Any batch, any time up to the context. Where the model
        answers once per sequence, the last block has one query: (B, heads, 1, T).
        """
        return attention_weights(self._reader(inputs))

    def _reader(self, inputs: Any) -> Engine:
        """The readout for inputs of this shape, which it has been given; its scores are made when it runs."""
        tokens, segments = unpacked(inputs)
        array = checked_inputs(self.config, tokens, None, self.precision.activation)
        batch, time = array.shape[:2]
        places = documents(self.config, segments, (batch, time))
        if self._readout is None or self._readout[0] != (batch, time):
            program, backend = transformer.readout(self.preset, batch, time), self.engine.backend
            with self.engine.as_made():
                lowered = lower(program, backend.rules(self.precision))
                plan = make_plan(lowered, self.precision, backend.scratch, lent=True)
                self._readout = (batch, time), Engine(plan, backend, lender=self.engine)
        engine = self._readout[1]
        for name, values in {inputs_name(self.config): array, **places}.items():
            engine.write(name, values)
        return engine

    def generate(self, tokens: Any, count: int, **options: Any) -> list[int]:
        """Up to `count` tokens that follow `tokens`; the options are those of `tapeless.generate.generate`."""
        return list(generate(self, tokens, count, **options))

    def trace(self, inputs: Any, targets: Any, *, lr: float | None = None) -> Iterator[tuple[Call, dict[str, Any]]]:
        """Zero, forward and backward, call by call, each with its arrays by argument name, right after it ran.

        With `lr`, clip and update too. The arrays are views: what a later call overwrites is gone, so copy what
        you want to keep; and do not run the model before the last one has come.
        """
        if lr is not None:
            self._check_update(lr, None)
        self.feed(inputs, targets)
        if lr is not None:
            self.prepare_update(lr, None)
        phases = ("zero", *GRADIENTS, *(UPDATE if lr is not None else ()))
        self._run_number += 1
        walk = self._walk(phases, self._uses, self._run_number)
        return ((call, self.engine.arguments(call)) for call in walk)

    def weigh(self, targets: Any) -> float:
        """What a mean over these targets is divided by: how many there are, or the sum of their classes' weights."""
        valid = np.asarray(targets)
        valid = valid[valid >= 0]
        weights = self.class_weights
        return float(len(valid)) if weights is None else float(np.asarray(weights)[valid].sum())

    def feed(self, inputs: Any, targets: Any, count: float | None = None) -> None:
        """Check everything, then fill the input buffers: a refused batch changes nothing."""
        tokens, segments = unpacked(inputs)
        array = checked_inputs(self.config, tokens, (self.batch, self.time), self.precision.activation)
        places = documents(self.config, segments, (self.batch, self.time))
        wanted = checked_targets(self.config, targets, self.batch, self.time, empty=count is not None)
        counted = checked_count(count, self.weigh(wanted))
        self._uses += 1
        # Where all documents begin at 0, nobody needs to read that.
        said = frozenset(name for name, values in places.items() if name == "starts" and not values.any())
        omits = self.engine.backend.rules(self.precision).omits
        self.engine.omitted = self._evaluation.omitted = said if omits else frozenset()
        for name, values in {inputs_name(self.config): array, **places, "targets": wanted, "count": counted}.items():
            self.write(name, values)


def _spread(name: str, values: Array, shape: Shape) -> Array:
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise TapelessError(f"{name} has shape {spelled(shape)}, so {spelled(values.shape)} does not fit.") from None


class Stepped:
    """What came of a run of the model. It is read from the model's memory when it is asked for: before the model runs
    again, unless it is kept."""

    def __init__(self, model: Model, number: int, phases: tuple[str, ...]) -> None:
        self._model, self._number, self._phases = model, number, phases
        self._kept: Callable[[], dict[str, Array]] | None = None

    def __repr__(self) -> str:
        if self._kept is None and self._number != self._model._run_number:
            return "<a step that the model has left behind>"
        if self._kept is None and self._number != self._model._ended_run:
            return "<a step that is not through>"
        if self._model.optimizer is None:
            return f"<loss {self.loss:.6g}>"
        return f"<loss {self.loss:.6g}, gradient norm {self.norm:.4g}{'' if self.finite else ', not updated'}>"

    def keep(self) -> None:
        """What came of this run can be asked when the model has run again: it is copied as soon as it is there. If it
        is not finite, no update is made from here on, until updates are allowed again (`Model.allow_updates`)."""
        engine, updated = self._model.engine, UPDATE[-1] in self._phases
        names = ("loss", *(OF_AN_UPDATE if updated else ()))
        self._check_there()
        seen = engine.view("finite" if updated else "loss")
        disable = None if self._model.optimizer is None else (engine.view("largest"), seen)
        later = engine.backend.read_later([engine.view(name) for name in names], disable)
        self._kept = cache(lambda: dict(zip(names, later(), strict=True)))

    def read(self, name: str) -> Array:
        """The values of a buffer that it wrote."""
        kept = {} if self._kept is None else self._kept()
        if name in kept:
            return kept[name]
        self._check_there()
        return self._model.read(name)

    def _check_there(self) -> None:
        if self._number != self._model._run_number:
            raise TapelessError("the model has run again since: ask for what came of a step before the next.")
        if self._number != self._model._ended_run:
            raise TapelessError("this step is not through: go through all of its calls, then ask for what came of it.")

    def _read(self, name: str) -> Any:
        return self.read(name)[0].item()

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
        """Why it was not; nothing where it was."""
        if self.finite:
            return ""
        loss = self.loss
        what = f"the gradients have a norm of {self.norm:g} in {self._model.precision.gradient}"
        return f"{what if np.isfinite(loss) else f'the loss is {loss:g}'}: the weights were not changed"
