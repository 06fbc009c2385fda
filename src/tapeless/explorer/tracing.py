"""An update of a run, made again for a page: where one weight's gradient comes from, and what becomes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from math import isfinite, log10, prod
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.explorer.source import check_no_link
from tapeless.inputs import unpacked
from tapeless.ops.contract import Array
from tapeless.shown import size, visible
from tapeless.tasks.data.tokenizer import FILE as TOKENIZER
from tapeless.tracing.probe import Probe, Push
from tapeless.tracing.shares import Contributions
from tapeless.tracing.update import Arithmetic, Update
from tapeless.train import metrics
from tapeless.train.run import CHECKPOINTS, CONFIGURATION, Run, open_run
from tapeless.train.upcoming import Standing, kept_steps, last_update, standing_at

MOST_LAYERS = 400  # of a model that is built for a page
MOST_BYTES = 1 << 30  # of its arena
MOST_PARAMETERS = 20_000_000  # of one that has twins in float64 and complex128
MOST_TOKENS = 16_384  # of an update
MOST_FLOPS = 30_000_000_000  # of a step that is computed in complex numbers while somebody waits
MOST_TERMS = 400  # of a sum that are sent one by one
MOST_WORDS = 6  # that are pushed up, and as many down
PICTURE = (160, 320)  # lines and columns of a weight's picture; larger ones are drawn together
ALL_DIGITS = 17  # that float64 has
SAME_LOSS = 1e-3  # a loss that was trained with and one that is computed again, relative


class Tracer:
    """Of one run. One update is held at a time: the last that somebody asked for. Somebody else sees to it that one
    request at a time asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: tuple[int, Traced] | None = None

    def overview(self, step: int | None) -> dict[str, Any]:
        return {"steps": self._made(*self._kept()), **self._at(step).overview()}

    def element(self, step: int | None, weight: int, row: int, column: int) -> dict[str, Any]:
        return self._at(step).element(weight, row, column)

    def digits(self, step: int | None, weight: int, row: int, column: int) -> dict[str, Any]:
        return self._at(step).digits(weight, row, column)

    def picture(self, step: int | None, weight: int, what: str) -> tuple[dict[str, Any], Array]:
        return self._at(step).picture(weight, what)

    def near(self, step: int, ask: Callable[[Traced], dict[str, Any]]) -> dict[str, Any]:
        """What is asked of the weights that are kept of the nearest step, with the batch that comes after it, or that
        would."""
        run, kept = self._kept()
        return ask(self._traced(run, min(kept, key=lambda each: abs(each - step))))

    def _kept(self) -> tuple[Run, list[int]]:
        run = opened(self.folder)
        kept = kept_steps(run)
        if not kept:
            raise TapelessError(f"{self.folder.name} keeps no weights yet: the first checkpoint is not made.")
        return run, kept

    def _made(self, run: Run, kept: list[int]) -> list[int]:
        """Those that the run made another update from: after its last there was none."""
        last = last_update(run)
        return [step for step in kept if step < last]

    def _at(self, step: int | None) -> Traced:
        run, kept = self._kept()
        if step is None:
            made = self._made(run, kept)
            if not made:
                raise TapelessError(f"{self.folder.name} has made no update, so there is none to look at.")
            step = _usual(made)
        elif step >= kept[-1] and step >= (last := last_update(run)):
            raise TapelessError(f"{self.folder.name} did not make update {step + 1:,}: its last was {last:,}.")
        return self._traced(run, step)

    def _traced(self, run: Run, step: int) -> Traced:
        if self._held is None or self._held[0] != step:
            self._held = None  # the memory of the one before is free
            check_size_of(run)
            self._held = step, Traced(run, standing_at(run, step))
        return self._held[1]


def opened(folder: Path) -> Run:
    """A run folder that is not trusted: what is read of it are its own files, links are not followed."""
    for name in (CONFIGURATION, TOKENIZER, metrics.FILE, CHECKPOINTS, "data"):
        check_no_link(folder / name)
    for inner in (folder / CHECKPOINTS, folder / "data"):
        for place, folders, files in os.walk(inner):
            for name in (*folders, *files):
                check_no_link(Path(place) / name)
    return open_run(folder)


