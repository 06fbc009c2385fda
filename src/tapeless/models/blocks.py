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
class Last:
    """What the last block of a model that answers once needs besides: the last position, by itself."""

    stream: Buffer  # of the residual stream
    normed: Buffer  # of what attention reads, in a pre-norm block
    q: Buffer
    kv: Buffer
    dnormed: Buffer
    dq: Buffer
    dkv: Buffer
    dx: Buffer  # all positions again


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
    last: Last | None


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
        mean=p.workspace(f"{name}.mean", batch, time, role="statistic"),
        rstd=p.workspace(f"{name}.rstd", batch, time, role="statistic"),
        dy=p.workspace(gradient_name(name), batch, time, channels),
    )


def declare_block(p: Builder, name: str, c: Config, batch: int, time: int, last: bool) -> Block:
    """`last`: only the last position goes on, so queries, feed-forward and norms have one row per sequence."""
    weights = BlockWeights(
        norm1=declare_affine(p, f"{name}.norm1", c.channels),
        qkv=declare_affine(p, f"{name}.attn.qkv", c.channels, 3 * c.channels, bias=c.attention_bias),
        proj=declare_affine(p, f"{name}.attn.proj", c.channels, c.channels, bias=c.attention_bias),
        norm2=declare_affine(p, f"{name}.norm2", c.channels),
        up=declare_affine(p, f"{name}.mlp.up", c.channels, c.width),
        down=declare_affine(p, f"{name}.mlp.down", c.width, c.channels),
    )

    def activation(part: str, width: int, positions: int = 1 if last else time) -> Buffer:
        return p.workspace(f"{name}.{part}", batch, positions, width)

    def stream(part: str, positions: int = 1 if last else time) -> Buffer:
        return p.workspace(f"{name}.{part}", batch, positions, c.channels, role="stream")

    # A pre-norm block norms what all positions' keys and values are made of, a post-norm block what goes on.
    norm1_time = 1 if last and c.norm == "post" else time
    one = 1 if last else time

    return Block(
        config=c,
        w=weights,
        dw=BlockWeights(**{part: gradients_of(p, affine) for part, affine in vars(weights).items()}),
        s=BlockActivations(
            norm1=declare_norm(p, f"{name}.norm1", batch, norm1_time, c.channels),
            qkv=activation("attn.qkv", 3 * c.channels),
            mix=activation("attn.mix", c.channels),
            lse=p.workspace(f"{name}.attn.lse", batch, c.heads, one, role="statistic"),
            proj=activation("attn.proj", c.channels),
            sum1=stream("sum1"),
            norm2=declare_norm(p, f"{name}.norm2", batch, one, c.channels),
            up=activation("mlp.up", c.width),
            act=activation("mlp.act", c.width),
            down=activation("mlp.down", c.channels),
            sum2=stream("sum2"),
            dqkv=activation("attn.dqkv", 3 * c.channels),
            dmix=activation("attn.dmix", c.channels),
            dsum1=stream("dsum1"),
            dup=activation("mlp.dup", c.width),
            dact=activation("mlp.dact", c.width),
            dsum2=stream("dsum2"),
            last=Last(
                stream=stream("last"),
                normed=activation("norm1.last", c.channels),
                q=activation("attn.q", c.channels),
                kv=activation("attn.kv", 2 * c.channels, time),
                dnormed=activation("norm1.dlast", c.channels),
                dq=activation("attn.dq", c.channels),
                dkv=activation("attn.dkv", 2 * c.channels, time),
                dx=stream("dx", time),
            )
            if last
            else None,
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


def parts(buffer: Buffer, number: int) -> tuple[View, ...]:
    """Equal parts of the columns, side by side: q, k and v are views of one product, not copies."""
    width = buffer.shape[-1] // number
    return tuple(buffer.columns(n * width, (n + 1) * width) for n in range(number))


def columns(affine: Affine, start: int, stop: int) -> tuple[View, View | None]:
    """Part of a linear: some of its outputs."""
    return affine.weight.columns(start, stop), affine.bias.columns(start, stop) if affine.bias else None


def attention_forward(p: Builder, b: Block, x: Buffer, x_last: Buffer) -> None:
    w, s, c = b.w, b.s, b.config.channels
    if s.last:
        kv_weight, kv_bias = columns(w.qkv, c, 3 * c)
        q_weight, q_bias = columns(w.qkv, 0, c)
        q, (k, v) = s.last.q.all, parts(s.last.kv, 2)
        p.linear.forward(y=write(s.last.kv), x=x, weight=kv_weight, bias=kv_bias)
        p.linear.forward(y=write(s.last.q), x=x_last, weight=q_weight, bias=q_bias)
    else:
        q, k, v = parts(s.qkv, 3)
        p.linear.forward(y=write(s.qkv), x=x, weight=w.qkv.weight, bias=w.qkv.bias)
    p.attention.forward(y=write(s.mix), lse=write(s.lse), q=q, k=k, v=v, causal=b.config.causal)
    p.linear.forward(y=write(s.proj), x=s.mix, weight=w.proj.weight, bias=w.proj.bias)


def attention_backward(
    p: Builder, b: Block, x: Buffer, x_last: Buffer, dx: Output | None, dx_last: Output | None, dy: Buffer
) -> None:
    """dx_last is the gradient of x_last, which only a block that ends in one position has."""
    w, dw, s, c = b.w, b.dw, b.s, b.config.channels
    q, k, v = (s.last.q.all, *parts(s.last.kv, 2)) if s.last else parts(s.qkv, 3)
    dq, dk, dv = (s.last.dq.all, *parts(s.last.dkv, 2)) if s.last else parts(s.dqkv, 3)
    p.linear.backward(
        dx=write(s.dmix), dweight=add(dw.proj.weight), dbias=add(dw.proj.bias),
        dy=dy, x=s.mix, weight=w.proj.weight,
    )  # fmt: skip
    p.attention.backward(
        dq=write(dq), dk=write(dk), dv=write(dv),
        dy=s.dmix, q=q, k=k, v=v, y=s.mix, lse=s.lse, causal=b.config.causal,
    )  # fmt: skip
    if s.last:
        kv_dweight, kv_dbias = columns(dw.qkv, c, 3 * c)
        q_dweight, q_dbias = columns(dw.qkv, 0, c)
        p.linear.backward(
            dx=dx_last, dweight=add(q_dweight), dbias=add(q_dbias),
            dy=s.last.dq, x=x_last, weight=columns(w.qkv, 0, c)[0],
        )  # fmt: skip
        p.linear.backward(
            dx=dx, dweight=add(kv_dweight), dbias=add(kv_dbias),
            dy=s.last.dkv, x=x, weight=columns(w.qkv, c, 3 * c)[0],
        )  # fmt: skip
    else:
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
    s = b.s
    norm_forward(p, b.w.norm1, s.norm1, x, b.config.norm_eps)
    if s.last:
        p.last_position.forward(y=write(s.last.stream), x=x)
        p.last_position.forward(y=write(s.last.normed), x=s.norm1.y)
    attention_forward(p, b, s.norm1.y, s.last.normed if s.last else s.norm1.y)
    p.residual.forward(y=write(s.sum1), x=s.last.stream if s.last else x, branch=s.proj)
    norm_forward(p, b.w.norm2, s.norm2, s.sum1, b.config.norm_eps)
    mlp_up_forward(p, b, s.norm2.y)


def pre_norm_forward(p: Builder, b: Block, x: Buffer) -> Buffer:
    pre_norm_inside(p, b, x)
    mlp_down_forward(p, b)
    p.residual.forward(y=write(b.s.sum2), x=b.s.sum1, branch=b.s.down)
    return b.s.sum2


def pre_norm_backward(p: Builder, b: Block, x: Buffer, dstream: Buffer) -> Buffer:
    """dstream comes in as the gradient of sum2 and, two additions later, leaves as the gradient of x."""
    s = b.s
    with p.phase("recompute"):
        if b.config.recompute:
            pre_norm_inside(p, b, x)
        else:  # a norm's result is as large as its input and cheap to have again: it is never kept
            norm_forward(p, b.w.norm2, s.norm2, s.sum1, b.config.norm_eps)
    mlp_backward(p, b, s.norm2.y, dx=write(s.norm2.dy), dy=dstream)
    norm_backward(p, b.w.norm2, b.dw.norm2, s.norm2, s.sum1, dx=add(dstream), dy=s.norm2.dy)
    if not b.config.recompute:
        with p.phase("recompute"):
            norm_forward(p, b.w.norm1, s.norm1, x, b.config.norm_eps)
    if s.last:
        attention_backward(
            p, b, s.norm1.y, s.last.normed, dx=write(s.norm1.dy), dx_last=write(s.last.dnormed), dy=dstream
        )
        p.last_position.backward(dx=add(s.norm1.dy), dy=s.last.dnormed)
        p.last_position.backward(dx=write(s.last.dx), dy=dstream)
        dstream = s.last.dx
    else:
        attention_backward(p, b, s.norm1.y, s.norm1.y, dx=write(s.norm1.dy), dx_last=None, dy=dstream)
    norm_backward(p, b.w.norm1, b.dw.norm1, s.norm1, x, dx=add(dstream), dy=s.norm1.dy)
    return dstream


# Post-norm:  y1 = norm1(x + attention(x)),  y2 = norm2(y1 + mlp(y1)).  The stream is normed after every branch.


def post_norm_inside(p: Builder, b: Block, x: Buffer) -> None:
    """All that the backward needs but sum2 and its statistics, which are kept in any case."""
    s = b.s
    if s.last:
        p.last_position.forward(y=write(s.last.stream), x=x)
    stream = s.last.stream if s.last else x
    attention_forward(p, b, x, stream)
    p.residual.forward(y=write(s.sum1), x=stream, branch=s.proj)
    norm_forward(p, b.w.norm1, s.norm1, s.sum1, b.config.norm_eps)
    mlp_up_forward(p, b, s.norm1.y)


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
    if s.last:
        attention_backward(p, b, x, s.last.stream, dx=write(s.last.dx), dx_last=add(s.dsum1), dy=s.dsum1)
        p.last_position.backward(dx=add(s.last.dx), dy=s.dsum1)
        return s.last.dx
    attention_backward(p, b, x, x, dx=add(s.dsum1), dx_last=None, dy=s.dsum1)
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
