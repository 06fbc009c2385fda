"""Feed-forward: up to the hidden width, an activation, and down again."""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.config import Architecture
from tapeless.models.initialise import Scheme
from tapeless.models.parts.affine import Affine, affine_backward, affine_forward, declare_affine
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Output, write


@dataclass(frozen=True)
class FeedForward:
    activation: str
    w_up: Affine
    w_down: Affine
    up: Buffer
    act: Buffer
    down: Buffer
    dup: Buffer
    dact: Buffer


def declare_feed_forward(p: Builder, name: str, c: Architecture, scheme: Scheme, batch: int, time: int) -> FeedForward:
    return FeedForward(
        activation=c.activation,
        w_up=declare_affine(p, f"{name}.up", c.channels, c.width, scheme.matrix),
        w_down=declare_affine(p, f"{name}.down", c.width, c.channels, scheme.into_stream),
        up=p.workspace(f"{name}.up", batch, time, c.width),
        act=p.workspace(f"{name}.act", batch, time, c.width),
        down=p.workspace(f"{name}.down", batch, time, c.channels),
        dup=p.workspace(f"{name}.dup", batch, time, c.width),
        dact=p.workspace(f"{name}.dact", batch, time, c.width),
    )


def up_forward(p: Builder, f: FeedForward, x: Buffer) -> None:
    """The first half, whose result is kept."""
    affine_forward(p, f.w_up, f.up, x)


def down_forward(p: Builder, f: FeedForward) -> None:
    p.op(f.activation).forward(y=write(f.act), x=f.up)
    affine_forward(p, f.w_down, f.down, f.act)


def feed_forward_backward(p: Builder, f: FeedForward, dx: Output | None, dy: Buffer, x: Buffer) -> None:
    if f.w_down.dweight:
        with p.phase("recompute"):  # cheaper than keeping R×F numbers per block until now
            p.op(f.activation).forward(y=write(f.act), x=f.up)
    affine_backward(p, f.w_down, dx=write(f.dact), dy=dy, x=f.act)
    if p.active(f.up):
        p.op(f.activation).backward(dx=write(f.dup), dy=f.dact, x=f.up)
    affine_backward(p, f.w_up, dx=dx, dy=f.dup, x=x)
