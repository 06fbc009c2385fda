"""What tests change of a run's history: lines of a record made of rows, and snapshots made of other weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tapeless.files.safetensors import write_safetensors
from tapeless.ops.contract import Array
from tapeless.train.history.files import files_in
from tapeless.train.history.record import HIGH, LEAD, Header, encoded
from tapeless.train.history.snapshots import FOLDER, read_snapshots


def record_of(header: Header, rows: Array) -> bytes:
    """The content of a record that holds these rows."""
    lines = [
        encoded(int(row[0] + HIGH * row[1]), float(row[2]), float(row[3]), float(row[4]), row[len(LEAD) :])
        for row in rows
    ]
    return header.encoded() + b"".join(lines)


def change_snapshot(run: Path, index: int, value: float) -> None:
    """The first weight of one of a run's snapshots is another number."""
    step, weights = [*read_snapshots(run).weights.items()][index]
    first = next(iter(weights.values()))
    first.reshape(-1)[0] = np.float32(value)
    write_safetensors(files_in(run / FOLDER)[step], weights)
