"""Genomes and signals of any length labelled by a trained run, and written as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import rename, write_file
from tapeless.labelling.genome.baseline import Baseline
from tapeless.labelling.genome.dna import STRANDS, StrandSignal
from tapeless.labelling.genome.fasta import read_records
from tapeless.labelling.genome.output import Cut, writing
from tapeless.labelling.scores import kind_of, probabilities
from tapeless.labelling.signal.checks import checked_signal
from tapeless.labelling.signal.npy import open_array
from tapeless.labelling.source import Scaled, Source
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.train.session import Progress

LABELLING = "labelling"


def label_genome(
    model: Model, source: Source, statistics: Baseline | None, fasta: Path, lengths: Mapping[str, int], out: Path,
    cut: Cut, progress: Progress,
) -> int:  # fmt: skip
    """Write OUT.gff3 and the two OUT.*.bedgraph; how many stretches were found. `lengths`: what the file held when it
    was checked."""
    total = len(STRANDS) * sum(lengths.values())
    with writing(out, lengths, cut, kind_of(source, statistics)) as writer:
        done = 0
        for record in read_records(fasta):
            if lengths.get(record.name) != len(record.bases):
                raise TapelessError(f"{fasta} changed while it was read: try again.")
            strands = []
            for strand in STRANDS:
                strands.append(_yes(model, StrandSignal(record.bases, strand), source, progress, done, total))
                done += len(record.bases)
            writer.add(record.name, record.bases, *strands)
    return writer.stretches


def _yes(
    model: Model, signal: StrandSignal, source: Source, progress: Progress, before: int, total: int
) -> Iterator[Array]:
    """The probability of class 1."""
    coming = probabilities(model, signal, source.features, lambda here: progress(LABELLING, before + here, total))
    return (piece[:, 1] for piece in coming)


def open_signal(source: Source, path: Path) -> Scaled:
    """Checked, and brought to the size that the run was trained with."""
    return Scaled(checked_signal(open_array(path), str(path)), source.amplitude)


def label_signal(model: Model, source: Source, values: Any, out: Path, progress: Progress) -> None:
    """Write the probabilities (samples, classes) in float32 as a .npy file."""
    beside = out.with_name(f".{out.name}.{os.getpid()}.part")

    def contents() -> Iterator[bytes]:
        """Streamed and not mapped: on a full disk a map ends the process, and a write is refused."""
        header = BytesIO()
        shape = {"descr": "<f4", "fortran_order": False, "shape": (len(values), model.config.vocab)}
        np.lib.format.write_array_header_1_0(header, shape)
        yield header.getvalue()
        for piece in probabilities(model, values, source.features, lambda here: progress(LABELLING, here, len(values))):
            yield piece.astype("<f4").tobytes()

    try:
        write_file(beside, contents())
        rename(beside, out)
    except OSError as error:
        raise TapelessError(f"cannot write {out}: {error.strerror}; nothing was left there.") from None
    finally:
        with suppress(OSError):
            beside.unlink()
