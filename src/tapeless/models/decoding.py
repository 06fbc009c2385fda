"""A transformer that reads on from where it stopped: the programs of sampling.

Keys and values of all positions so far lie in a cache, which both programs share: *reading* takes several positions
at a time and only fills the cache, *decoding* takes one and says the scores of what may come next. How many positions
came before is an input, so neither list ever changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.errors import TapelessError
from tapeless.models.blocks import Block, columns, mlp_down_forward, mlp_up_forward, norm_forward, parts
from tapeless.models.config import Config
from tapeless.models.transformer import Net, declare, head_forward
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Program, View, add, update, write
from tapeless.program.verify import verify

CHUNK = 64  # positions read at a time: enough that the products, and not the reading of the weights, take the time


@dataclass(frozen=True)
class Cache:
    """The past of one block."""

    keys: Buffer
    values: Buffer


def check_decodable(c: Config) -> None:
    """A cache holds what later positions see of earlier ones, so earlier ones must not change when later ones come."""
    reason = (
        "reads features" if c.features
        else "sees the future (causal=False)" if not c.causal
        else "answers once per sequence (readout='last')" if c.readout == "last"
        else None
    )  # fmt: skip
    if reason:
        raise TapelessError(f"{c.name} {reason}, so it cannot generate token by token; use model.logits.")


def decoding(c: Config) -> Program:
    """One position through the whole model: its scores."""
    p = Builder()
    n, caches, position = _declare(p, c, time=1)
    x = _front(p, n, position)
    for index, (block, cache) in enumerate(zip(n.blocks, caches, strict=True)):
        with p.section(f"blocks.{index}"):
            x = _block(p, block, cache, x, position)
    state = head_forward(p, n, x)
    scores = p.buffer("output", "scores", (1, 1, c.vocab))
    with p.section("head"):
        if c.loss == "cross_entropy":
            p.unembed.forward(y=write(scores), x=state, weight=n.head)
        else:
            p.proximity.forward(y=write(scores), x=state, weight=n.tokens)
    return _verified(p)


def reading(c: Config, time: int) -> Program:
    """`time` positions into the cache. It ends with the last block's keys and values: nothing else is seen later."""
    p = Builder()
    n, caches, position = _declare(p, c, time)
    x = _front(p, n, position)
    for index, (block, cache) in enumerate(zip(n.blocks[:-1], caches[:-1], strict=True)):
        with p.section(f"blocks.{index}"):
            x = _block(p, block, cache, x, position)
    with p.section(f"blocks.{c.layers - 1}"):
        _keys_and_values(p, n.blocks[-1], caches[-1], x, position)
    return _verified(p)


def _declare(p: Builder, c: Config, time: int) -> tuple[Net, list[Cache], Buffer]:
    n = declare(p, c, 1, time)
    shape = (1, c.heads, c.context, c.channels // c.heads)
    caches = [
        Cache(*(p.buffer("state", f"blocks.{index}.attn.{part}", shape, "activation") for part in ("keys", "values")))
        for index in range(c.layers)
    ]
    return n, caches, p.buffer("input", "position", (1,), "index")


def _front(p: Builder, n: Net, position: Buffer) -> Buffer:
    with p.section("embedding"):
        p.embedding.forward(y=write(n.x), tokens=n.inputs, weight=n.tokens)
        p.positions_at.forward(y=add(n.x), table=n.positions, position=position)
    return n.x


def _block(p: Builder, b: Block, cache: Cache, x: Buffer, position: Buffer) -> Buffer:
    """What pre_norm_forward and post_norm_forward do, with the past in the cache."""
    s, pre = b.s, b.config.norm == "pre"
    if pre:
        norm_forward(p, b.w.norm1, s.norm1, x, b.config.norm_eps)
    _attention(p, b, cache, s.norm1.y if pre else x, position)
    p.residual.forward(y=write(s.sum1), x=x, branch=s.proj)
    middle = s.norm2 if pre else s.norm1  # the norm between the branches
    norm_forward(p, b.w.norm2 if pre else b.w.norm1, middle, s.sum1, b.config.norm_eps)
    mlp_up_forward(p, b, middle.y)
    mlp_down_forward(p, b)
    p.residual.forward(y=write(s.sum2), x=s.sum1 if pre else middle.y, branch=s.down)
    if pre:
        return s.sum2
    norm_forward(p, b.w.norm2, s.norm2, s.sum2, b.config.norm_eps)
    return s.norm2.y


def _attention(p: Builder, b: Block, cache: Cache, x: Buffer, position: Buffer) -> None:
    w, s = b.w, b.s
    q, k, v = parts(s.qkv, 3)
    p.linear.forward(y=write(s.qkv), x=x, weight=w.qkv.weight, bias=w.qkv.bias)
    _remember(p, cache, k, v, position)
    p.cached_attention.forward(y=write(s.mix), q=q, keys=cache.keys, values=cache.values, position=position)
    p.linear.forward(y=write(s.proj), x=s.mix, weight=w.proj.weight, bias=w.proj.bias)


def _keys_and_values(p: Builder, b: Block, cache: Cache, x: Buffer, position: Buffer) -> None:
    """All that later positions need of a last block."""
    c = b.config
    if c.norm == "pre":
        norm_forward(p, b.w.norm1, b.s.norm1, x, c.norm_eps)
        x = b.s.norm1.y
    kv_weight, kv_bias = columns(b.w.qkv, c.channels, 3 * c.channels)
    _, k, v = parts(b.s.qkv, 3)
    p.linear.forward(y=write(b.s.qkv.columns(c.channels, 3 * c.channels)), x=x, weight=kv_weight, bias=kv_bias)
    _remember(p, cache, k, v, position)


def _remember(p: Builder, cache: Cache, k: View, v: View, position: Buffer) -> None:
    p.remember.forward(keys=update(cache.keys), values=update(cache.values), k=k, v=v, position=position)


def _verified(p: Builder) -> Program:
    program = p.build()
    verify(program)
    return program
