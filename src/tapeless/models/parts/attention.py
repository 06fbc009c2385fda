"""Attention: queries, keys and values from one product, what they mix together, and a projection of that.

Where only the last position goes on, queries are made of that position alone, keys and values of all. Where a model
reads on from a cache, keys and values are remembered there and found there. Heads of queries may share heads of keys
and values. Where positions are rotary, queries and keys are turned by their place, and before that, where the model has
it so, normed head by head: `Prepared`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.parts import Scope
from tapeless.models.parts.affine import Affine, affine_backward, affine_forward, declare_affine
from tapeless.models.parts.norm import Norm, declare_rmsnorm, norm_backward, norm_forward
from tapeless.models.parts.rotary import Rotary
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Output, View, update, write


@dataclass(frozen=True)
class Cache:
    """The past, and how many positions of it there are."""

    keys: Buffer
    values: Buffer
    position: Buffer


@dataclass(frozen=True)
class LastQuery:
    """Queries of the last position, keys and values of all: two products with columns of one matrix."""

    q: Buffer
    kv: Buffer
    dq: Buffer
    dkv: Buffer


@dataclass(frozen=True)
class Prepared:
    """Queries, or keys, on their way from the product to attention. What comes of it is cheap to have again and never
    kept: the backward computes it anew from the product."""

    norm: Norm | None
    turned: Buffer | None
    dturned: Buffer | None

    def ready(self, x: View) -> Buffer | View:
        return self.turned or (self.norm.y if self.norm else x)

    def gradient(self, dx: View) -> Buffer | View:
        return self.dturned or (self.norm.dy if self.norm else dx)


@dataclass(frozen=True)
class Attention:
    name: str
    queries: int  # channels
    keys: int
    causal: bool
    window: int
    recompute: bool
    w_qkv: Affine
    w_proj: Affine
    qkv: Buffer
    mix: Buffer  # what attention mixed together
    lse: Buffer
    proj: Buffer
    dqkv: Buffer
    dmix: Buffer
    of_q: Prepared
    of_k: Prepared
    rotary: Rotary | None
    last: LastQuery | None
    cache: Cache | None

    @property
    def w_q(self) -> Affine:
        return self.w_qkv.columns(0, self.queries, f"{self.name}.q")

    @property
    def w_kv(self) -> Affine:
        return self.w_qkv.columns(self.queries, self.queries + 2 * self.keys, f"{self.name}.kv")

    @property
    def q_k_v(self) -> tuple[View, View, View]:
        """Views of one product, not copies."""
        if self.last:
            return (self.last.q.all, *_keys_values(self.last.kv, 0, self.keys))
        return (self.qkv.columns(0, self.queries), *_keys_values(self.qkv, self.queries, self.keys))

    @property
    def dq_dk_dv(self) -> tuple[View, View, View]:
        if self.last:
            return (self.last.dq.all, *_keys_values(self.last.dkv, 0, self.keys))
        return (self.dqkv.columns(0, self.queries), *_keys_values(self.dqkv, self.queries, self.keys))

    @property
    def seen(self) -> dict[str, object]:
        """What a query may see."""
        starts = self.rotary.starts if self.rotary else None
        return {"starts": starts, "causal": self.causal, "window": self.window}


def _keys_values(buffer: Buffer, first: int, width: int) -> tuple[View, View]:
    return buffer.columns(first, first + width), buffer.columns(first + width, first + 2 * width)


def declare_attention(s: Scope, name: str, last: bool) -> Attention:
    """Declare the buffers of attention. `last`: only the last position has a query."""
    p, c, time = s.p, s.c, s.time
    queries, keys = c.heads * c.head_channels, c.key_heads * c.head_channels
    one, all_three = 1 if last else time, queries + 2 * keys
    w_qkv = declare_affine(
        s,
        f"{name}.qkv",
        c.channels,
        all_three,
        s.scheme.matrix,
        has_bias=c.attention_bias,
        matrices=(queries, keys, keys),
    )
    of_q = _declare_prepared(s, f"{name}.q", one, c.heads)
    of_k = _declare_prepared(s, f"{name}.k", time, c.key_heads)
    has_bias = c.attention_bias and c.projection_bias
    w_proj = declare_affine(s, f"{name}.proj", queries, c.channels, s.scheme.into_stream, has_bias=has_bias)
    cached = (1, c.key_heads, c.context, c.head_channels)
    return Attention(
        name=name,
        queries=queries,
        keys=keys,
        causal=c.causal,
        window=c.window,
        recompute=s.preset.layout.recompute,
        w_qkv=w_qkv,
        w_proj=w_proj,
        qkv=s.activations(f"{name}.qkv", time, all_three),
        mix=s.activations(f"{name}.mix", one, queries),
        lse=p.workspace(f"{name}.lse", s.batch, c.heads, one, role="statistic"),
        proj=s.activations(f"{name}.proj", one, c.channels),
        dqkv=s.activations(f"{name}.dqkv", time, all_three),
        dmix=s.activations(f"{name}.dmix", one, queries),
        of_q=of_q,
        of_k=of_k,
        rotary=s.rotary,
        last=LastQuery(
            q=s.activations(f"{name}.q", 1, queries),
            kv=s.activations(f"{name}.kv", time, 2 * keys),
            dq=s.activations(f"{name}.dq", 1, queries),
            dkv=s.activations(f"{name}.dkv", time, 2 * keys),
        )
        if last
        else None,
        cache=Cache(
            p.buffer("state", f"{name}.keys", cached, "activation", meaning="cached keys"),
            p.buffer("state", f"{name}.values", cached, "activation", meaning="cached values"),
            s.position,
        )
        if s.position
        else None,
    )


def _declare_prepared(s: Scope, name: str, time: int, heads: int) -> Prepared:
    width = heads * s.c.head_channels
    return Prepared(
        norm=declare_rmsnorm(s, f"{name}_norm", time, heads, s.c.head_channels) if s.c.query_key_norm else None,
        turned=s.activations(f"{name}_turned", time, width) if s.rotary else None,
        dturned=s.activations(f"{name}_dturned", time, width) if s.rotary else None,
    )


def prepared_forward(p: Builder, of: Prepared, rotary: Rotary | None, x: Buffer | View) -> None:
    if of.norm:
        norm_forward(p, of.norm, x)
        x = of.norm.y
    if of.turned and rotary:
        p.rope.forward(y=write(of.turned), x=x, cos=rotary.cos, sin=rotary.sin)


def prepared_backward(p: Builder, of: Prepared, rotary: Rotary | None, dx: View, x: View) -> None:
    before: Buffer | View = of.norm.y if of.norm else x
    if of.dturned and rotary and p.active(before):
        dbefore = of.norm.dy if of.norm else dx
        p.rope.backward(dx=write(dbefore), dy=of.dturned, cos=rotary.cos, sin=rotary.sin)
    if of.norm:
        norm_backward(p, of.norm, dx=write(dx), dy=of.norm.dy, x=x)


def attention_forward(p: Builder, a: Attention, x: Buffer, x_last: Buffer) -> None:
    """x_last is the last position of x, or x where all go on."""
    q, k, v = a.q_k_v
    if a.last:
        affine_forward(p, a.w_kv, a.last.kv, x)
        affine_forward(p, a.w_q, a.last.q, x_last)
    else:
        affine_forward(p, a.w_qkv, a.qkv, x)
    prepared_forward(p, a.of_q, a.rotary, q)
    prepared_forward(p, a.of_k, a.rotary, k)
    remember_forward(p, a)
    if a.cache:
        p.cached_attention.forward(
            y=write(a.mix),
            q=a.of_q.ready(q),
            keys=a.cache.keys,
            values=a.cache.values,
            position=a.cache.position,
            window=a.window,
        )
    else:
        p.attention.forward(y=write(a.mix), lse=write(a.lse), q=a.of_q.ready(q), k=a.of_k.ready(k), v=v, **a.seen)
    affine_forward(p, a.w_proj, a.proj, a.mix)


def attention_backward(
    p: Builder, a: Attention, dx: Output | None, dx_last: Output | None, dy: Buffer, x: Buffer, x_last: Buffer
) -> None:
    """dx_last is the gradient of x_last, which only a block that ends in one position has."""
    q, k, v = a.q_k_v
    dq, dk, dv = a.dq_dk_dv
    affine_backward(p, a.w_proj, dx=write(a.dmix), dy=dy, x=a.mix)
    if p.active(a.mix):
        if not a.recompute:  # else they are there again already
            with p.phase("recompute"):
                prepared_forward(p, a.of_q, a.rotary, q)
                prepared_forward(p, a.of_k, a.rotary, k)
        p.attention.backward(
            dq=write(a.of_q.gradient(dq)),
            dk=write(a.of_k.gradient(dk)),
            dv=write(dv),
            dy=a.dmix,
            q=a.of_q.ready(q),
            k=a.of_k.ready(k),
            v=v,
            y=a.mix,
            lse=a.lse,
            **a.seen,
        )
        prepared_backward(p, a.of_k, a.rotary, dk, k)
        prepared_backward(p, a.of_q, a.rotary, dq, q)
    if a.last:
        affine_backward(p, a.w_q, dx=dx_last, dy=a.last.dq, x=x_last)
        affine_backward(p, a.w_kv, dx=dx, dy=a.last.dkv, x=x)
    else:
        affine_backward(p, a.w_qkv, dx=dx, dy=a.dqkv, x=x)


def keys_and_values_forward(p: Builder, a: Attention, x: Buffer) -> None:
    """All that later positions need of a last block: no queries."""
    affine_forward(p, a.w_kv, a.qkv.columns(a.queries, a.queries + 2 * a.keys), x)
    prepared_forward(p, a.of_k, a.rotary, a.q_k_v[1])
    remember_forward(p, a)


def remember_forward(p: Builder, a: Attention) -> None:
    """Where there is a cache."""
    if a.cache:
        _, k, v = a.q_k_v
        keys, values = update(a.cache.keys), update(a.cache.values)
        p.remember.forward(keys=keys, values=values, k=a.of_k.ready(k), v=v, position=a.cache.position)
