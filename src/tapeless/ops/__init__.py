"""The mathematics: a folder per op. A new op is one folder and one line here."""

from importlib import import_module
from types import ModuleType

NAMES = (
    "embedding",
    "positions",
    "positions_at",
    "linear",
    "adapt",
    "layernorm",
    "rmsnorm",
    "angles",
    "rope",
    "attention",
    "remember",
    "cached_attention",
    "gelu",
    "relu",
    "tanh",
    "swiglu",
    "residual",
    "count_draws",
    "dropout",
    "last_position",
    "classifier",
    "squared_error",
    "unembed",
    "proximity",
    "zero",
    "global_norm",
    "clip",
    "sgd",
    "momentum",
    "adamw",
    "muon",
)

OPS: dict[str, ModuleType] = {name: import_module(f"tapeless.ops.{name}.reference") for name in NAMES}
