"""Feed-forward: up to the hidden width, an activation, and down again. Where the activation is gated, one product makes
both what decides and what is let through: gate and up are halves of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tapeless.models.parts import Scope
from tapeless.models.parts.affine import Affine, affine_backward, affine_forward, declare_affine, parts
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Output, write


@dataclass(frozen=True)
class FeedForward:
    activation: str
    gated: bool
    w_up: Affine
    w_down: Affine
    up: Buffer
    act: Buffer
    down: Buffer
    dup: Buffer
    dact: Buffer

    @property
    def activated(self) -> dict[str, Any]:
        """What the activation reads, and below it the gradients of that."""
        return dict(zip(("gate", "up"), parts(self.up, 2), strict=True)) if self.gated else {"x": self.up}

    @property
    def gradients(self) -> dict[str, Any]:
        if not self.gated:
            return {"dx": write(self.dup)}
        return {name: write(part) for name, part in zip(("dgate", "dup"), parts(self.dup, 2), strict=True)}


def declare_feed_forward(s: Scope, name: str, time: int) -> FeedForward:
    c = s.c
    up, widths = ("gate_up", (c.width, c.width)) if c.gated else ("up", (c.width,))
    width, bias = sum(widths), c.mlp_bias
    return FeedForward(
        activation=c.activation,
        gated=c.gated,
        w_up=declare_affine(s, f"{name}.{up}", c.channels, width, s.scheme.matrix, matrices=widths, has_bias=bias),
        w_down=declare_affine(s, f"{name}.down", c.width, c.channels, s.scheme.into_stream, has_bias=bias),
        up=s.activations(f"{name}.{up}", time, width),
        act=s.activations(f"{name}.act", time, c.width),
        down=s.activations(f"{name}.down", time, c.channels),
        dup=s.activations(f"{name}.d{up}", time, width),
        dact=s.activations(f"{name}.dact", time, c.width),
    )


def up_forward(p: Builder, f: FeedForward, x: Buffer) -> None:
    """The first half, whose result is kept."""
    affine_forward(p, f.w_up, f.up, x)


def down_forward(p: Builder, f: FeedForward) -> None:
    p.op(f.activation).forward(y=write(f.act), **f.activated)
    affine_forward(p, f.w_down, f.down, f.act)


def feed_forward_backward(p: Builder, f: FeedForward, dx: Output | None, dy: Buffer, x: Buffer) -> None:
    if f.w_down.needs_input:
        with p.phase("recompute"):  # cheaper than keeping R×F numbers per block until now
            p.op(f.activation).forward(y=write(f.act), **f.activated)
    affine_backward(p, f.w_down, dx=write(f.dact), dy=dy, x=f.act)
    if p.active(f.up):
        p.op(f.activation).backward(**f.gradients, dy=f.dact, **f.activated)
    affine_backward(p, f.w_up, dx=dx, dy=f.dup, x=x)
