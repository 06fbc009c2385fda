"""The transformer blocks. Each forward stands directly above its backward.

w holds a block's weights, dw their gradients, s what is computed on the way. x is the residual stream; adding a
branch to it needs no backward call, because the stream's gradient is at once the branch's.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapeless.models.config import Config
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Output, View, add, gradient_name, write


@dataclass(frozen=True)
class Affine:
    """The weights of a linear or of a norm."""

    weight: Buffer
    bias: Buffer | None


@dataclass(frozen=True)
class BlockWeights:
    norm1: Affine
    qkv: Affine  # queries, keys and values in one product
    proj: Affine
    norm2: Affine
    up: Affine
    down: Affine


@dataclass(frozen=True)
class Norm:
    y: Buffer
    mean: Buffer
    rstd: Buffer
    dy: Buffer


@dataclass(frozen=True)
class BlockActivations:
    norm1: Norm
    qkv: Buffer
    mix: Buffer  # what attention mixed together
    lse: Buffer
    proj: Buffer
    sum1: Buffer  # the stream with the attention branch
    norm2: Norm
    up: Buffer
    act: Buffer
    down: Buffer
    sum2: Buffer  # the stream with the feed-forward branch
    dqkv: Buffer
    dmix: Buffer
    dsum1: Buffer
    dup: Buffer
    dact: Buffer
    dsum2: Buffer


@dataclass(frozen=True)
class Block:
    config: Config
    w: BlockWeights
    dw: BlockWeights
    s: BlockActivations


def declare_affine(p: Builder, name: str, *shape: int, bias: bool = True) -> Affine:
    """A linear (in out), whose matrix decays, or a norm (C), which does not."""
    weight = p.weight(f"{name}.weight", *shape, decay=len(shape) == 2)
    return Affine(weight, p.weight(f"{name}.bias", shape[-1]) if bias else None)


def gradients_of(p: Builder, affine: Affine) -> Affine:
    return Affine(p.gradient(affine.weight), p.gradient(affine.bias) if affine.bias else None)


def declare_norm(p: Builder, name: str, batch: int, time: int, channels: int) -> Norm:
    return Norm(
        y=p.workspace(name, batch, time, channels),
        mean=p.workspace(f"{name}.mean", batch, time),
        rstd=p.workspace(f"{name}.rstd", batch, time),
        dy=p.workspace(gradient_name(name), batch, time, channels),
    )


def declare_block(p: Builder, name: str, c: Config, batch: int, time: int) -> Block:
    weights = BlockWeights(
        norm1=declare_affine(p, f"{name}.norm1", c.channels),
        qkv=declare_affine(p, f"{name}.attn.qkv", c.channels, 3 * c.channels, bias=c.attention_bias),
        proj=declare_affine(p, f"{name}.attn.proj", c.channels, c.channels, bias=c.attention_bias),
        norm2=declare_affine(p, f"{name}.norm2", c.channels),
        up=declare_affine(p, f"{name}.mlp.up", c.channels, c.width),
        down=declare_affine(p, f"{name}.mlp.down", c.width, c.channels),
    )

    def activation(part: str, width: int) -> Buffer:
        return p.workspace(f"{name}.{part}", batch, time, width)

    return Block(
        config=c,
        w=weights,
        dw=BlockWeights(**{part: gradients_of(p, affine) for part, affine in vars(weights).items()}),
        s=BlockActivations(
            norm1=declare_norm(p, f"{name}.norm1", batch, time, c.channels),
            qkv=activation("attn.qkv", 3 * c.channels),
            mix=activation("attn.mix", c.channels),
            lse=p.workspace(f"{name}.attn.lse", batch, c.heads, time),
            proj=activation("attn.proj", c.channels),
            sum1=activation("sum1", c.channels),
            norm2=declare_norm(p, f"{name}.norm2", batch, time, c.channels),
            up=activation("mlp.up", c.width),
            act=activation("mlp.act", c.width),
            down=activation("mlp.down", c.channels),
            sum2=activation("sum2", c.channels),
            dqkv=activation("attn.dqkv", 3 * c.channels),
            dmix=activation("attn.dmix", c.channels),
            dsum1=activation("dsum1", c.channels),
            dup=activation("mlp.dup", c.width),
            dact=activation("mlp.dact", c.width),
            dsum2=activation("dsum2", c.channels),
        ),
    )


def norm_forward(p: Builder, w: Affine, s: Norm, x: Buffer, eps: float) -> None:
    p.layernorm.forward(
        y=write(s.y), mean=write(s.mean), rstd=write(s.rstd), x=x, weight=w.weight, bias=w.bias, eps=eps
    )


def norm_backward(p: Builder, w: Affine, dw: Affine, s: Norm, x: Buffer, dx: Output | None, dy: Buffer) -> None:
    p.layernorm.backward(
        dx=dx, dweight=add(dw.weight), dbias=add(dw.bias),
        dy=dy, x=x, weight=w.weight, mean=s.mean, rstd=s.rstd,
    )  # fmt: skip


def thirds(qkv: Buffer) -> tuple[View, View, View]:
    """q, k and v stand side by side in the columns: views, not copies."""
    c = qkv.shape[-1] // 3
    return qkv.columns(0, c), qkv.columns(c, 2 * c), qkv.columns(2 * c, 3 * c)


def attention_forward(p: Builder, b: Block, x: Buffer) -> None:
    w, s = b.w, b.s
    q, k, v = thirds(s.qkv)
    p.linear.forward(y=write(s.qkv), x=x, weight=w.qkv.weight, bias=w.qkv.bias)
    p.attention.forward(y=write(s.mix), lse=write(s.lse), q=q, k=k, v=v, causal=b.config.causal)
    p.linear.forward(y=write(s.proj), x=s.mix, weight=w.proj.weight, bias=w.proj.bias)


def attention_backward(p: Builder, b: Block, x: Buffer, dx: Output | None, dy: Buffer) -> None:
    w, dw, s = b.w, b.dw, b.s
    q, k, v = thirds(s.qkv)
    dq, dk, dv = thirds(s.dqkv)
    p.linear.backward(
        dx=write(s.dmix), dweight=add(dw.proj.weight), dbias=add(dw.proj.bias),
        dy=dy, x=s.mix, weight=w.proj.weight,
    )  # fmt: skip
    p.attention.backward(
        dq=write(dq), dk=write(dk), dv=write(dv),
        dy=s.dmix, q=q, k=k, v=v, y=s.mix, lse=s.lse, causal=b.config.causal,
    )  # fmt: skip
    p.linear.backward(
        dx=dx, dweight=add(dw.qkv.weight), dbias=add(dw.qkv.bias),
        dy=s.dqkv, x=x, weight=w.qkv.weight,
    )  # fmt: skip


def mlp_up_forward(p: Builder, b: Block, x: Buffer) -> None:
    """The first half, whose result is kept."""
    p.linear.forward(y=write(b.s.up), x=x, weight=b.w.up.weight, bias=b.w.up.bias)


def mlp_down_forward(p: Builder, b: Block) -> None:
    p.op(b.config.activation).forward(y=write(b.s.act), x=b.s.up)
    p.linear.forward(y=write(b.s.down), x=b.s.act, weight=b.w.down.weight, bias=b.w.down.bias)


def mlp_backward(p: Builder, b: Block, x: Buffer, dx: Output | None, dy: Buffer) -> None:
    w, dw, s = b.w, b.dw, b.s
    activation = p.op(b.config.activation)
    with p.phase("recompute"):  # cheaper than keeping R×F numbers per block until now
        activation.forward(y=write(s.act), x=s.up)
    p.linear.backward(
        dx=write(s.dact), dweight=add(dw.down.weight), dbias=add(dw.down.bias),
        dy=dy, x=s.act, weight=w.down.weight,
    )  # fmt: skip
    activation.backward(dx=write(s.dup), dy=s.dact, x=s.up)
    p.linear.backward(
        dx=dx, dweight=add(dw.up.weight), dbias=add(dw.up.bias),
        dy=s.dup, x=x, weight=w.up.weight,
    )  # fmt: skip


# Pre-norm (GPT-2):  sum1 = x + attention(norm1(x)),  sum2 = sum1 + mlp(norm2(sum1)).  The stream is never normed.


def pre_norm_inside(p: Builder, b: Block, x: Buffer) -> None:
    """All that the backward needs: computed once, or again where `recompute` keeps only x."""
    norm_forward(p, b.w.norm1, b.s.norm1, x, b.config.norm_eps)
    attention_forward(p, b, b.s.norm1.y)
    p.residual.forward(y=write(b.s.sum1), x=x, branch=b.s.proj)
    norm_forward(p, b.w.norm2, b.s.norm2, b.s.sum1, b.config.norm_eps)
    mlp_up_forward(p, b, b.s.norm2.y)


def pre_norm_forward(p: Builder, b: Block, x: Buffer) -> Buffer:
    pre_norm_inside(p, b, x)
    mlp_down_forward(p, b)
    p.residual.forward(y=write(b.s.sum2), x=b.s.sum1, branch=b.s.down)
    return b.s.sum2


def pre_norm_backward(p: Builder, b: Block, x: Buffer, dstream: Buffer) -> Buffer:
    """dstream comes in as the gradient of sum2 and, two additions later, leaves as the gradient of x."""
    s = b.s
    if b.config.recompute:
        with p.phase("recompute"):
            pre_norm_inside(p, b, x)
    mlp_backward(p, b, s.norm2.y, dx=write(s.norm2.dy), dy=dstream)
    norm_backward(p, b.w.norm2, b.dw.norm2, s.norm2, s.sum1, dx=add(dstream), dy=s.norm2.dy)
    attention_backward(p, b, s.norm1.y, dx=write(s.norm1.dy), dy=dstream)
    norm_backward(p, b.w.norm1, b.dw.norm1, s.norm1, x, dx=add(dstream), dy=s.norm1.dy)
    return dstream


# Post-norm:  y1 = norm1(x + attention(x)),  y2 = norm2(y1 + mlp(y1)).  The stream is normed after every branch.


def post_norm_inside(p: Builder, b: Block, x: Buffer) -> None:
    """All that the backward needs but sum2 and its statistics, which are kept in any case."""
    attention_forward(p, b, x)
    p.residual.forward(y=write(b.s.sum1), x=x, branch=b.s.proj)
    norm_forward(p, b.w.norm1, b.s.norm1, b.s.sum1, b.config.norm_eps)
    mlp_up_forward(p, b, b.s.norm1.y)


def post_norm_forward(p: Builder, b: Block, x: Buffer) -> Buffer:
    post_norm_inside(p, b, x)
    mlp_down_forward(p, b)
    p.residual.forward(y=write(b.s.sum2), x=b.s.norm1.y, branch=b.s.down)
    norm_forward(p, b.w.norm2, b.s.norm2, b.s.sum2, b.config.norm_eps)
    return b.s.norm2.y


def post_norm_backward(p: Builder, b: Block, x: Buffer, dy: Buffer) -> Buffer:
    """dsum2 becomes the gradient of y1 when the mlp adds its part, dsum1 that of x when attention does."""
    s = b.s
    if b.config.recompute:
        with p.phase("recompute"):
            post_norm_inside(p, b, x)
    norm_backward(p, b.w.norm2, b.dw.norm2, s.norm2, s.sum2, dx=write(s.dsum2), dy=dy)
    mlp_backward(p, b, s.norm1.y, dx=add(s.dsum2), dy=s.dsum2)
    norm_backward(p, b.w.norm1, b.dw.norm1, s.norm1, s.sum1, dx=write(s.dsum1), dy=s.dsum2)
    attention_backward(p, b, x, dx=add(s.dsum1), dy=s.dsum1)
    return s.dsum1


def stack_forward(p: Builder, blocks: tuple[Block, ...], x: Buffer) -> tuple[Buffer, list[Buffer]]:
    """All blocks in order. Also returns what came into each, for the way back."""
    inputs = []
    for index, block in enumerate(blocks):
        inputs.append(x)
        with p.section(f"blocks.{index}"):
            x = (pre_norm_forward if block.config.norm == "pre" else post_norm_forward)(p, block, x)
    return x, inputs


def stack_backward(p: Builder, blocks: tuple[Block, ...], inputs: list[Buffer], dx: Buffer) -> Buffer:
    for index, block in reversed(list(enumerate(blocks))):
        backward = pre_norm_backward if block.config.norm == "pre" else post_norm_backward
        with p.section(f"blocks.{index}"):
            dx = backward(p, block, inputs[index], dx)
    return dx
