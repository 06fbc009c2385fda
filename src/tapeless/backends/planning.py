"""The memory of a model, planned before it is asked for, and what is said where there is not so much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tapeless.backends.backend import Backend
from tapeless.backends.memory import free_for_arena, largest_batch
from tapeless.errors import TapelessError
from tapeless.lowering import lower
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset
from tapeless.program.arena import Plan, least_bytes, make_plans
from tapeless.program.call import Program
from tapeless.program.precision import Precision

FEWER_ROWS = 1024  # of logits at a time: a chunk that is tried where a larger one does not fit


def laid_out(preset: Preset, backend: Backend, precision: Precision) -> Preset:
    """With as many rows of logits at a time as suit the backend, unless it says how many, or the backend does not."""
    rows = preset.layout.chunk or backend.traits.logits_chunk(preset.architecture.vocab, precision)
    return preset if rows is None else preset.override(chunk=rows)


@dataclass(frozen=True)
class Wanted:
    """What decides the plans of a model."""

    preset: Preset
    batch: int
    time: int
    optimizer: Optimizer | None
    precision: Precision
    backend: Backend
    weighted: bool = False

    def plans(self, *, verified: bool = True) -> tuple[Plan, Plan]:
        """Of the training step and of the evaluation that shares its memory."""
        rules = self.backend.rules(self.precision)
        training = lower(self._training(verified), rules, verified=verified)
        evaluation = transformer.evaluation(self._laid_out, self.batch, self.time, weighted=self.weighted)
        lowered = lower(evaluation, rules, verified=verified)
        return make_plans(training, lowered, self.precision, self.backend.scratch)

    @property
    def _laid_out(self) -> Preset:
        return laid_out(self.preset, self.backend, self.precision)

    def _training(self, verified: bool) -> Program:
        return transformer.training(
            self._laid_out,
            self.batch,
            self.time,
            self.optimizer,
            master=self.precision.has_master,
            weighted=self.weighted,
            verified=verified,
        )

    def largest_batch(self, room: int, beside: int = 0) -> int:
        """The largest that this much memory has room for, with `beside` for what is not the model. Only sizes are asked
        for, of lists that differ from the verified one in nothing else: they are not verified again."""

        def needs(batch: int) -> int:
            return replace(self, batch=batch).plans(verified=False)[0].peak_bytes + beside

        def least(batch: int) -> int:
            program = replace(self, batch=batch)._training(verified=False)
            lowered = lower(program, self.backend.rules(self.precision), verified=False)
            return least_bytes(lowered, self.precision, self.backend.scratch) + beside

        return largest_batch(needs, room, least)

    def plans_that_fit(self) -> tuple[Plan, Plan]:
        """The same, unless the backend has no room for them: then the largest batch that has, and what would help."""
        made = self.plans()
        room = free_for_arena(self.backend.name)
        if room is not None and made[0].peak_bytes > room:
            raise TapelessError(self._does_not_fit(made[0].peak_bytes, room))
        return made

    def _does_not_fit(self, needed: int, room: int) -> str:
        largest = self.largest_batch(room)
        remedies = [f"batch {largest} fits"] if largest else []
        for setting, other in self._leaner():
            largest = other.largest_batch(room)
            if largest:
                remedies.append(f"with {setting} batch {largest} fits")
        if not remedies:
            remedies.append("no batch fits, so take a smaller model, or freeze most of it (frozen=...)")
        shape = f"{self.preset.name} at batch {self.batch}, time {self.time}"
        return f"{shape} needs {needed:,} bytes and the GPU has {room:,} to give: {', '.join(remedies)}."

    def _leaner(self) -> Iterator[tuple[str, Wanted]]:
        """Settings that take less memory and compute the same."""
        layout = self._laid_out.layout
        if not layout.lean:
            yield "lean=True", replace(self, preset=self.preset.override(lean=True))
        if not layout.recompute:
            yield "recompute=True", replace(self, preset=self.preset.override(recompute=True))
        if layout.chunk is not None and layout.chunk > FEWER_ROWS:
            yield f"chunk={FEWER_ROWS}", replace(self, preset=self.preset.override(chunk=FEWER_ROWS))
