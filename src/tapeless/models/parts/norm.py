"""Norm: every position brought to mean 0 and variance 1, then scaled and shifted by channel (LayerNorm); or brought to
mean square 1 and scaled (RMSNorm), as a whole or each head by itself."""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.initialise import ONE, ZERO
from tapeless.models.parts import Scope
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Initial, Output, View, add, gradient_name, write


@dataclass(frozen=True)
class Norm:
    eps: float
    weight: Buffer
    bias: Buffer | None  # which RMSNorm has not, nor a mean
    dweight: Buffer | None
    dbias: Buffer | None
    y: Buffer
    mean: Buffer | None
    rstd: Buffer
    dy: Buffer


def declare_norm(s: Scope, name: str, time: int, initial: Initial = ONE) -> Norm:
    p, channels = s.p, s.c.channels
    if s.c.norm_kind == "rmsnorm":
        return declare_rmsnorm(s, name, time, 1, channels, initial)
    weight = p.weight(f"{name}.weight", channels, initial=initial, meaning="norm scale")
    bias = p.weight(f"{name}.bias", channels, initial=ZERO, meaning="bias")
    return Norm(
        eps=s.c.norm_eps,
        weight=weight,
        bias=bias,
        dweight=p.gradient(weight),
        dbias=p.gradient(bias),
        y=s.activations(name, time, channels),
        mean=p.workspace(f"{name}.mean", s.batch, time, role="statistic"),
        rstd=p.workspace(f"{name}.rstd", s.batch, time, role="statistic"),
        dy=s.activations(gradient_name(name), time, channels),
    )


def declare_rmsnorm(s: Scope, name: str, time: int, heads: int, width: int, initial: Initial = ONE) -> Norm:
    """Declare an RMSNorm over each of `heads` slices of a position, all with the same weight."""
    weight = s.p.weight(f"{name}.weight", width, initial=initial, meaning="norm scale")
    return Norm(
        eps=s.c.norm_eps,
        weight=weight,
        bias=None,
        dweight=s.p.gradient(weight),
        dbias=None,
        y=s.activations(name, time, heads * width),
        mean=None,
        rstd=s.activations(f"{name}.rstd", time, heads, role="statistic"),
        dy=s.activations(gradient_name(name), time, heads * width),
    )


def norm_forward(p: Builder, n: Norm, x: Buffer | View) -> None:
    if n.bias is None:
        p.rmsnorm.forward(y=write(n.y), rstd=write(n.rstd), x=x, weight=n.weight, eps=n.eps)
        return
    p.layernorm.forward(
        y=write(n.y), mean=write(n.mean), rstd=write(n.rstd), x=x, weight=n.weight, bias=n.bias, eps=n.eps
    )


def norm_backward(p: Builder, n: Norm, dx: Output | None, dy: Buffer, x: Buffer | View) -> None:
    dx = dx if p.active(x) else None
    if not (dx or n.dweight or n.dbias):
        return
    if n.bias is None:
        p.rmsnorm.backward(dx=dx, dweight=add(n.dweight), dy=dy, x=x, weight=n.weight, rstd=n.rstd)
        return
    p.layernorm.backward(
        dx=dx, dweight=add(n.dweight), dbias=add(n.dbias), dy=dy, x=x, weight=n.weight, mean=n.mean, rstd=n.rstd
    )
