"""Transformers trained with no autograd tape: the backward pass is written by hand, and proven."""

from types import ModuleType

from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.models.config import Architecture, Layout, Optimizer, Preset
from tapeless.models.presets import PRESETS

__all__ = ["PRESETS", "Architecture", "Layout", "Model", "Optimizer", "Preset", "TapelessError"]
__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    """`tapeless.check` is loaded when it is used."""
    if name == "check":
        from importlib import import_module

        return import_module("tapeless.check")
    raise AttributeError(f"module 'tapeless' has no attribute {name!r}")
