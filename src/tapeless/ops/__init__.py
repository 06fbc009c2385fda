"""The mathematics: a folder per op. A new op is one folder and one line here."""

from collections.abc import Iterator, Mapping
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


class Ops(Mapping[str, ModuleType]):
    """The reference of each op by its name, loaded when it is asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._loaded: dict[str, ModuleType | None] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> ModuleType:
        found = self._loaded[name]
        if found is None:
            found = self._loaded[name] = import_module(f"tapeless.ops.{name}.reference")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


OPS: Mapping[str, ModuleType] = Ops(NAMES)
