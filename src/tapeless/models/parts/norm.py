"""Norm: every position brought to mean 0 and variance 1, then scaled and shifted by channel."""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.initialise import ONE, ZERO
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Initial, Output, add, gradient_name, write


@dataclass(frozen=True)
class Norm:
    eps: float
    weight: Buffer
    bias: Buffer
    dweight: Buffer | None
    dbias: Buffer | None
    y: Buffer
    mean: Buffer
    rstd: Buffer
    dy: Buffer


def declare_norm(
    p: Builder, name: str, batch: int, time: int, channels: int, eps: float, initial: Initial = ONE
) -> Norm:
    weight = p.weight(f"{name}.weight", channels, initial=initial)
    bias = p.weight(f"{name}.bias", channels, initial=ZERO)
    return Norm(
        eps=eps,
        weight=weight,
        bias=bias,
        dweight=p.gradient(weight),
        dbias=p.gradient(bias),
        y=p.workspace(name, batch, time, channels),
        mean=p.workspace(f"{name}.mean", batch, time, role="statistic"),
        rstd=p.workspace(f"{name}.rstd", batch, time, role="statistic"),
        dy=p.workspace(gradient_name(name), batch, time, channels),
    )


def norm_forward(p: Builder, n: Norm, x: Buffer) -> None:
    p.layernorm.forward(
        y=write(n.y), mean=write(n.mean), rstd=write(n.rstd), x=x, weight=n.weight, bias=n.bias, eps=n.eps
    )


def norm_backward(p: Builder, n: Norm, dx: Output | None, dy: Buffer, x: Buffer) -> None:
    dx = dx if p.active(x) else None
    if dx or n.dweight or n.dbias:
        p.layernorm.backward(
            dx=dx, dweight=add(n.dweight), dbias=add(n.dbias),
            dy=dy, x=x, weight=n.weight, mean=n.mean, rstd=n.rstd,
        )  # fmt: skip