def check_size_of(run: Run) -> None:
    """Before anything is allocated."""
    spec = run.spec()
    if spec.preset.architecture.layers > MOST_LAYERS:
        raise TapelessError(f"a model of {spec.preset.architecture.layers} layers is too deep to be run here.")
    rows = spec.batch * spec.seq_len
    if rows > MOST_TOKENS:
        raise TapelessError(
            f"a batch of {rows:,} tokens is too large to be run for a page: {MOST_TOKENS:,} is the most."
        )
    plan = spec.plan()
    if plan.peak_bytes > MOST_BYTES:
        raise TapelessError(f"its step takes {size(plan.peak_bytes)}, and a page is given at most {size(MOST_BYTES)}.")


def _usual(steps: list[int]) -> int:
    """Early in the training, where most is learned: the first checkpoint after the beginning."""
    return steps[1] if len(steps) > 1 else steps[0]


class Traced:
    """One update and what can be asked of it."""

    def __init__(self, run: Run, standing: Standing) -> None:
        self.standing, upcoming = standing, standing.upcoming
        self.model, self.reader = standing.model, standing.reader
        self.update = Update(self.model, upcoming.batches, upcoming.lr, upcoming.clip, upcoming.count)
        if standing.step == 0:
            _check_began_so(run, self.update.loss)
        self.probe = Probe(self.update)
        self.names = list(self.update.after)
        packed = [unpacked(inputs) for inputs, _ in upcoming.batches]
        self.tokens = np.concatenate([np.asarray(tokens) for tokens, _ in packed])
        self.shared = any(segments is not None for _, segments in packed)  # whether conversations share rows
        self.targets = np.concatenate([np.asarray(targets) for _, targets in upcoming.batches])
        self._words: dict[int, str] = {}

    def word(self, token: int) -> str:
        if token not in self._words:
            self._words[token] = visible(self.reader.decode([token]), token)
        return self._words[token]

    def overview(self) -> dict[str, Any]:
        update = self.update
        weights = [
            {
                "name": name,
                "shape": list(update.after[name].shape),
                "gradient": float(np.linalg.norm(update.gradients[name].astype(np.float64))),
                "moved": float(np.abs(update.change(name)).max()),
            }
            for name in self.names
        ]
        largest = {what: self._numbered(*update.largest(what)) for what in ("update", "gradient")}
        optimizer = self.model.optimizer
        assert optimizer is not None
        return {
            "step": self.standing.step,
            "update": update.number,
            "loss": update.loss,
            "lr": update.lr,
            "norm": update.norm,
            "scale": update.scale,
            "clip": update.clip,
            "optimizer": optimizer.name,
            "backend": self.model.backend,
            "precision": self.model.precision.described(),
            "parameters": self.model.parameters,
            "weights": weights,
            "largest": largest,
            "words": [[self.word(int(token)) for token in row] for row in self.tokens],
            "targets": [
                [self.word(int(token)) if token >= 0 else None for token in np.atleast_1d(row)] for row in self.targets
            ],
        }

    def _numbered(self, name: str, place: tuple[int, ...]) -> dict[str, int]:
        row, column = (0, place[0]) if len(place) == 1 else place
        return {"weight": self.names.index(name), "row": row, "column": column}

    def _named(self, weight: int, row: int, column: int) -> tuple[str, tuple[int, ...]]:
        if weight >= len(self.names):
            raise TapelessError(f"there is no weight {weight}: there are {len(self.names)}.")
        name = self.names[weight]
        one_line = len(self.update.after[name].shape) == 1
        if one_line and row:
            raise TapelessError(f"{name} has one row, so there is no row {row}.")
        return name, (column,) if one_line else (row, column)

    def element(self, weight: int, row: int, column: int) -> dict[str, Any]:
        name, place = self._named(weight, row, column)
        found = self.update.contributions(name, place)
        terms, shares = self._terms(found)
        total = float(sum(each.total for each in found))
        rest = terms[MOST_TERMS:]
        sequence = int(np.abs(shares.sum(axis=1)).argmax())
        arithmetic = self.update.arithmetic(name, place)
        rules = {(part.call, part.title, part.formula): list(part.factors) for each in found for part in each.parts}
        return {
            "weight": weight,
            "row": row,
            "column": column,
            "name": name,
            "index": list(place),
            "before": arithmetic.before,
            "after": arithmetic.after,
            "gradient": float(self.update.gradients[name][place]),
            "total": total,
            "parts": [
                {"call": call, "title": title, "formula": formula, "factors": factors}
                for (call, title, formula), factors in rules.items()
            ],
            "terms": terms[:MOST_TERMS],
            "count": len(terms),
            "rest": {"count": len(rest), "share": float(sum(each["share"] for each in rest))},
            "shares": [[float(f"{value:.6g}") for value in row] for row in shares],
            "optimizer": arithmetic.optimizer,
            "computed": arithmetic.computed,
            **self._moved(arithmetic),
            "lines": [asdict(line) for line in arithmetic.lines],
            **self._pushed(name, place, sequence),
        }

    def _moved(self, made: Arithmetic) -> dict[str, Any]:
        """How far this batch moved the weight, how far earlier steps, whose gradients the optimizer remembers, and how
        far weight decay. `earlier`: what these steps add to this batch's gradient, in its units."""
        optimizer, value = self.model.optimizer, {line.name: line.value for line in made.lines}
        if optimizer is None or not value:
            return {"moved": None, "earlier": None}
        weight = 1 - optimizer.beta1 if made.optimizer.startswith("adam") else 1.0
        own = weight * value["g"]
        remembered = value.get("m′", own)
        decay = -value.get("decay", 0.0)
        moved = made.computed - made.before - decay
        batch = moved * own / remembered if remembered else 0.0
        earlier = (remembered - own) / (weight * self.update.scale) if "m′" in value and self.update.scale else None
        return {"moved": {"batch": batch, "earlier": moved - batch, "decay": decay}, "earlier": earlier}

    def _terms(self, found: list[Contributions]) -> tuple[list[dict[str, Any]], Array]:
        """All shares, the largest first, and the same by token."""
        shares = np.zeros(self.tokens.shape[:2])
        terms = []
        first = 0
        for batch, each in enumerate(found):
            for number, part in enumerate(each.parts):
                np.add.at(shares, (first + part.sequence, part.position), part.shares)
                columns = [part.sequence + first, part.position, part.shares, *part.factors.values()]
                terms += [
                    {"part": number, "sequence": int(s), "position": int(t), "share": share, "factors": factors}
                    for s, t, share, *factors in zip(*(column.tolist() for column in columns), strict=True)
                ]
            first += len(unpacked(self.standing.upcoming.batches[batch][0])[0])
        terms.sort(key=lambda term: -abs(term["share"]))
        return terms, shares

    def _pushed(self, name: str, place: tuple[int, ...], sequence: int) -> dict[str, Any]:
        if self.model.parameters > MOST_PARAMETERS:
            said = f"the model has {self.model.parameters:,} weights, too many to be computed in complex numbers here"
            return {"push": None, "push_error": f"Which words it moves is not shown: {said}."}
        if self.shared:
            return {"push": None, "push_error": "Which words it moves is not shown where conversations share a row."}
        if not np.any(self.update.change(name)[place]):
            return {"push": None, "push_error": "This update left the weight where it was, so it moves no word."}
        push = self.probe.push(name, place, self.tokens[sequence])
        return {"push": self._told(push, sequence), "push_error": None}

    def _told(self, push: Push, sequence: int) -> dict[str, Any]:
        moved = push.before * push.alone  # of a probability, to first order
        order = np.argsort(moved)
        up = [word for word in order[::-1][:MOST_WORDS] if moved[word] > 0]
        down = [word for word in order[:MOST_WORDS] if moved[word] < 0]
        answers = np.atleast_1d(self.targets[sequence])
        target = int(answers[-1] if len(answers) == 1 else answers[push.position])

        def told(word: int) -> dict[str, Any]:
            return {
                "word": self.word(int(word)),
                "before": float(push.before[word]),
                "alone": float(moved[word]),
                "update": float(push.update[word]),
                "target": int(word) == target,
            }

        return {
            "sequence": sequence,
            "position": push.position,
            "target": self.word(target) if target >= 0 else None,
            "up": [told(word) for word in up],
            "down": [told(word) for word in down],
            "right": told(target) if target >= 0 else None,
        }

    def digits(self, weight: int, row: int, column: int) -> dict[str, Any]:
        """Each with all digits that float64 has."""
        name, place = self._named(weight, row, column)
        flops = sum(call.flops for call in self.model.program.phase("forward", "recompute", "backward"))
        flops *= len(self.update.batches)
        if flops > MOST_FLOPS or self.model.parameters > MOST_PARAMETERS:
            too_long = f"a step of {flops:,} FLOP takes too long in complex numbers while you wait"
            return {"error": f"{too_long}: `tapeless check` proves the same calls at a smaller size."}
        found = self.probe.digits(name, place)
        agree = {name: agreeing(getattr(found, name), found.complex_step) for name in ("backward", "engine")}
        return {**{key: f"{value:.16e}" for key, value in asdict(found).items()}, "agree": agree}

    def picture(self, weight: int, what: str) -> tuple[dict[str, Any], Array]:
        """A weight's updates or gradients as lines and columns; of what is drawn together, the largest."""
        name, _ = self._named(weight, 0, 0)
        values = self.update.change(name) if what == "update" else self.update.gradients[name].astype(np.float64)
        values = np.atleast_2d(values)
        drawn, (down, across) = drawn_together(values, *PICTURE)
        head = {
            "lines": drawn.shape[0],
            "columns": drawn.shape[1],
            "down": down,
            "across": across,
            "shape": list(values.shape),
            "elements": prod(values.shape),
        }
        return head, drawn


