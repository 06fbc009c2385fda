"""Transformers trained with no autograd tape: the backward pass is written by hand, and proven."""

from typing import TYPE_CHECKING, Any

from tapeless.errors import TapelessError
from tapeless.inputs import Packed
from tapeless.model import Model
from tapeless.models.config import Architecture, Layout, Optimizer, Preset
from tapeless.models.presets import PRESETS

if TYPE_CHECKING:
    from tapeless import check
    from tapeless.trained import Trained, load

__all__ = [
    "PRESETS",
    "Architecture",
    "Layout",
    "Model",
    "Optimizer",
    "Packed",
    "Preset",
    "TapelessError",
    "Trained",
    "check",
    "load",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`tapeless.check` and `tapeless.load` are loaded when they are used: neither is needed to make a model."""
    from importlib import import_module

    if name == "check":
        return import_module("tapeless.check")
    if name in ("load", "Trained"):
        return getattr(import_module("tapeless.trained"), name)
    raise AttributeError(f"module 'tapeless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
