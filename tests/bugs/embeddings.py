"""Bugs where positions and tokens meet the stream, and where it is read out."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapeless import model
from tapeless.ops.contract import Array
from tapeless.ops.positions import reference as positions
from tests.bugs.planting import Bug, backward, forward, overwriting, replaced, together


def _buffered(a: Any) -> Any:
    table = np.zeros_like(a.dweight)
    rows, places = np.unique(a.tokens, return_index=True)
    table[rows] += a.dy[places]
    return table


def _averaged(a: Any) -> Any:
    table = np.zeros_like(a.dweight)
    np.add.at(table, a.tokens, a.dy)
    return table / np.maximum(1, np.bincount(a.tokens, minlength=len(table)))[:, None]


def _rows(rows: Any, shift: int = 0) -> Any:
    """dtable from rows(dy), of shape T × C."""

    def gradient(a: Any) -> Any:
        table = np.zeros_like(a.dtable)
        values = rows(a.dy)
        kept = min(len(values), len(table) - shift)
        table[shift : shift + kept] = values[:kept]
        return table

    return gradient


def _halved_rates(positions: int, channels: int) -> Array:
    """The channel itself, where the formula has the channel pair, in the exponent."""
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(channels) / channels)
    return np.where(np.arange(channels) % 2, np.cos(angles), np.sin(angles))


BUGS = (
    Bug(
        "repeated-tokens-buffered",
        "embedding",
        "dweight[tokens] += dy, which NumPy carries out once per token.",
        "Frequent words learn as slowly as rare ones.",
        backward("embedding", dweight=_buffered),
        public="tt-metal, issue 6232: the result was wrong unless all indices were different.",
    ),
    Bug(
        "repeated-tokens-averaged",
        "embedding",
        "The gradients of a token are averaged over where it stands.",
        "Frequent words learn too slowly.",
        backward("embedding", dweight=_averaged),
    ),
    Bug(
        "embedding-overwrites",
        "embedding",
        "dweight starts from zero although it should be added to.",
        "A tied table loses what the head contributed.",
        overwriting("embedding", "dweight"),
    ),
    Bug(
        "positions-of-one-sequence",
        "positions",
        "dtable takes the first sequence of the batch only.",
        "Right for a batch of one.",
        backward("positions", dtable=_rows(lambda dy: dy[0])),
    ),
    Bug(
        "positions-averaged",
        "positions",
        "dtable is the mean over the batch instead of the sum.",
        "Positions learn B times too slowly.",
        backward("positions", dtable=_rows(lambda dy: dy.mean(axis=0))),
    ),
    Bug(
        "positions-shifted",
        "positions",
        "dtable is one row too far down.",
        "Each position is trained by its neighbour.",
        backward("positions", dtable=_rows(lambda dy: dy.sum(axis=0), shift=1)),
    ),
    Bug(
        "positions-overwrite",
        "positions",
        "dtable is written instead of added to.",
        "With gradient accumulation only the last batch trains the positions.",
        overwriting("positions", "dtable"),
    ),
    Bug(
        "sinusoid-every-channel-its-own-rate",
        "positions",
        "The sinusoid's exponent has the channel where it should have the pair.",
        "Trains; weights from elsewhere do not fit.",
        together(replaced(positions, "sinusoid", _halved_rates), replaced(model, "sinusoid", _halved_rates)),
    ),
    Bug(
        "decoding-positions-from-zero",
        "positions_at",
        "When decoding, the next part of a sequence gets the positions of its beginning.",
        "Sampled text falls apart after the prompt.",
        forward("positions_at", y=lambda a: np.broadcast_to(a.table[: a.y.shape[1]], a.y.shape)),
    ),
    Bug(
        "last-position-everywhere",
        "last_position",
        "The gradient of the last position is given to all.",
        "Earlier positions are trained for an answer nobody read there.",
        backward("last_position", dx=lambda a: np.broadcast_to(a.dy, a.dx.shape)),
    ),
    Bug(
        "last-position-is-first",
        "last_position",
        "The first position is read out, and trained.",
        "A causal model answers before it has seen the question.",
        together(
            forward("last_position", y=lambda a: a.x[:, :1]),
            backward("last_position", dx=lambda a: np.pad(a.dy, ((0, 0), (0, a.dx.shape[1] - 1), (0, 0)))),
        ),
    ),
    Bug(
        "proximity-without-row-sum",
        "proximity",
        "dx lacks the part of ‖x‖².",
        "States are pushed outward without bound.",
        backward("proximity", dx=lambda a: 2 * a.dy @ a.weight),
    ),
    Bug(
        "unembed-gradient-of-one-row",
        "unembed",
        "dweight takes the last row only.",
        "The vocabulary learns from one position per step.",
        backward("unembed", dweight=lambda a: a.dy[-1:].T @ a.x[-1:]),
    ),
)
