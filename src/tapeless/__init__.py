"""Transformers trained with no autograd tape: the backward pass is written by hand, and proven."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapeless import check
    from tapeless.errors import TapelessError
    from tapeless.inputs import Packed
    from tapeless.model import Model
    from tapeless.models.config import Architecture, Layout, Optimizer, Preset
    from tapeless.models.presets import PRESETS
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
_MODULES = {
    "PRESETS": "models.presets",
    "Architecture": "models.config",
    "Layout": "models.config",
    "Model": "model",
    "Optimizer": "models.config",
    "Packed": "inputs",
    "Preset": "models.config",
    "TapelessError": "errors",
    "Trained": "trained",
    "load": "trained",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is used: a plan needs no model, and a model no checks."""
    from importlib import import_module

    if name == "check":
        return import_module("tapeless.check")
    if name in _MODULES:
        return getattr(import_module(f"tapeless.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'tapeless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
