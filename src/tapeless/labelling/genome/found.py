"""Genes, or stretches of another feature, found on sequences of any length by a run that was trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tapeless.errors import TapelessError
from tapeless.files.disk import write_whole
from tapeless.files.plain import parse_json, read_plain
from tapeless.labelling.genome.decoder import MOST_ODDS, GeneDecoder, decode
from tapeless.labelling.genome.dna import digits_of
from tapeless.labelling.genome.genes import Gene
from tapeless.labelling.genome.intervals import runs
from tapeless.labelling.genome.minimise import minimise
from tapeless.labelling.genome.output import Writer, strands_found
from tapeless.labelling.genome.text import numbered_lines, open_text
from tapeless.ops.contract import Array

FILE = "decoder.json"
VERSION = 1
LARGEST = 1 << 24
BLOCK, MARGIN = 1 << 19, 1 << 16  # bases that are decoded at a time, and those to each side that are looked at, too
LEAST_ODDS = 1e-6  # a probability is taken to be this far from 0 and 1
SHORTEST = 30  # bases of a stretch that is no gene

Network = Callable[[int, int], Array]  # the probabilities of both strands (2, bases) between two places


@dataclass(frozen=True)
class Calibration:
    """What a network's log-odds are multiplied by and what is added, so that what it calls p is true p of the time."""

    scale: float = 1.0
    shift: float = 0.0

    def odds(self, probabilities: Array) -> Array:
        clipped = np.clip(probabilities.astype(np.float64), LEAST_ODDS, 1 - LEAST_ODDS)
        found: Array = self.scale * np.log(clipped / (1 - clipped)) + self.shift
        return found

    def __call__(self, probabilities: Array) -> Array:
        found: Array = 1 / (1 + np.exp(-self.odds(probabilities)))
        return found


def calibrated(labels: Array, probabilities: Array) -> Calibration:
    """By the likelihood of labels that the network has not seen (Platt, 1999)."""
    known = labels >= 0
    odds, true = Calibration().odds(probabilities[known]), labels[known] == 1
    columns = np.stack([odds, np.ones(len(odds))])

    def objective(numbers: Array) -> tuple[float, Array]:
        said = numbers @ columns
        off = 1 / (1 + np.exp(-np.clip(said, -500, 500))) - true
        loss = np.logaddexp(0, np.where(true, -said, said)).mean()
        return float(loss) + 1e-6 * float(numbers @ numbers), columns @ off / len(odds) + 2e-6 * numbers

    scale, shift = minimise(objective, np.array([1.0, 0.0])).tolist()
    return Calibration(scale, shift) if scale > 0 else Calibration(LEAST_ODDS, shift)


@dataclass(frozen=True)
class Finder:
    """How a run finds what it was trained on: genes by a decoder, or stretches of at least a probability."""

    feature: str
    calibration: Calibration
    threshold: float
    decoder: GeneDecoder | None = None

    def write(self, folder: Path) -> None:
        content = {
            "version": VERSION,
            "feature": self.feature,
            "calibration": vars(self.calibration),
            "threshold": self.threshold,
            "decoder": self.decoder and self.decoder.document(),
        }
        write_whole(folder / FILE, json.dumps(content, indent=1).encode() + b"\n")

    @staticmethod
    def read(folder: Path) -> Finder:
        path = folder / FILE
        try:
            content = parse_json(read_plain(path, LARGEST))
            decoder = content["decoder"]
            numbers = Calibration(**{name: float(content["calibration"][name]) for name in ("scale", "shift")})
            threshold, feature = float(content["threshold"]), content["feature"]
            if content["version"] != VERSION or not isinstance(feature, str) or not feature.isprintable():
                raise ValueError("another version")
            if not (0 < numbers.scale < np.inf and np.isfinite(numbers.shift) and 0 <= threshold <= 1):
                raise ValueError("no probability")
            return Finder(feature, numbers, threshold, None if decoder is None else GeneDecoder.of(decoder))
        except FileNotFoundError:
            raise TapelessError(
                f"{folder} has no {FILE}: its training did not come to its end; go on with `label train --resume`."
            ) from None
        except OSError as error:
            raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
        except (ValueError, TypeError, KeyError, AttributeError, TapelessError):
            raise TapelessError(f"{path} is damaged: put it back as it was, or train again.") from None

    def odds(self, probabilities: Array) -> tuple[Array, Array]:
        """What the decoder is told of a network's probabilities (2, bases)."""
        plus, minus = np.clip(self.calibration.odds(probabilities), -MOST_ODDS, MOST_ODDS)
        return plus, minus


