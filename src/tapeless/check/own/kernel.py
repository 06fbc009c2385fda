"""`tapeless.check.kernel`: somebody else's kernel in a whole model, beside the reference and beside ours.

A walk over one training step. At each call of the op the kernel runs on the model's own memory, filled so that
nothing it forgets or touches in passing stays hidden; then the call is judged in lockstep with the float64 reference.
After that, a hundred steps of training with the kernel and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, nan
from typing import Any

import numpy as np

from tapeless.backends.backend import backend_named
from tapeless.check.configurations import Configuration
from tapeless.check.lockstep import Difference
from tapeless.check.own.walk import OwnKernel, Speed, Swap, Swapped, drift, losses, walk
from tapeless.check.tolerances import LOCKSTEP_INHERENT, TOLERANCES
from tapeless.errors import TapelessError, unknown
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset
from tapeless.models.presets import PRESETS
from tapeless.models.presets import preset as preset_named
from tapeless.ops import OPS
from tapeless.shown import Told

# Difference of the losses over 100 steps, beside the first loss, by type.
DRIFT = {dtype: TOLERANCES[f"{dtype} loss curve"] for dtype in ("float32", "float64")}

SMALL = {"layers": 2, "channels": 128, "heads": 4, "context": 32, "vocab": 256, "chunk": 24}
SPREAD = 0.1  # of the random weights of the walk
BATCHES = 4  # that training goes round and round, so that there is something to learn


@dataclass(frozen=True, repr=False)
class KernelReport(Told):
    """`print(report)` to read it, `if report:` to use it, `report.raise_if_wrong()` to insist."""

    name: str
    faults: tuple[str, ...]  # outputs not written, inputs changed, results that differ: one sentence each
    differences: tuple[Difference, ...]  # every result of every call of the kernel, beside the reference
    speeds: tuple[Speed, ...]
    steps: int
    drift: float  # the largest difference of the losses over the steps, beside the first loss; NaN where not run
    drift_allowed: float

    @property
    def first_wrong(self) -> Difference | None:
        """The first result that is not what the reference says."""
        return next((each for each in self.differences if not each.ok), None)

    @property
    def ok(self) -> bool:
        """Whether the kernel holds."""
        return not self.faults and self.first_wrong is None and (self.drift <= self.drift_allowed or not self.steps)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.name}: {'holds' if self.ok else 'does not hold'}.", *(f"  {x}" for x in self._lines())]
        )

    def _lines(self) -> Iterator[str]:
        yield from self.faults
        wrong = [each for each in self.differences if not each.ok]
        calls = len({each.number for each in self.differences})
        if wrong:
            yield f"parity: {len(wrong)} of {len(self.differences)} results of {calls} calls are off, the first:"
            yield f"  {_place(wrong[0])}"
        elif self.differences:
            worst = max(self.differences, key=lambda each: each.error / each.tolerance)
            yield (
                f"parity: {len(self.differences)} results of {calls} calls agree with the float64 reference, the worst "
                f"at {worst.error / worst.tolerance:.0%} of what is allowed ({worst.argument} of {worst.call.title})"
            )
        for speed in self.speeds:
            yield f"speed: {speed}"
        if isfinite(self.drift):
            off = f"{self.drift:.1e} of the first (allowed {self.drift_allowed:.0e})"
            yield f"drift: over {self.steps} training steps the loss is off by at most {off}"
        elif self.drift == inf:
            yield f"drift: the loss does not stay finite over {self.steps} steps"

    def raise_if_wrong(self) -> None:
        """Raise TapelessError, with the whole report, unless the kernel holds."""
        if not self.ok:
            raise TapelessError(str(self))


def _place(difference: Difference) -> str:
    return f"{difference.call.section}, {difference}"


def kernel(
    name: str,
    *,
    forward: OwnKernel | None = None,
    backward: OwnKernel | None = None,
    backend: str = "cpu",
    preset: str | None = None,
    batch: int = 2,
    time: int = 32,
    steps: int = 100,
    repeats: int = 3,
    seed: int = 0,
    **fields: Any,
) -> KernelReport:
    """Put your own forward, backward or both in the place of ours, and see whether the model notices.

    A kernel takes the arguments of ours (see `ops/<name>/reference.py`): outputs, inputs, scalars. It writes into the
    outputs and returns nothing. Where it has a parameter `add`, that holds the names of the outputs to add to; where it
    has none, it always overwrites, and adding is done for it. `preset` is one that uses the op, made small; any field
    can be overridden by name. `steps=0` leaves the training out.
    """
    swap = Swap(name, _checked_kernels(name, forward, backward))
    _check_count("steps", steps, 0)
    _check_count("repeats", repeats, 2)
    ours = backend_named(backend)
    if ours.name == "cuda":
        raise TapelessError("a kernel of yours is tried on NumPy's arrays: take backend='cpu' or 'reference'.")
    config = _config_with(swap, preset, fields)
    make = partial(Model, config, batch=batch, time=time, backend=backend, seed=seed)
    model = make()
    rng = np.random.default_rng(seed)
    made = Configuration(config.name, config.name, batch=batch, time=time, spread=SPREAD)
    batches = [made.batch_of(rng, model) for _ in range(BATCHES)]
    made.scramble(rng, model)
    yours = Swapped(ours, swap)
    with np.errstate(all="ignore"):  # what a wrong kernel leads to is part of the report
        faults, differences, speeds = walk(model, swap, yours, ours, batches[0], repeats)
        off, allowed = nan, DRIFT[model.precision.name]
        if steps and not faults:  # a kernel that writes where it should not could break anything
            without = losses(make(), ours, batches, steps)
            off = drift(losses(make(), yours, batches, steps), without)
            if allowed < off < inf:  # some models amplify every rounding: no kernel can be asked for less than that
                allowed += LOCKSTEP_INHERENT * drift(losses(make(), ours, batches, steps, shaken=True), without)
    return KernelReport(name, faults, differences, speeds, steps, off, allowed)


def _config_with(swap: Swap, preset: str | None, fields: dict[str, Any]) -> Preset:
    """The preset asked for, else the first that uses the op, made small."""
    names = (
        ("gpt2-4x256", "ops-102k", "cllm", "sunfish", "llama-4x256") if preset is None else (preset_named(preset).name,)
    )
    lacking = set(swap.kernels)
    for name in names:
        usual = PRESETS[name].architecture
        kept = {"features": 6, "vocab": usual.vocab} if usual.features else {}
        config = PRESETS[name].override(**SMALL | kept | fields)
        calls = transformer.training(config, 1, 1, Optimizer(config.optimizer)).calls
        missing = set(swap.kernels) - {call.direction for call in calls if swap.has(call)}
        if not missing:
            return config
        lacking = min(lacking, missing, key=len)
    raise TapelessError(
        f"the training step of {preset or 'every preset'} has no {swap.name}.{max(lacking)}: choose another preset, "
        f"a field such as activation='relu' or dropout=0.1, or leave that direction out."
    )


def _checked_kernels(name: str, forward: Any, backward: Any) -> dict[str, OwnKernel]:
    if name not in OPS:
        raise unknown("op", name, OPS)
    kernels = {"forward": forward, "backward": backward}
    given = {direction: function for direction, function in kernels.items() if function is not None}
    if not given:
        raise TapelessError("there is nothing to check: give forward=…, backward=… or both.")
    for direction, function in given.items():
        if not callable(function):
            raise TapelessError(f"{direction} must be a function, not {function!r}.")
    if "backward" in given and OPS[name].SPEC.backward is None:
        raise TapelessError(f"{name} has no backward: give its forward alone.")
    return given


def _check_count(what: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TapelessError(f"{what} must be a whole number of at least {least}, not {value!r}.")
