"""Features and labels of several recordings, computed once: in memory where they fit, else in a temporary file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.labelling.signal.checks import checked_labels, checked_signal, pieces
from tapeless.labelling.signal.features import Features
from tapeless.ops.contract import Array

IN_MEMORY = 1 << 30  # bytes of features that are held in memory; more go to a file
MOST_CLASSES = 1 << 15  # labels are kept in 16 bits


@dataclass(frozen=True)
class Recording:
    """A signal and the class of each of its samples, −1 where it is not known."""

    signal: Any
    labels: Any


@dataclass(frozen=True)
class Store:
    """Recordings one after another: features (N, F) float32, labels (N), and where each begins, N at the end."""

    features: Array
    labels: Array
    bounds: tuple[int, ...]


def make_store(recordings: Sequence[Recording], features: Features, classes: int, budget: int = IN_MEMORY) -> Store:
    """Every recording is checked before the first feature is computed."""
    checked = [checked_recording(recording, classes, number) for number, recording in enumerate(recordings)]
    if not checked:
        raise TapelessError("there are no recordings: give at least one signal with its labels.")
    bounds = (0, *accumulate(len(recording.signal) for recording in checked))
    labels = np.empty(bounds[-1], np.int16)
    for recording, first in zip(checked, bounds[:-1], strict=True):
        for start, piece in pieces(recording.labels):
            labels[first + start : first + start + len(piece)] = piece
    shape = bounds[-1], features.width
    blocks = (block for each in checked for _, block in features.blocks(each.signal))
    size = np.dtype(np.float32).itemsize * shape[0] * shape[1]
    values = _in_memory(blocks, shape) if size <= budget else _on_disk(blocks, shape, size)
    return Store(values, labels, bounds)


def checked_recording(recording: Recording, classes: int, number: int) -> Recording:
    signal = checked_signal(recording.signal, f"signal {number}")
    return Recording(signal, checked_labels(recording.labels, len(signal), classes, f"the labels of signal {number}"))


def _in_memory(blocks: Iterator[Array], shape: tuple[int, int]) -> Array:
    found = np.empty(shape, np.float32)
    first = 0
    for block in blocks:
        found[first : first + len(block)] = block
        first += len(block)
    return found


def _on_disk(blocks: Iterator[Array], shape: tuple[int, int], size: int) -> Array:
    """Written as a file and only then mapped: a full disk is an error then, and not the end of the process."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if size > free:
        raise TapelessError(
            f"the features take {size:,} bytes, and {folder} has {free:,} left: set TMPDIR to a folder with more "
            f"room, or give less signal."
        )
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # has no name, so nothing is left behind
            for block in blocks:
                file.write(block.data)
            file.flush()
            return np.memmap(file, np.float32, "r", shape=shape)
    except OSError as error:
        raise TapelessError(f"the features could not be written to {folder}: {error.strerror or error}.") from None