@dataclass(frozen=True)
class Found:
    """On the bases from `first` on: genes, or stretches of both strands, and the probability of each base."""

    first: int
    probabilities: Array
    genes: list[Gene]
    stretches: tuple[Array, Array] | None = None


def find(
    finder: Finder,
    letters: Array,
    network: Network,
    allowed: Array | None = None,
    cuts: tuple[bool, bool] = (False, False),
) -> Iterator[Found]:
    """Block by block, from left to right; genes are told by the block that they begin in. `allowed`: where to look."""
    if finder.decoder is None:
        probabilities = finder.calibration(network(0, len(letters)))
        if allowed is not None:
            probabilities *= allowed
        plus, minus = (runs(row >= finder.threshold) for row in probabilities)
        yield Found(0, probabilities, [], (_long(plus), _long(minus)))
        return
    reached = 0
    for start in range(0, len(letters), BLOCK):
        stop = min(start + BLOCK, len(letters))
        first, last = max(0, start - MARGIN), min(stop + MARGIN, len(letters))
        odds = finder.odds(network(first, last)) if finder.decoder.uses_network else None
        ends = cuts[0] or first > 0, cuts[1] or last < len(letters)
        here = None if allowed is None else allowed[first:last]
        decoded = decode(finder.decoder, digits_of(letters[first:last]), odds, ends, here)
        genes = []
        for gene in (each.moved(first) for each in decoded.genes):
            if max(start, reached) <= gene.left < stop and gene.probability >= finder.threshold:
                genes.append(gene)
                reached = gene.right
        yield Found(start, decoded.probabilities[:, start - first : stop - first], genes)


def _long(stretches: Array) -> Array:
    long: Array = stretches[stretches[:, 1] - stretches[:, 0] >= SHORTEST]
    return long


def write_found(writer: Writer, name: str, letters: Array, found: Iterator[Found]) -> None:
    for each in found:
        writer.track(name, each.first, each.probabilities)
        writer.genes(name, letters, each.genes)
        if each.stretches is not None:
            writer.stretches(name, strands_found(each.stretches, each.probabilities))
    writer.end(len(letters))


def read_regions(path: Path, lengths: dict[str, int]) -> dict[str, Array]:
    """A BED file's regions by sequence, as (k, 2)."""
    found: dict[str, list[tuple[int, int]]] = {}
    with open_text(path) as text:
        for number, line in numbered_lines(path, text):
            columns = line.split("\t")
            if not line.strip() or line.startswith(("#", "track", "browser")):
                continue
            numbers = [each for each in columns[1:3] if each.isascii() and each.isdigit()]
            if len(numbers) < 2 or int(numbers[0]) > int(numbers[1]):
                raise TapelessError(f"{path}, line {number}: no name, start and end as BED has them: {line[:40]!r}.")
            if columns[0] not in lengths:
                raise TapelessError(f"{path}, line {number}: there is no sequence {columns[0][:40]!r} to leave out of.")
            found.setdefault(columns[0], []).append((int(numbers[0]), int(numbers[1])))
    return {name: np.array(pairs, np.int64) for name, pairs in found.items()}


def allowed_bases(letters: Array, regions: Array | None, masked: bool) -> Array | None:
    """False in regions that are left out and, if `masked`, where letters are lower case; None where all is allowed."""
    if regions is None and not masked:
        return None
    allowed = (letters < ord("a")) | (not masked)
    for start, end in [] if regions is None else regions.tolist():
        allowed[start:end] = False
    return allowed
