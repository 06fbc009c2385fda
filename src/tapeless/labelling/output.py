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
from tapeless.labelling.genome.dna import STRANDS, check_bases
from tapeless.labelling.genome.fasta import read_lengths, read_records
from tapeless.labelling.genome.found import Finder, allowed_bases, find, read_regions, write_found
from tapeless.labelling.genome.output import output_paths, writing
from tapeless.labelling.scores import probabilities, strand_probabilities
from tapeless.labelling.signal.checks import checked_signal
from tapeless.labelling.signal.npy import open_array
from tapeless.labelling.source import Scaled, Source, read_source
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
    finder: Finder | None  # of a genome
    exclude: Path | None = None
    masked: bool = False

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of genes six files, of another feature three, of a signal one."""
        if self.finder is not None:
            return output_paths(self.out, self.finder.feature)
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
        if self.finder is None or self.fasta is None:
            assert self.signal is not None
            values = open_signal(self.source, self.signal)
            label_signal(model, self.source, values, self.paths[0], progress)
            return {"samples": len(values), "classes": model.config.vocab}
        lengths = read_lengths(self.fasta)
        regions = {} if self.exclude is None else read_regions(self.exclude, lengths)
        told = {"bases": sum(lengths.values()), "feature": self.finder.feature}
        return told | {"stretches": self._genome(model, self.finder, lengths, regions, progress)}

    def _genome(
        self, model: Model, finder: Finder, lengths: dict[str, int], regions: Mapping[str, Array], progress: Progress
    ) -> int:
        """Write OUT.gff3 and the others; how many genes, or stretches, were found. `lengths`: what the file held when
        it was checked."""
        assert self.fasta is not None
        done, total = 0, sum(lengths.values())
        with writing(self.out, lengths, finder.feature, self.source.code) as writer:
            for record in read_records(self.fasta):
                letters = record.bases
                if lengths.get(record.name) != len(letters):
                    raise TapelessError(f"{self.fasta} changed while it was read: try again.")

                def network(first: int, last: int, letters: Array = letters, before: int = done) -> Array:
                    def report(bases: int) -> None:
                        progress(LABELLING, min(total, before + first + bases // len(STRANDS)), total)

                    return strand_probabilities(model, letters[first:last], self.source.features, report)

                allowed = allowed_bases(letters, regions.get(record.name), self.masked)
                write_found(writer, record.name, letters, find(finder, letters, network, allowed))
                done += len(letters)
                progress(LABELLING, done, total)
        return writer.written


def open_labelling(
    folder: Path,
    *,
    fasta: Path | None,
    signal: Path | None,
    out: Path,
    threshold: float | None,
    force: bool,
    exclude: Path | None = None,
    masked: bool = False,
) -> Labelling:
    """Refused here, before a model is made, where it cannot be labelled, or not written."""
    opened, source = open_run(folder), read_source(folder)
    if (fasta is None) == (signal is None):
        raise TapelessError("give what to label: either --fasta or --signal.")
    if (fasta is not None) != bool(source.fasta):
        wanted = "--fasta" if source.fasta else "--signal"
        raise TapelessError(f"this run learned from a {'genome' if source.fasta else 'signal'}: give {wanted}.")
    of_genomes = {"--threshold": threshold is not None, "--exclude": exclude is not None, "--soft-masked": masked}
    for name, used in of_genomes.items():
        if signal is not None and used:
            raise TapelessError(f"{name} is for genomes, and of a signal all probabilities are written: leave it out.")
    if threshold is not None and not 0 < threshold <= 1:
        raise TapelessError(f"--threshold must be above 0 and at most 1, not {threshold!r}.")
    finder = Finder.read(folder) if fasta is not None else None
    if finder is not None and threshold is not None:
        finder = replace(finder, threshold=threshold)
    labelling = Labelling(opened, source, fasta, signal, out, finder, exclude, masked)
    for path in labelling.paths:
        if not path.parent.is_dir():
            raise TapelessError(f"cannot write {path}: there is no folder {path.parent}; make it first.")
        if path.is_dir():
            raise TapelessError(f"cannot write {path}: it is a folder; choose another name.")
        if path.exists() and not force:
            raise TapelessError(f"{path} exists already: choose another name, or overwrite it with --force.")
    return labelling


def label_given(model: Model, source: Source, given: Any) -> Array:
    """In memory. Of a signal the probabilities (samples, classes); of DNA, given as text, those of class 1, on either
    strand: (2, bases), both in the + strand's order."""
    if not source.fasta:
        values = Scaled(checked_signal(given), source.amplitude)
        return np.concatenate([*probabilities(model, values, source.features)])
    if not isinstance(given, str):
        raise TapelessError(f"this run labels DNA, given as text such as 'ACGT', not {brief(given)}.")
    bases = np.frombuffer(given.encode("latin-1", "replace"), np.uint8)
    check_bases(bases, "the sequence")
    return strand_probabilities(model, bases, source.features)


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
