"""The wiring of a preset, proven at its full size without running it: the verifier shows that every gradient is the sum
of what comes back through each use of its weight. With every op's backward the derivative of its forward, that is the
chain rule, and the whole gradient is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tapeless.errors import ProgramError
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS

BATCH = 2


@dataclass(frozen=True)
class Wiring:
    preset: str
    parameters: int
    calls: int
    gradients: int
    ops: tuple[str, ...]  # those with a backward, on which the rest of the proof stands
    refusal: str = ""  # the verifier's sentence

    @property
    def ok(self) -> bool:
        return not self.refusal


def check_wiring(name: str, preset: Preset | None = None, optimizer: Optimizer | None = None, **how: Any) -> Wiring:
    """Of the whole training step, over the longest context; of a preset, or of a model of somebody's own."""
    preset = preset or PRESETS[name]
    optimizer = optimizer or Optimizer(preset.optimizer)
    try:
        program = transformer.training(preset, BATCH, preset.architecture.context, optimizer, **how)
    except ProgramError as refusal:
        return Wiring(name, 0, 0, 0, (), str(refusal))
    used = {call.op for call in program.calls}
    ops = tuple(op for op in OPS if op in used and OPS[op].SPEC.backward)
    return Wiring(name, program.parameters, len(program.calls), len(program.trained), ops)
