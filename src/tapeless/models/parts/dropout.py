"""Dropout: while a model learns, some numbers of a branch, and of the embedding, are left out at random.

What is dropped is drawn anew in the backward and wherever a block is computed again: it comes from counters, so it is
the same, and no mask is kept. Where nothing is dropped (no rate, or a program that does not learn) there is no call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from tapeless.models.parts import Scope
from tapeless.ops.contract import Scalar
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, gradient_name, update, write

SEED, NUMBER = "dropout.seed", "dropout.draws"


@dataclass(frozen=True)
class Draws:
    """What a model draws its random numbers by: a seed, how often it has drawn, and a number for every site."""

    rate: float
    seed: Buffer
    number: Buffer
    sites: Iterator[int]


@dataclass(frozen=True)
class Dropout:
    y: Buffer
    dx: Buffer
    counters: dict[str, Any]  # which forward and backward share


def declare_draws(p: Builder, rate: float) -> Draws | None:
    if not rate:
        return None
    seed = p.buffer("constant", SEED, (1,), "index", meaning="seed")
    number = p.buffer("state", NUMBER, (1,), "index", meaning="random counter")
    return Draws(Scalar(rate, "dropout rate"), seed, number, count())


def draws_forward(p: Builder, d: Draws | None) -> None:
    """Before the first of them: each batch has its own."""
    if d:
        p.count_draws.forward(draws=update(d.number))


def declare_dropout(s: Scope, name: str, time: int, role: str = "activation") -> Dropout | None:
    """Declare the dropout of the buffer with this name; None if nothing is dropped."""
    if s.draws is None:
        return None
    draws, width = s.draws, s.c.channels
    counters = {"seed": draws.seed, "draws": draws.number, "rate": draws.rate, "site": next(draws.sites)}
    y, dx = (s.activations(each, time, width, role) for each in (f"{name}.dropped", gradient_name(name)))
    return Dropout(y, dx, counters)


def dropout_forward(p: Builder, d: Dropout | None, x: Buffer) -> Buffer:
    """What goes on from x: x itself, where nothing is dropped."""
    if d is None:
        return x
    p.dropout.forward(y=write(d.y), x=x, **d.counters)
    return d.y


def dropout_backward(p: Builder, d: Dropout | None, dy: Buffer, x: Buffer) -> Buffer:
    """The gradient of x: that of what went on, where nothing was dropped."""
    if d is None or not p.active(x):
        return dy
    p.dropout.backward(dx=write(d.dx), dy=dy, **d.counters)
    return d.dx
