"""Sampling: one token after the other, each drawn from the scores of what came before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeless.backends.engine import Engine
from tapeless.errors import NonFiniteError, TapelessError
from tapeless.inputs import as_array, check_seed, checked_ids, is_number, spelled
from tapeless.lowering import lower
from tapeless.models.config import Architecture, check_size
from tapeless.models.decoding import CHUNK, check_decodable, decoding, reading
from tapeless.ops.contract import Array
from tapeless.program.arena import make_plan

if TYPE_CHECKING:
    from tapeless.model import Model


def generate(
    model: Model,
    tokens: Any,
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Collection[int] | None = None,
    window: int | None = None,
    on_slide: Callable[[], None] | None = None,
) -> Iterator[int]:
    """Up to `count` tokens that follow `tokens`, one sequence of ids of any length, each as soon as it is drawn.

    Temperature 0 takes the likeliest; above, scores are divided by it, `top_k` keeps that many of the likeliest, and
    `top_p` the fewest of those that hold this part of their mass. It ends before a token of `stop`. When `window`
    positions are taken, the last half of them is read again from the start, and `on_slide` is called each time. A model
    that was updated has learned nothing about positions beyond its `time`, so that is its window unless another is
    asked for; one that was not has its whole context.
    """
    check_decodable(model.config)
    read = checked_prompt(model.config, tokens)
    check_size("count", count)
    check_sampling(temperature, top_k, top_p, seed)
    ends = checked_stop(model.config, stop)
    most = checked_window(model, window)
    rng = np.random.default_rng(seed)

    def draw(scores: Array) -> int:
        return choose(scores, temperature, top_k, top_p, rng)

    return _continue(model, read, most, int(count), draw, ends, on_slide)


def _continue(
    model: Model,
    read: list[int],
    most: int,
    count: int,
    draw: Callable[[Array], int],
    ends: frozenset[int],
    on_slide: Callable[[], None] | None,
) -> Iterator[int]:
    decoder = Decoder(model, room=min(most, len(read) + count))
    for number in range(count):
        slides = len(read) > most
        if slides:  # positions are absolute: what is kept moves to the front, so all of it is read again
            read = kept_when_full(read, most)
            if on_slide is not None:
                on_slide()
        if slides or number == 0:
            decoder.read(read[:-1])
        token = draw(decoder.step(read[-1]))
        if token in ends:
            return
        yield token
        read.append(token)


def kept_when_full(read: list[int], most: int) -> list[int]:
    """Half of what fits: keeping more would mean reading it again all the sooner."""
    return read[-max(1, most // 2) :]


class Decoder:
    """A model that reads on. It has a cache of its own and borrows the model's weights as they are at each step."""

    def __init__(self, model: Model, room: int | None = None) -> None:
        """`room`: for how many positions. Only a model that has no table of them can have a smaller cache than its
        context, which may be larger than the memory."""
        check_decodable(model.config)
        preset = model.preset
        if room is not None and model.config.positions == "rotary":
            preset = preset.override(context=min(room, model.config.context))
        self.context, self.position = preset.architecture.context, 0
        self.chunk = min(CHUNK, self.context)
        backend = model.engine.backend
        with model.engine.as_made():
            plans = [
                make_plan(lower(program, backend.rules(model.precision)), model.precision, backend.scratch, lent=True)
                for program in (reading(preset, self.chunk), decoding(preset))
            ]
            # One block for both. The cache comes first in either plan, so it is the same memory; whatever else is in
            # there is written anew each time a program runs.
            self.plan = max(plans, key=lambda plan: plan.peak_bytes)
            memory = backend.allocate(self.plan.peak_bytes)
            self.reading, self.decoding = (Engine(plan, backend, memory=memory, lender=model.engine) for plan in plans)

    def read(self, tokens: list[int], known: int = 0) -> None:
        """Forget everything but the first `known` of these, which it has read before, then read the rest.

        Tokens that do not fill the first chunk are padded. What the padding leaves in the cache is beyond every
        position that any query sees, until the position that belongs there is read and overwrites it. Later chunks end
        with the last token and read some positions twice rather than any beyond the context.
        """
        if len(tokens) > self.context:
            raise TapelessError(f"{len(tokens)} tokens are more than the {self.context} positions of this model.")
        for end in range(known + self.chunk, len(tokens) + self.chunk, self.chunk):
            start = max(0, min(end, len(tokens)) - self.chunk)
            part = tokens[start : start + self.chunk]
            _run(self.reading, start, part + [0] * (self.chunk - len(part)))
        self.position = len(tokens)

    def step(self, token: int) -> Array:
        """Read one more token; the scores of what may follow it, as float64."""
        if self.position == self.context:
            raise TapelessError(f"all {self.context} positions of this model are taken; read what to keep again.")
        _run(self.decoding, self.position, [token])
        self.position += 1
        return checked_scores(self.decoding.read("scores").reshape(-1))


