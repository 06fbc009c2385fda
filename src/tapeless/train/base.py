"""The weights that a training leaves as they are. They lie once in the run's folder, and each of its checkpoints, which
holds the trained ones alone, names them by their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tapeless.backends.host import store_rounded
from tapeless.errors import NonFiniteError, TapelessError
from tapeless.files.disk import UnwritableError, fsync_folder
from tapeless.files.plain import open_plain
from tapeless.files.safetensors import read_safetensors, write_safetensors
from tapeless.ops.contract import Array
from tapeless.program.call import Weight
from tapeless.program.precision import numpy_type
from tapeless.train.believed import is_digest
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.guard import first_nonfinite

FILE = "base.safetensors"


def as_held(weights: Mapping[str, Array], declared: Iterable[Weight], dtype: str | None) -> dict[str, Array]:
    """Where a type was chosen for frozen matrices, those of them that are such in it, each rounded once."""
    if dtype is None:
        return dict(weights)
    held = dict(weights)
    for name in {each.name for each in declared if each.role == "frozen"} & weights.keys():
        held[name] = np.empty(weights[name].shape, numpy_type(dtype))
        store_rounded(held[name], weights[name])
    return held


def write_base(folder: Path, weights: Mapping[str, Array]) -> str:
    """Its SHA-256, once it is on the disk."""
    try:
        written = write_safetensors(folder / FILE, weights)
        fsync_folder(folder)
    except OSError as error:
        raise UnwritableError(f"cannot write {folder / FILE}: {error.strerror}.") from None
    return written.sha256


def read_base(found: Checkpoint) -> dict[str, Array]:
    """What the checkpoint leaves out; nothing where it holds all weights itself."""
    wanted = found.state.get("base")
    if wanted is None:
        return {}
    if not is_digest(wanted):
        raise TapelessError(f"the state in {found.path} is damaged: it names no base; take another checkpoint.")
    path = found.path.parent.parent / FILE
    try:
        with open_plain(path) as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == wanted
    except OSError as error:
        raise TapelessError(
            f"{path} cannot be read ({error.strerror}): it holds the weights that this run leaves as they are, and its "
            f"checkpoints do not repeat them; put it back (SHA-256 {wanted})."
        ) from None
    if not same:
        raise TapelessError(
            f"{path} is not what this run was trained on top of: put back the file whose SHA-256 is {wanted}."
        )
    return {name: array.copy() for name, array in read_safetensors(path).items()}


def all_weights(found: Checkpoint) -> dict[str, Array]:
    """Every weight of a checkpoint; refused where one is not finite, as nothing can be computed with it."""
    weights = read_base(found) | found.tensors("weights")
    for name, array in weights.items():
        if (index := first_nonfinite(array)) is not None:
            raise NonFiniteError(
                f"the weights in {found.path} are not finite: {name}{list(index)} is {float(array[index])}; take "
                f"another checkpoint, or look at what they came from."
            )
    return weights
