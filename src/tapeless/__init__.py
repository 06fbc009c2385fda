"""Transformers trained with no autograd tape: the backward pass is written by hand, and proven."""

from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.models.config import Config, Optimizer
from tapeless.models.presets import PRESETS

__all__ = ["PRESETS", "Config", "Model", "Optimizer", "TapelessError"]
__version__ = "0.1.0"