def _run(engine: Engine, position: int, tokens: list[int]) -> None:
    engine.write("tokens", [tokens])
    engine.write("position", position)
    if "places" in engine.plan.placements:
        engine.write("places", [range(position, position + len(tokens))])
    engine.run()


def checked_scores(scores: Array) -> Array:
    """As float64, to be drawn from."""
    wide: Array = scores.real.astype(np.float64)
    if not np.isfinite(wide).all():
        raise NonFiniteError("the model's scores are not finite: its weights hold NaN, infinity or too large values.")
    return wide


def choose(scores: Array, temperature: float, top_k: int | None, top_p: float | None, rng: np.random.Generator) -> int:
    """One token. Of equal scores the lower id counts as the likelier."""
    if temperature == 0:
        return int(np.argmax(scores))
    ids, masses = likeliest(scores, temperature, top_k, top_p)
    edges = np.cumsum(masses)
    index = int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))
    return int(ids[min(index, len(ids) - 1)])  # the product may round up to the last edge


def likeliest(scores: Array, temperature: float, top_k: int | None, top_p: float | None) -> tuple[Array, Array]:
    """The ids that may be drawn, and their probabilities up to a common factor."""
    ids = np.arange(len(scores))
    if top_k is not None and top_k < len(scores):
        ids = _largest(scores, top_k)
    with np.errstate(over="ignore", under="ignore"):  # a low temperature leaves the unlikely with exactly nothing
        masses = np.exp((scores[ids] - scores[ids].max()) / temperature)
    if top_p is not None and top_p < 1:
        kept = _nucleus(scores[ids], masses, top_p)
        ids, masses = ids[kept], masses[kept]
    return ids, masses


def _largest(scores: Array, count: int) -> Array:
    """The ids of the `count` largest scores, without sorting the rest."""
    least = np.partition(scores, -count)[-count]
    above = np.flatnonzero(scores > least)
    return np.concatenate([above, np.flatnonzero(scores == least)[: count - len(above)]])


def _nucleus(scores: Array, masses: Array, share: float) -> Array:
    """The fewest that hold this share of all the mass, likeliest first.

    Those below (1 − share) / n of the mass, n being how many there are, hold less than 1 − share together: they are
    never needed, and need not be sorted.
    """
    wanted = share * masses.sum()
    found = np.flatnonzero(masses >= (masses.sum() - wanted) / len(masses))
    found = found[np.argsort(-scores[found], kind="stable")]
    return found[: int(np.searchsorted(np.cumsum(masses[found]), wanted)) + 1]


def checked_prompt(config: Architecture, tokens: Any) -> list[int]:
    array = as_array("tokens", tokens)
    if array.ndim != 1 or array.size == 0:
        raise TapelessError(f"tokens must be one sequence of at least one id, not of shape {spelled(array.shape)}.")
    return list(checked_ids("tokens", array, array.shape, 0, config.vocab).tolist())


def checked_window(model: Model, window: Any) -> int:
    if window is None:
        return model.time if model.steps else model.config.context
    check_size("window", window)
    if window > model.config.context:
        raise TapelessError(
            f"window={window} is longer than the {model.config.context} positions of this model: "
            f"use at most {model.config.context}."
        )
    return int(window)


def checked_stop(config: Architecture, stop: Any) -> frozenset[int]:
    if stop is None:
        return frozenset()
    array = as_array("stop", list(stop) if isinstance(stop, Set) else stop)
    if array.ndim != 1:
        raise TapelessError(f"stop must be a collection of token ids, or None, not {stop!r}.")
    return frozenset(checked_ids("stop", array, array.shape, 0, config.vocab).tolist())


def check_sampling(temperature: Any, top_k: Any, top_p: Any, seed: Any) -> None:
    if not (is_number(temperature) and 0 <= temperature < inf):
        raise TapelessError(
            f"temperature must be 0 (always the likeliest) or a finite number above, not {temperature!r}."
        )
    if top_k is not None:
        check_size("top_k", top_k)
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise TapelessError(f"top_p must be above 0 and at most 1, or None for no limit, not {top_p!r}.")
    check_seed(seed)