def agreeing(found: float, true: float) -> int:
    """To how many digits two numbers agree, by their relative difference: 0.99996 and 1.00001 to four, though none of
    their digits is the same."""
    if found == true:
        return ALL_DIGITS
    return min(ALL_DIGITS, max(0, int(-log10(abs(found - true) / abs(true))))) if true and isfinite(found) else 0


def drawn_together(values: Array, lines: int, columns: int) -> tuple[Array, tuple[int, int]]:
    """Of each stretch of rows and columns the element that is largest without its sign, and how many are in one."""
    down, across = (-(-have // most) for have, most in zip(values.shape, (lines, columns), strict=True))
    short = ((0, -values.shape[0] % down), (0, -values.shape[1] % across))
    padded = np.pad(values, short)
    grid = padded.reshape(padded.shape[0] // down, down, padded.shape[1] // across, across).swapaxes(1, 2)
    cells = grid.reshape(*grid.shape[:2], -1)
    chosen = np.abs(cells).argmax(axis=2)[..., None]
    drawn: Array = np.take_along_axis(cells, chosen, axis=2)[..., 0]
    return drawn, (down, across)


def _check_began_so(run: Run, loss: float) -> None:
    """Whether the weights that the seed gives are those the run began with: its first loss tells."""
    first = next((line for line in metrics.each_line(run.folder) if line["kind"] == "step"), None)
    said = None if first is None or first["step"] != 1 else first.get("loss")
    if said is not None and not abs(said - loss) <= SAME_LOSS * max(abs(said), abs(loss)):
        raise TapelessError(
            f"{run.folder.name} did not begin with the weights that its seed gives: its first loss was {said:.4g}, "
            f"and theirs is {loss:.4g}."
        )
