"""Checkpoints that can be relied on: whole or not there, hashed throughout, and never the old lost for the new.

A checkpoint is a folder `step-00000500` with a safetensors file per group of tensors, `state.json`, and
`manifest.json`, which holds the size and SHA-256 of each and a SHA-256 of its own content. It is written as
`.partial-…` and renamed once all of it is on the disk. Where the step is saved again, the new one is first
`step-00000500.new`, which counts as a checkpoint like any other, and then takes the name of the old.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from errno import EACCES, EDQUOT, EIO, ENOSPC, EPERM, EROFS
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError, unknown
from tapeless.files import disk
from tapeless.files.plain import read_plain
from tapeless.files.safetensors import StoredTensors, read_safetensors, write_safetensors
from tapeless.ops.contract import Array
from tapeless.train.manifest import STATE, UnusableError, checked, write_manifest

BEST, TENSORS = "best.json", ".safetensors"
NAME = re.compile(r"step-(\d{8,})(\.new)?", re.ASCII)
PARTIAL = ".partial-"
LARGEST_RECORD = 1 << 20
REMEDIES = {
    **dict.fromkeys((ENOSPC, EDQUOT), "free some space"),
    **dict.fromkeys((EROFS, EACCES, EPERM), "make the folder writable"),
    EIO: "see what ails the disk",
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole."""

    step: int
    state: Mapping[str, Any]
    path: Path
    stems: tuple[str, ...]  # of its safetensors files

    def read(self, stem: str, like: Mapping[str, Array], write: Callable[[str, Array], None]) -> None:
        """Hand every tensor of a file to `write`; refused before that, unless they are as those of the same names."""
        stored = self._file(stem)
        where = f"{stem} of {self.path}"
        differing = {"lacks": like.keys() - stored.keys(), "has the unknown": stored.keys() - like.keys()}
        for problem, names in differing.items():
            if names:
                listed = ", ".join(map(repr, sorted(names)[:3])) + (", …" if len(names) > 3 else "")
                raise TapelessError(f"{where} {problem} {listed}: it is of another model.")
        for name, array in like.items():
            if stored[name].shape != array.shape:
                raise TapelessError(
                    f"{where} has {name!r} in shape {stored[name].shape}, not {array.shape}: it is of another model."
                )
            if stored[name].dtype != array.dtype:
                raise TapelessError(
                    f"{where} has {name!r} as {stored[name].dtype}, not {array.dtype}: "
                    f"make the model with precision={str(stored[name].dtype)!r}."
                )
        for name in like:
            write(name, stored[name])

    def tensors(self, stem: str) -> dict[str, Array]:
        """The tensors of a file, in memory of their own."""
        return {name: array.copy() for name, array in self._file(stem).items()}

    def _file(self, stem: str) -> StoredTensors:
        if stem not in self.stems:
            raise unknown(f"file of {self.path}", stem, self.stems)
        return read_safetensors(self.path / (stem + TENSORS))


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Array]],
    state: Mapping[str, Any],
    *,
    keep: int = 3,
    best: bool = False,
) -> Path:
    """Save a checkpoint; when this returns it is whole and on the disk. Then all but the newest `keep` and the best go.

    Where it fails, a TapelessError says which checkpoint is the newest whole one.
    """
    content = json.dumps(dict(state), indent=2, allow_nan=False).encode() + b"\n"
    try:
        disk.make_folder(folder)
        _remove_stale(folder)
        _finish_replacements(folder)
        path = _write(folder, step, tensors, content, best)
    except OSError as error:
        raise disk.UnwritableError(_failure(folder, step, error)) from None
    _prune(folder, step, keep)
    return path


def tidy(folder: Path, step: int, keep: int) -> None:
    """Remove what a process left that was killed behind its last save, as far as that goes."""
    with suppress(OSError):
        _remove_stale(folder)
        _finish_replacements(folder)
        _prune(folder, step, keep)


def load(path: Path) -> Checkpoint:
    """A checkpoint, verified first."""
    try:
        return _load(path)
    except UnusableError as fault:
        raise TapelessError(f"{path} {fault}: take another checkpoint.") from None


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, and a message for each newer one that cannot be used."""
    return _first_whole([path for _, path in _found(folder)])


def steps(folder: Path) -> list[int]:
    """Of all checkpoints by their names, whole or not, the earliest first."""
    return sorted({step for step, _ in _found(folder)})


def at(folder: Path, step: int) -> Checkpoint | None:
    """The checkpoint of one step; None where there is none, and refused where it is not whole."""
    found = [path for number, path in _found(folder) if number == step]
    taken, messages = _first_whole(found)
    if taken is None and found:
        raise TapelessError(f"{messages[0].rpartition(';')[0]}: take another checkpoint.")
    return taken


def best(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The best checkpoint, or the newest whole one with a message why."""
    found = _found(folder)
    standing = best_step(folder)
    if standing is None and found:
        taken, messages = newest(folder)
        instead = f"{taken.path.name} is taken." if taken else "there is none to take."
        return taken, [*messages, f"{folder} has no record of a best checkpoint; {instead}"]
    of_best = [path for step, path in found if step == standing]
    return _first_whole([*of_best, *(path for _, path in found if path not in of_best)])


def _first_whole(paths: list[Path]) -> tuple[Checkpoint | None, list[str]]:
    faults = []
    taken = None
    for path in paths:
        try:
            taken = _load(path)
            break
        except UnusableError as fault:
            faults.append(f"{path.name} {fault}")
    instead = f"{taken.path.name} is taken instead." if taken else "no whole checkpoint is left."
    return taken, [f"{fault}; {instead}" for fault in faults]


