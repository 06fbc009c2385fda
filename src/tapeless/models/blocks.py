"""The transformer blocks: how the parts are wired, pre-norm and post-norm. Each forward stands above its backward.

x is the residual stream; adding a branch to it needs no backward call, because the stream's gradient is at once that of
the branch, or of what dropout has left of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.parts import Scope
from tapeless.models.parts.attention import (
    Attention,
    attention_backward,
    attention_forward,
    declare_attention,
    keys_and_values_forward,
)
from tapeless.models.parts.dropout import Dropout, declare_dropout, dropout_backward, dropout_forward
from tapeless.models.parts.feed_forward import (
    FeedForward,
    declare_feed_forward,
    down_forward,
    feed_forward_backward,
    up_forward,
)
from tapeless.models.parts.norm import Norm, declare_norm, norm_backward, norm_forward
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, add, write


@dataclass(frozen=True)
class LastPosition:
    """What the last block of a model that answers once needs besides: the last position, by itself."""

    stream: Buffer  # of the residual stream
    normed: Buffer  # of what attention reads, in a pre-norm block
    dnormed: Buffer
    dx: Buffer  # all positions again


@dataclass(frozen=True)
class Block:
    pre_norm: bool
    recompute: bool
    keep_norms: bool
    norm1: Norm
    attn: Attention
    norm2: Norm
    mlp: FeedForward
    sum1: Buffer  # the stream with the attention branch
    sum2: Buffer  # the stream with the feed-forward branch
    dsum1: Buffer
    dsum2: Buffer
    drop1: Dropout | None  # of the attention branch
    drop2: Dropout | None  # of the feed-forward branch
    last: LastPosition | None

    @property
    def y(self) -> Buffer:
        return self.sum2 if self.pre_norm else self.norm2.y


def declare_block(s: Scope, name: str, last: bool) -> Block:
    """Declare a block. `last`: only the last position goes on, so queries, feed-forward and norms have one row each."""
    layout, channels, pre_norm = s.preset.layout, s.c.channels, s.c.placement == "pre"
    one = 1 if last else s.time

    def stream(part: str, time: int) -> Buffer:
        return s.activations(f"{name}.{part}", time, channels, role="stream")

    def normed(part: str) -> Buffer:
        return s.activations(f"{name}.{part}", 1, channels)

    return Block(
        pre_norm=pre_norm,
        recompute=layout.recompute,
        keep_norms=layout.keep_norms,
        # A pre-norm block norms what all positions' keys and values are made of, a post-norm block what goes on.
        norm1=declare_norm(s, f"{name}.norm1", s.time if pre_norm else one),
        attn=declare_attention(s, f"{name}.attn", last),
        norm2=declare_norm(s, f"{name}.norm2", one),
        mlp=declare_feed_forward(s, f"{name}.mlp", one),
        sum1=stream("sum1", one),
        sum2=stream("sum2", one),
        dsum1=stream("dsum1", one),
        dsum2=stream("dsum2", one),
        drop1=declare_dropout(s, f"{name}.attn.proj", one),
        drop2=declare_dropout(s, f"{name}.mlp.down", one),
        last=LastPosition(stream("last", 1), normed("norm1.last"), normed("norm1.dlast"), stream("dx", s.time))
        if last
        else None,
    )


# Pre-norm (GPT-2):  sum1 = x + attention(norm1(x)),  sum2 = sum1 + mlp(norm2(sum1)).  The stream is never normed.


def pre_norm_inside(p: Builder, b: Block, x: Buffer) -> None:
    """All that the backward needs: computed once, or again where `recompute` keeps only x."""
    norm_forward(p, b.norm1, x)
    if b.last:
        p.last_position.forward(y=write(b.last.stream), x=x)
        p.last_position.forward(y=write(b.last.normed), x=b.norm1.y)
    attention_forward(p, b.attn, b.norm1.y, b.last.normed if b.last else b.norm1.y)
    branch = dropout_forward(p, b.drop1, b.attn.proj)
    p.residual.forward(y=write(b.sum1), x=b.last.stream if b.last else x, branch=branch)
    norm_forward(p, b.norm2, b.sum1)
    up_forward(p, b.mlp, b.norm2.y)


def pre_norm_forward(p: Builder, b: Block, x: Buffer) -> Buffer:
    pre_norm_inside(p, b, x)
    down_forward(p, b.mlp)
    p.residual.forward(y=write(b.sum2), x=b.sum1, branch=dropout_forward(p, b.drop2, b.mlp.down))
    return b.y


def pre_norm_backward(p: Builder, b: Block, dstream: Buffer, x: Buffer) -> Buffer:
    """dstream comes in as the gradient of sum2 and, two additions later, leaves as the gradient of x."""
    with p.phase("recompute"):
        if b.recompute:
            pre_norm_inside(p, b, x)
        elif b.mlp.w_up.needs_input and not b.keep_norms:
            norm_forward(p, b.norm2, b.sum1)  # its result is as large as its input, and cheap to have again
    dbranch = dropout_backward(p, b.drop2, dstream, b.mlp.down)
    feed_forward_backward(p, b.mlp, dx=write(b.norm2.dy), dy=dbranch, x=b.norm2.y)
    norm_backward(p, b.norm2, dx=add(dstream), dy=b.norm2.dy, x=b.sum1)
    if b.attn.w_qkv.needs_input and not (b.recompute or b.keep_norms):
        with p.phase("recompute"):
            norm_forward(p, b.norm1, x)
    dbranch = dropout_backward(p, b.drop1, dstream, b.attn.proj)
    if b.last:
        attention_backward(
            p,
            b.attn,
            dx=write(b.norm1.dy),
            dx_last=write(b.last.dnormed),
            dy=dbranch,
            x=b.norm1.y,
            x_last=b.last.normed,
        )
        if p.active(b.norm1.y):
            p.last_position.backward(dx=add(b.norm1.dy), dy=b.last.dnormed)
        if p.active(x):
            p.last_position.backward(dx=write(b.last.dx), dy=dstream)
        dstream = b.last.dx
    else:
        attention_backward(p, b.attn, dx=write(b.norm1.dy), dx_last=None, dy=dbranch, x=b.norm1.y, x_last=b.norm1.y)
    norm_backward(p, b.norm1, dx=add(dstream), dy=b.norm1.dy, x=x)
    return dstream


# Post-norm:  y1 = norm1(x + attention(x)),  y2 = norm2(y1 + mlp(y1)).  The stream is normed after every branch.


def post_norm_inside(p: Builder, b: Block, x: Buffer) -> None:
    """All that the backward needs but sum2 and its statistics, which are kept in any case."""
    if b.last:
        p.last_position.forward(y=write(b.last.stream), x=x)
    stream = b.last.stream if b.last else x
    attention_forward(p, b.attn, x, stream)
    p.residual.forward(y=write(b.sum1), x=stream, branch=dropout_forward(p, b.drop1, b.attn.proj))
    norm_forward(p, b.norm1, b.sum1)
    up_forward(p, b.mlp, b.norm1.y)


def post_norm_forward(p: Builder, b: Block, x: Buffer) -> Buffer:
    post_norm_inside(p, b, x)
    down_forward(p, b.mlp)
    p.residual.forward(y=write(b.sum2), x=b.norm1.y, branch=dropout_forward(p, b.drop2, b.mlp.down))
    norm_forward(p, b.norm2, b.sum2)
    return b.y


def post_norm_backward(p: Builder, b: Block, dy: Buffer, x: Buffer) -> Buffer:
    """dsum2 becomes the gradient of y1 when the mlp adds its part, dsum1 that of x when attention does."""
    if b.recompute and p.active(b.sum2):
        with p.phase("recompute"):
            post_norm_inside(p, b, x)
    norm_backward(p, b.norm2, dx=write(b.dsum2), dy=dy, x=b.sum2)
    dbranch = dropout_backward(p, b.drop2, b.dsum2, b.mlp.down)
    feed_forward_backward(p, b.mlp, dx=add(b.dsum2), dy=dbranch, x=b.norm1.y)
    norm_backward(p, b.norm1, dx=write(b.dsum1), dy=b.dsum2, x=b.sum1)
    dbranch = dropout_backward(p, b.drop1, b.dsum1, b.attn.proj)
    if b.last:
        attention_backward(p, b.attn, dx=write(b.last.dx), dx_last=add(b.dsum1), dy=dbranch, x=x, x_last=b.last.stream)
        if p.active(x):
            p.last_position.backward(dx=add(b.last.dx), dy=b.dsum1)
        return b.last.dx
    attention_backward(p, b.attn, dx=add(b.dsum1), dx_last=None, dy=dbranch, x=x, x_last=x)
    return b.dsum1


def stack_forward(p: Builder, blocks: tuple[Block, ...], x: Buffer) -> tuple[Buffer, list[Buffer]]:
    """All blocks in order. Also returns what came into each, for the way back."""
    inputs = []
    for index, block in enumerate(blocks):
        inputs.append(x)
        with p.section(f"blocks.{index}"):
            x = (pre_norm_forward if block.pre_norm else post_norm_forward)(p, block, x)
    return x, inputs


def stack_backward(p: Builder, blocks: tuple[Block, ...], inputs: list[Buffer], dx: Buffer) -> Buffer:
    """Down to the lowest trained weight: below it nothing goes back, and nothing is kept for it."""
    for index, block in reversed(list(enumerate(blocks))):
        if p.active(block.y):
            with p.section(f"blocks.{index}"):
                dx = (pre_norm_backward if block.pre_norm else post_norm_backward)(p, block, dx, inputs[index])
    return dx


def reading_forward(p: Builder, b: Block, x: Buffer) -> None:
    """Of the last block of a model that only reads on: what later positions need of it."""
    if b.pre_norm:
        norm_forward(p, b.norm1, x)
        x = b.norm1.y
    keys_and_values_forward(p, b.attn, x)
