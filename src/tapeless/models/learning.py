"""Which weights a training moves: all, or those that `train` names, or with LoRA the adapters and what it names; and of
those none that are `frozen`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tapeless.errors import TapelessError
from tapeless.models.config import Preset
from tapeless.program.call import Weight

# What several weights together are called; any of them, and any part of a model, can be named by a pattern.
GROUPS = {
    "norms": ("norm.*", "*.norm[12].*", "*_norm.*"),
    "biases": ("*.bias",),
    "embedding": ("tokens.*", "positions.*", "input.*"),
}


def is_trained(preset: Preset, weight: Weight) -> bool:
    if any(fnmatchcase(weight.name, pattern) for pattern in preset.frozen):
        return False
    if weight.adapter:
        return True
    if not preset.train:
        return preset.lora is None
    return any(_named(preset, weight.name, wanted) for wanted in preset.train)


def _named(preset: Preset, name: str, wanted: str) -> bool:
    """ "norms", "blocks.11", "blocks.11.mlp", "head", or a pattern over whole names."""
    if wanted == "head" and preset.architecture.tied:
        wanted = "tokens"  # it is the same matrix
    patterns = GROUPS.get(wanted, (wanted, f"{wanted}.*"))
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_trained(preset: Preset, weights: Sequence[Weight]) -> None:
    """Every name means something, something is trained, and what is said of frozen matrices is of some."""
    names = [weight.name for weight in weights if not weight.adapter]
    called = f"they are called {names[0]}, {names[-1]} and so on, and * stands for any part of a name"
    for pattern in preset.frozen:
        if not any(fnmatchcase(weight.name, pattern) for weight in weights):
            raise TapelessError(f"frozen={pattern!r} is the name of no weight: {called}.")
    for wanted in preset.train:
        if not any(_named(preset, name, wanted) for name in names):
            parts = f"blocks.0 to blocks.{preset.architecture.layers - 1}, head, {', '.join(GROUPS)}"
            raise TapelessError(f"train={wanted!r} is the name of no weight: name {parts}, or single ones; {called}.")
    if not any(is_trained(preset, weight) for weight in weights):
        raise TapelessError("every weight is frozen, so there is nothing to train: leave one out.")
    if preset.frozen_precision and not any(weight.role == "frozen" for weight in weights):
        raise TapelessError(
            f"frozen_precision={preset.frozen_precision!r} is of matrices that are not trained, and here all are: "
            f"freeze some (lora=16, or train or frozen with names), or leave it out."
        )
