"""The tensors of a folder in the Hugging Face layout: one safetensors file, or several with an index.

Found here, read later: one at a time, since a model may be as large as the memory.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapeless.errors import TapelessError
from tapeless.files.plain import read_json
from tapeless.files.safetensors import read_safetensors
from tapeless.ops.contract import Array

if TYPE_CHECKING:
    from tapeless.weights.family import Family

SHARD = re.compile(r"\w[\w.-]{0,200}\.safetensors", re.ASCII)  # a file in the folder itself, never a path out of it
JSON_LIMIT = 2**22  # bytes; ten times what the largest models need

_brief = reprlib.Repr()  # a value from a file can be of any length; a message cannot
_brief.maxstring = _brief.maxother = 80


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file."""

    path: Path
    name: str
    beside: Mapping[str, Array]  # all tensors of the file; looking one up reads it

    def read(self) -> Array:
        return self.beside[self.name]


def stored_tensors(folder: Path, family: Family) -> dict[str, Stored]:
    """Every tensor of the folder, by its name without the prefix; not the constants that older versions saved."""
    found: dict[str, Stored] = {}
    for path, listed in _files(folder).items():
        held = read_safetensors(path)
        for name in listed:
            if name not in held:
                raise TapelessError(
                    f"the index of {folder} says that {show(name)} is in {path.name}, but it is not: save it again."
                )
        for name in held:
            plain = name.removeprefix(family.prefix)
            if re.fullmatch(family.ignored, plain):
                continue
            if plain in found:
                raise TapelessError(f"{folder} holds the tensor {show(name)} twice: save it again.")
            found[plain] = Stored(path, name, held)
    return found


def _files(folder: Path) -> dict[Path, list[str]]:
    """The files with weights, each with the tensors that the index, where there is one, says it holds."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if is_file(single):
        return {single: []}
    if not is_file(index):
        if is_file(folder / "pytorch_model.bin") or is_file(folder / "pytorch_model.bin.index.json"):
            raise TapelessError(
                f"{folder} has its weights as pickle only (pytorch_model.bin), which can run code and is not read: "
                f"convert them to model.safetensors first."
            )
        raise TapelessError(f"there is no file {single}: save the model as safetensors.")
    places = read_object(folder, index.name).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise TapelessError(f"{index} must have a weight_map from tensors to files, not {show(places)}.")
    files: dict[Path, list[str]] = {}
    for name, place in places.items():
        if not isinstance(place, str) or not SHARD.fullmatch(place):
            raise TapelessError(
                f"{index} says that {show(name)} is in {show(place)}, which is not the name of a safetensors file."
            )
        path = folder / place
        if path not in files and not is_file(path):
            raise TapelessError(f"{index} names {show(place)}, but there is no such file in {folder}.")
        files.setdefault(path, []).append(name)
    return files


def show(value: object) -> str:
    return _brief.repr(value)


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError) as error:
        raise TapelessError(f"cannot read {path}: {getattr(error, 'strerror', error)}.") from None


def read_object(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not is_file(path):
        raise TapelessError(
            f"there is no file {path}: give a folder with config.json and model.safetensors, as transformers saves it."
        )
    return read_json(path, JSON_LIMIT, foreign=True)
