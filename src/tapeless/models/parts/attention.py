"""Attention: queries, keys and values from one product, what they mix together, and a projection of that.

Where only the last position goes on, queries are made of that position alone, keys and values of all. Where a model
reads on from a cache, keys and values are remembered there and found there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.config import Architecture
from tapeless.models.initialise import Scheme
from tapeless.models.parts.affine import Affine, affine_backward, affine_forward, declare_affine
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Output, View, update, write


@dataclass(frozen=True)
class Cache:
    """The past, and how many positions of it there are."""

    keys: Buffer
    values: Buffer
    position: Buffer


@dataclass(frozen=True)
class Last:
    """Queries of the last position, keys and values of all: two products with columns of one matrix."""

    q: Buffer
    kv: Buffer
    dq: Buffer
    dkv: Buffer


@dataclass(frozen=True)
class Attention:
    channels: int
    causal: bool
    w_qkv: Affine
    w_proj: Affine
    qkv: Buffer
    mix: Buffer  # what attention mixed together
    lse: Buffer
    proj: Buffer
    dqkv: Buffer
    dmix: Buffer
    last: Last | None
    cache: Cache | None

    @property
    def w_q(self) -> Affine:
        return self.w_qkv.columns(0, self.channels)

    @property
    def w_kv(self) -> Affine:
        return self.w_qkv.columns(self.channels, 3 * self.channels)

    @property
    def q_k_v(self) -> tuple[View, ...]:
        return (self.last.q.all, *parts(self.last.kv, 2)) if self.last else parts(self.qkv, 3)

    @property
    def dq_dk_dv(self) -> tuple[View, ...]:
        return (self.last.dq.all, *parts(self.last.dkv, 2)) if self.last else parts(self.dqkv, 3)


def parts(buffer: Buffer, number: int) -> tuple[View, ...]:
    """Equal parts of the columns, side by side: q, k and v are views of one product, not copies."""
    width = buffer.shape[-1] // number
    return tuple(buffer.columns(n * width, (n + 1) * width) for n in range(number))


def declare_attention(
    p: Builder, name: str, c: Architecture, scheme: Scheme, batch: int, time: int, last: bool, position: Buffer | None
) -> Attention:
    """`last`: queries of the last position alone. `position`: keys and values are cached, and this many are there."""
    width, one = c.channels, 1 if last else time
    w_qkv = declare_affine(p, f"{name}.qkv", width, 3 * width, scheme.matrix, has_bias=c.attention_bias)
    w_proj = declare_affine(p, f"{name}.proj", width, width, scheme.into_stream, has_bias=c.attention_bias)
    cached = (1, c.heads, c.context, width // c.heads)
    return Attention(
        channels=width,
        causal=c.causal,
        w_qkv=w_qkv,
        w_proj=w_proj,
        qkv=p.workspace(f"{name}.qkv", batch, time, 3 * width),
        mix=p.workspace(f"{name}.mix", batch, one, width),
        lse=p.workspace(f"{name}.lse", batch, c.heads, one, role="statistic"),
        proj=p.workspace(f"{name}.proj", batch, one, width),
        dqkv=p.workspace(f"{name}.dqkv", batch, time, 3 * width),
        dmix=p.workspace(f"{name}.dmix", batch, one, width),
        last=Last(
            q=p.workspace(f"{name}.q", batch, 1, width),
            kv=p.workspace(f"{name}.kv", batch, time, 2 * width),
            dq=p.workspace(f"{name}.dq", batch, 1, width),
            dkv=p.workspace(f"{name}.dkv", batch, time, 2 * width),
        )
        if last
        else None,
        cache=Cache(
            p.buffer("state", f"{name}.keys", cached, "activation"),
            p.buffer("state", f"{name}.values", cached, "activation"),
            position,
        )
        if position
        else None,
    )


def attention_forward(p: Builder, a: Attention, x: Buffer, x_last: Buffer) -> None:
    """x_last is the last position of x, or x where all go on."""
    q, k, v = a.q_k_v
    if a.last:
        affine_forward(p, a.w_kv, a.last.kv, x)
        affine_forward(p, a.w_q, a.last.q, x_last)
    else:
        affine_forward(p, a.w_qkv, a.qkv, x)
    remember_forward(p, a)
    if a.cache:
        p.cached_attention.forward(
            y=write(a.mix), q=q, keys=a.cache.keys, values=a.cache.values, position=a.cache.position
        )
    else:
        p.attention.forward(y=write(a.mix), lse=write(a.lse), q=q, k=k, v=v, causal=a.causal)
    affine_forward(p, a.w_proj, a.proj, a.mix)


def attention_backward(
    p: Builder, a: Attention, dx: Output | None, dx_last: Output | None, dy: Buffer, x: Buffer, x_last: Buffer
) -> None:
    """dx_last is the gradient of x_last, which only a block that ends in one position has."""
    q, k, v = a.q_k_v
    dq, dk, dv = a.dq_dk_dv
    affine_backward(p, a.w_proj, dx=write(a.dmix), dy=dy, x=a.mix)
    if p.active(a.mix):
        p.attention.backward(
            dq=write(dq), dk=write(dk), dv=write(dv),
            dy=a.dmix, q=q, k=k, v=v, y=a.mix, lse=a.lse, causal=a.causal,
        )  # fmt: skip
    if a.last:
        affine_backward(p, a.w_q, dx=dx_last, dy=a.last.dq, x=x_last)
        affine_backward(p, a.w_kv, dx=dx, dy=a.last.dkv, x=x)
    else:
        affine_backward(p, a.w_qkv, dx=dx, dy=a.dqkv, x=x)


def keys_and_values_forward(p: Builder, a: Attention, x: Buffer) -> None:
    """All that later positions need of a last block: no queries."""
    affine_forward(p, a.w_kv, a.qkv.columns(a.channels, 3 * a.channels), x)
    remember_forward(p, a)


def remember_forward(p: Builder, a: Attention) -> None:
    """Where there is a cache."""
    if a.cache:
        _, k, v = a.q_k_v
        keys, values = update(a.cache.keys), update(a.cache.values)
        p.remember.forward(keys=keys, values=values, k=k, v=v, position=a.cache.position)
