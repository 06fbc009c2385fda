"""One description of a training step, from which its program, its plan and its model are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tapeless.backends.backend import BACKENDS, Backend, planner_named, precision_for
from tapeless.errors import TapelessError
from tapeless.inputs import check_shape
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset, checked_class_weights
from tapeless.models.presets import preset as preset_named
from tapeless.program.call import Program
from tapeless.program.precision import Precision

if TYPE_CHECKING:  # what lists the calls loads no more than they need
    from tapeless.model import Model
    from tapeless.program.arena import Plan
    from tapeless.program.lowered import LoweredProgram

DEFAULT_BACKEND = "cpu"
FEWER_ROWS = 1024  # of logits at a time: a chunk that is tried where a larger one does not fit


@dataclass(frozen=True)
class StepSpec:
    """What decides a training step. `StepSpec.of` fills in what is left out, and checks everything.

    The precision has the type of frozen matrices in it, and the preset what is frozen, adapted and recomputed.
    """

    preset: Preset
    batch: int
    seq_len: int
    optimizer: Optimizer | None
    backend: Backend
    precision: Precision
    class_weights: tuple[float, ...] | None = None

    @classmethod
    def of(
        cls,
        preset: str | Preset,
        *,
        batch: int = 1,
        seq_len: int | None = None,
        optimizer: str | Optimizer | None = "preset",
        backend: str | Backend = DEFAULT_BACKEND,
        precision: str | None = None,
        class_weights: tuple[float, ...] | None = None,
    ) -> StepSpec:
        """By default one sequence as long as the model reads, with the preset's optimizer, in the backend's precision.
        To plan for a GPU needs none."""
        chosen = preset if isinstance(preset, Preset) else preset_named(preset)
        config = chosen.architecture
        weights = checked_class_weights(config, class_weights)
        seq_len = config.context if seq_len is None else seq_len
        check_shape(config, batch, seq_len)
        if optimizer == "preset":
            optimizer = chosen.optimizer
        if not isinstance(optimizer, Optimizer | None):
            optimizer = Optimizer(optimizer)
        kind = planner_named(backend)
        types = precision_for(kind, precision, chosen.frozen_precision)
        return cls(chosen, int(batch), int(seq_len), optimizer, kind, types, weights)

    @property
    def laid_out(self) -> Preset:
        """The preset with as many rows of logits at a time as suit the backend, unless it or the backend says no
        number."""
        config = self.preset.architecture
        rows = self.preset.layout.chunk or self.backend.traits.logits_chunk(config.vocab, self.precision)
        return self.preset if rows is None else self.preset.override(chunk=rows)

    def program(self, *, verified: bool = True) -> Program:
        """The training step, call by call; nothing is allocated for it."""
        return transformer.training(
            self.laid_out,
            self.batch,
            self.seq_len,
            self.optimizer,
            master=self.precision.has_master,
            weighted=self.class_weights is not None,
            verified=verified,
        )

    def plan(self) -> Plan:
        """The memory of the step, to the byte."""
        return self.plans()[0]

    def plans(self, *, verified: bool = True) -> tuple[Plan, Plan]:
        """The plans of the step and of the evaluation that shares its memory."""
        from tapeless.collection import paused
        from tapeless.program.arena import make_plans

        weighted = self.class_weights is not None
        evaluation = transformer.evaluation(self.laid_out, self.batch, self.seq_len, weighted=weighted)
        with paused():
            lowered = self._lowered(self.program(verified=verified), verified), self._lowered(evaluation, verified)
            return make_plans(*lowered, self.precision, self.backend.scratch)

    def _lowered(self, program: Program, verified: bool) -> LoweredProgram:
        """The list that the backend runs."""
        from tapeless.lowering import lower

        return lower(program, self.backend.rules(self.precision), verified=verified)

    def plans_that_fit(self) -> tuple[Plan, Plan]:
        """The same, or a refusal with the largest batch that the backend has memory for, and what would help."""
        from tapeless.backends.memory import free_for_arena

        made = self.plans()
        room = free_for_arena(self.backend.name)
        if room is not None and made[0].peak_bytes > room:
            raise TapelessError(self._does_not_fit(made[0].peak_bytes, room))
        return made

    def model(self, seed: int = 0) -> Model:
        """A model that makes this step, with its first weights."""
        from tapeless.model import Model

        return Model(
            self.preset,
            batch=self.batch,
            time=self.seq_len,
            # What only plans cannot run.
            backend=self.backend.name if self.backend.name in BACKENDS else self.backend,
            precision=self.precision.name,
            optimizer=self.optimizer,
            class_weights=self.class_weights,
            seed=seed,
        )

    def largest_batch(self, room: int, beside: int = 0) -> int:
        """The largest that this much memory has room for, with `beside` for what is not the model. Only sizes are asked
        for, of lists that differ from the verified one in nothing else: they are not verified again."""
        from tapeless.backends.memory import largest_batch
        from tapeless.program.arena import least_bytes

        def needs(batch: int) -> int:
            return replace(self, batch=batch).plans(verified=False)[0].peak_bytes + beside

        def least(batch: int) -> int:
            program = self._lowered(replace(self, batch=batch).program(verified=False), verified=False)
            return least_bytes(program, self.precision, self.backend.scratch) + beside

        return largest_batch(needs, room, least)

    def _does_not_fit(self, needed: int, room: int) -> str:
        largest = self.largest_batch(room)
        remedies = [f"batch {largest} fits"] if largest else []
        for setting, other in self._leaner():
            largest = other.largest_batch(room)
            if largest:
                remedies.append(f"with {setting} batch {largest} fits")
        if not remedies:
            remedies.append("no batch fits, so take a smaller model, or freeze most of it (frozen=...)")
        shape = f"{self.preset.name} at batch {self.batch}, time {self.seq_len}"
        return f"{shape} needs {needed:,} bytes and the GPU has {room:,} to give: {', '.join(remedies)}."

    def _leaner(self) -> Iterator[tuple[str, StepSpec]]:
        """Settings that take less memory and compute the same."""
        layout = self.laid_out.layout
        if not layout.lean:
            yield "lean=True", replace(self, preset=self.preset.override(lean=True))
        if not layout.recompute:
            yield "recompute=True", replace(self, preset=self.preset.override(recompute=True))
        if layout.chunk is not None and layout.chunk > FEWER_ROWS:
            yield f"chunk={FEWER_ROWS}", replace(self, preset=self.preset.override(chunk=FEWER_ROWS))
