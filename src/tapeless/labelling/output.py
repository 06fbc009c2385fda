"""Genomes and signals of any length labelled by a trained run, and written as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, brief
from tapeless.files.disk import rename, write_file
from tapeless.labelling.genome.baseline import Baseline
from tapeless.labelling.genome.dna import STRANDS, StrandSignal, check_bases
from tapeless.labelling.genome.fasta import read_lengths, read_records
from tapeless.labelling.genome.output import Segmentation, output_paths, writing
from tapeless.labelling.scores import feature_kind, probabilities, read_cut
from tapeless.labelling.signal.checks import checked_signal
from tapeless.labelling.signal.npy import open_array
from tapeless.labelling.source import Scaled, Source, read_source, read_statistics
from tapeless.model import Model
from tapeless.ops.contract import Array
from tapeless.tasks.task import Progress
from tapeless.train.run import Run, open_run

LABELLING = "labelling"


@dataclass(frozen=True)
class Labelling:
    """A genome or a signal that a run is to label, and where the answer goes."""

    run: Run
    source: Source
    fasta: Path | None
    signal: Path | None
    out: Path
    cut: Segmentation

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of a genome three files; of a signal one."""
        if self.fasta is not None:
            return output_paths(self.out)
        return (self.out if self.out.suffix == ".npy" else self.out.with_name(self.out.name + ".npy"),)

    def model(self) -> tuple[Model, list[str]]:
        """With the run's last weights; and what the user should know about them."""
        settings = self.run.request().settings
        model, _, messages = self.run.model(
            "newest", batch=settings.batch, time=settings.time, backend=settings.backend
        )
        return model, messages

    def write(self, model: Model, progress: Progress) -> dict[str, Any]:
        """Label it; what was labelled and found, in figures."""
        if self.fasta is None:
            assert self.signal is not None
            values = open_signal(self.source, self.signal)
            label_signal(model, self.source, values, self.paths[0], progress)
            return {"samples": len(values), "classes": model.config.vocab}
        statistics, lengths = read_statistics(self.run.folder), read_lengths(self.fasta)
        found = label_genome(model, self.source, statistics, self.fasta, lengths, self.out, self.cut, progress)
        feature = feature_kind(self.source, statistics).feature
        return {"bases": sum(lengths.values()), "feature": feature, "stretches": found, "threshold": self.cut.threshold}


def open_labelling(
    folder: Path, *, fasta: Path | None, signal: Path | None, out: Path, threshold: float | None, force: bool
) -> Labelling:
    """Refused here, before a model is made, where it cannot be labelled, or not written."""
    opened, source = open_run(folder), read_source(folder)
    if (fasta is None) == (signal is None):
        raise TapelessError("give what to label: either --fasta or --signal.")
    if (fasta is not None) != (source.fasta is not None):
        wanted = "--fasta" if source.fasta else "--signal"
        raise TapelessError(f"this run learned from a {'genome' if source.fasta else 'signal'}: give {wanted}.")
    if signal is not None and threshold is not None:
        raise TapelessError("--threshold is for genomes, and of a signal all probabilities are written: leave it out.")
    cut = read_cut(folder) if fasta is not None else Segmentation()
    if threshold is not None:
        cut = replace(cut, threshold=threshold)
    labelling = Labelling(opened, source, fasta, signal, out, cut)
    for path in labelling.paths:
        if not path.parent.is_dir():
            raise TapelessError(f"cannot write {path}: there is no folder {path.parent}; make it first.")
        if path.is_dir():
            raise TapelessError(f"cannot write {path}: it is a folder; choose another name.")
        if path.exists() and not force:
            raise TapelessError(f"{path} exists already: choose another name, or overwrite it with --force.")
    return labelling


def label_genome(
    model: Model,
    source: Source,
    statistics: Baseline | None,
    fasta: Path,
    lengths: Mapping[str, int],
    out: Path,
    cut: Segmentation,
    progress: Progress,
) -> int:
    """Write OUT.gff3 and the two OUT.*.bedgraph; how many stretches were found. `lengths`: what the file held when it
    was checked."""
    total = len(STRANDS) * sum(lengths.values())
    with writing(out, lengths, cut, feature_kind(source, statistics)) as writer:
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


def label_given(model: Model, source: Source, given: Any) -> Array:
    """In memory. Of a signal the probabilities (samples, classes); of DNA, given as text, those of class 1, on either
    strand: (2, bases), both in the + strand's order."""
    if source.fasta is None:
        values = Scaled(checked_signal(given), source.amplitude)
        return np.concatenate([*probabilities(model, values, source.features)])
    if not isinstance(given, str):
        raise TapelessError(f"this run labels DNA, given as text such as 'ACGT', not {brief(given)}.")
    bases = np.frombuffer(given.encode("latin-1", "replace"), np.uint8)
    check_bases(bases, "the sequence")
    plus, minus = (
        np.concatenate([piece[:, 1] for piece in probabilities(model, StrandSignal(bases, strand), source.features)])
        for strand in STRANDS
    )
    return np.stack([plus, minus[::-1]])


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