def _found(folder: Path) -> list[tuple[int, Path]]:
    """Every checkpoint by its name, newest first; of one step, the replacement before what it replaces."""
    try:
        names = sorted((path.name for path in folder.iterdir()), reverse=True)
    except OSError:
        return []
    matches = [match for match in map(NAME.fullmatch, names) if match]
    found = [(int(match[1]), folder / match[0]) for match in matches]
    return sorted(found, key=lambda item: item[0], reverse=True)  # stable: ".new" stays first


# What is saved.


def _write(folder: Path, step: int, tensors: Mapping[str, Mapping[str, Array]], state: bytes, is_best: bool) -> Path:
    partial = _partial(folder)
    try:
        disk.perform(os.mkdir, partial)
        files = {stem + TENSORS: arrays for stem, arrays in tensors.items()}
        written = {name: write_safetensors(partial / name, arrays) for name, arrays in files.items()}
        written[STATE] = disk.write_file(partial / STATE, [state])
        write_manifest(partial, step, written)
        disk.fsync_folder(partial)
        _record_best(folder, step, is_best)
        return _place(partial, folder / f"step-{step:08}")
    finally:
        if partial.exists():
            disk.remove_folder(partial)


def _partial(folder: Path) -> Path:
    return folder / f"{PARTIAL}{os.getpid()}-{os.urandom(4).hex()}"


def _place(partial: Path, path: Path) -> Path:
    if os.path.lexists(path):
        replacement = path.with_name(path.name + ".new")
        disk.rename(partial, replacement)
        _replace(replacement)
    else:
        disk.rename(partial, path)
    return path


def _replace(replacement: Path) -> None:
    """Let the replacement, which is whole, take the name of what it replaces."""
    path = replacement.with_suffix("")
    retired = _partial(path.parent)
    try:
        if os.path.lexists(path):
            disk.perform(os.rename, path, retired)
        disk.rename(replacement, path)
    finally:
        disk.remove_folder(retired)


def _finish_replacements(folder: Path) -> None:
    """What a process that was killed between the two renames left."""
    for _, path in _found(folder):
        if path.suffix != ".new":
            continue
        try:
            checked(path)
        except UnusableError:
            _retire(path)
        else:
            _replace(path)


def _failure(folder: Path, step: int, error: OSError) -> str:
    remedy = REMEDIES.get(error.errno or 0, "remove the cause")
    return f"cannot save the checkpoint at step {step} in {folder}: {error.strerror}. {standing(folder)}; {remedy}."


def standing(folder: Path) -> str:
    """Which checkpoint there is to go on from, as the end of a sentence about one that could not be saved."""
    whole, _ = newest(folder)
    return f"The last good checkpoint is {whole.path}" if whole else "There is no checkpoint yet"


# What is removed.


def _prune(folder: Path, step: int, keep: int) -> None:
    """Of the checkpoints up to this step, only the newest and the best stay. What cannot be removed is left.

    Newer ones than the one just saved are damaged, or another's choice: they are not ours to remove.
    """
    earlier = [(number, path) for number, path in _found(folder) if number <= step]
    kept = {number for number, _ in earlier[:keep]} | {best_step(folder)}
    for number, path in earlier:
        if number not in kept:
            with suppress(OSError):
                _retire(path)


def _retire(path: Path) -> None:
    """Renamed before its files go: what bears the name of a checkpoint is whole to the end."""
    retired = _partial(path.parent)
    disk.perform(os.rename, path, retired)
    disk.remove_folder(retired)


def _remove_stale(folder: Path) -> None:
    """What processes that are no more left half-written. Our own earlier saves are over, so theirs goes too."""
    disk.remove_beside(folder / BEST)
    for path in list(folder.iterdir()):
        if path.name.startswith(PARTIAL) and not _belongs_to_another(path.name):
            disk.remove_folder(path)


def _belongs_to_another(name: str) -> bool:
    process = name.removeprefix(PARTIAL).split("-")[0]
    if not re.fullmatch(r"[1-9]\d{0,8}", process, re.ASCII) or int(process) == os.getpid():
        return False
    try:
        os.kill(int(process), 0)  # signal 0 only asks
    except OSError as error:
        return isinstance(error, PermissionError)  # it lives, as somebody else's
    return True


# Which one is the best.


def _record_best(folder: Path, step: int, is_best: bool) -> None:
    """Named before it is in place, with the one before it: whichever moment is the last, the record holds true."""
    standing = best_step(folder)
    if is_best:
        record = {"step": step, "before": None if standing == step else standing}
    elif step in _named_best(folder) and standing != step:
        record = {"step": standing, "before": None}  # an earlier save named this step and did not get to place it
    else:
        return
    disk.replace_file(folder / BEST, disk.sealed(record))


def _named_best(folder: Path) -> list[int]:
    try:
        record = disk.unsealed(read_plain(folder / BEST, LARGEST_RECORD))
    except (OSError, ValueError):
        return []
    return [step for step in (record.get("step"), record.get("before")) if type(step) is int]


def best_step(folder: Path) -> int | None:
    """The step whose checkpoint is the best, as far as is recorded."""
    steps = {step for step, _ in _found(folder)}
    return next((step for step in _named_best(folder) if step in steps), None)


# How a checkpoint is known to be whole.


def _load(path: Path) -> Checkpoint:
    manifest = checked(path)
    try:
        state = json.loads(read_plain(path / STATE))
    except (OSError, ValueError, RecursionError):
        raise UnusableError(f"is damaged ({STATE}: it cannot be read)") from None
    if not isinstance(state, dict):
        raise UnusableError(f"is damaged ({STATE}: it is no state of a training)")
    stems = tuple(name.removesuffix(TENSORS) for name in manifest["files"] if name != STATE)
    return Checkpoint(manifest["step"], state, path, stems)
