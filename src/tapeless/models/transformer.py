"""A transformer from end to end: front (embedding), a stack of blocks, head (norm, readout, loss).

GPT and encoder differ in the fields of their Config, not in this description. It is read three times: as the
training step, as an evaluation (the loss alone) and as a readout (the scores).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tapeless.errors import ProgramError
from tapeless.models.blocks import (
    Affine,
    Block,
    Norm,
    declare_affine,
    declare_block,
    declare_norm,
    gradients_of,
    norm_backward,
    norm_forward,
    stack_backward,
    stack_forward,
)
from tapeless.models.config import Config, Optimizer
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Program, add, member_offsets, update, write
from tapeless.program.verify import verify


@dataclass(frozen=True)
class Net:
    """Every buffer outside the blocks. Gradients stand beside what they are the gradients of."""

    config: Config
    inputs: Buffer  # token ids B T, or features B T features
    tokens: Buffer | None
    dtokens: Buffer | None
    project: Affine | None  # from features to channels, where there are no tokens
    dproject: Affine | None
    positions: Buffer  # a weight, or a constant
    dpositions: Buffer | None
    x: Buffer  # the start of the residual stream
    blocks: tuple[Block, ...]
    norm: Affine | None  # pre-norm models norm the stream once more at the end
    dnorm: Affine | None
    normed: Norm | None
    head: Buffer
    dhead: Buffer
    dstream: Buffer  # the gradient of the residual stream at the end of the blocks
    logits: Buffer
    targets: Buffer
    count: Buffer  # how many targets are not −1, or the sum of their classes' weights
    class_weights: Buffer | None
    loss: Buffer


def declare(p: Builder, c: Config, batch: int, time: int) -> Net:
    """Weights in the order in which they lie in memory, each with its gradient; then the activations."""
    tokens = None if c.features else p.weight("tokens.weight", c.vocab, c.channels, decay=True)
    project = declare_affine(p, "input", c.features, c.channels) if c.features else None
    learned = c.positions == "learned"
    positions = (
        p.weight("positions.weight", c.context, c.channels)
        if learned
        else p.buffer("constant", "positions.table", (c.context, c.channels))
    )
    dtokens = p.gradient(tokens) if tokens else None
    dproject = gradients_of(p, project) if project else None
    dpositions = p.gradient(positions) if learned else None
    last = c.readout == "last"  # then the last block keeps the last position alone: the loss sees no other
    final = 1 if last else time
    blocks = tuple(
        declare_block(p, f"blocks.{n}", c, batch, time, last=last and n == c.layers - 1) for n in range(c.layers)
    )
    norm = declare_affine(p, "norm", c.channels) if c.norm == "pre" else None
    dnorm = gradients_of(p, norm) if norm else None
    head = tokens if tokens and c.tied else p.weight("head.weight", c.vocab, c.channels, decay=True)
    return Net(
        config=c,
        inputs=p.buffer("input", "features", (batch, time, c.features))
        if c.features
        else p.buffer("input", "tokens", (batch, time), "int64"),
        tokens=tokens,
        dtokens=dtokens,
        project=project,
        dproject=dproject,
        positions=positions,
        dpositions=dpositions,
        x=p.workspace("x", batch, time, c.channels),
        blocks=blocks,
        norm=norm,
        dnorm=dnorm,
        normed=declare_norm(p, "norm", batch, final, c.channels) if norm else None,
        head=head,
        dhead=p.gradient(head),
        dstream=p.workspace("dstream", batch, final, c.channels),
        logits=p.workspace("logits", min(c.chunk, batch * final), c.vocab),
        targets=p.buffer("input", "targets", (batch,) if last else (batch, time), "int64"),
        count=p.buffer("input", "count", (1,), "float64"),
        class_weights=p.buffer("constant", "class_weights", (c.vocab,)) if c.class_weights else None,
        loss=p.buffer("output", "loss", (1,)),
    )


def front_forward(p: Builder, n: Net) -> Buffer:
    with p.section("embedding"):
        if n.project:
            p.linear.forward(y=write(n.x), x=n.inputs, weight=n.project.weight, bias=n.project.bias)
        else:
            p.embedding.forward(y=write(n.x), tokens=n.inputs, weight=n.tokens)
        p.positions.forward(y=add(n.x), table=n.positions)
    return n.x


def front_backward(p: Builder, n: Net, dx: Buffer) -> None:
    with p.section("embedding"):
        if n.dpositions:
            p.positions.backward(dtable=add(n.dpositions), dy=dx)
        if n.project and n.dproject:
            p.linear.backward(
                dweight=add(n.dproject.weight), dbias=add(n.dproject.bias),
                dy=dx, x=n.inputs, weight=n.project.weight,
            )  # fmt: skip
        else:
            p.embedding.backward(dweight=add(n.dtokens), dy=dx, tokens=n.inputs)


def head_forward(p: Builder, n: Net, x: Buffer) -> Buffer:
    """From the end of the stream to the state that the loss or the scores are computed from."""
    with p.section("head"):
        if n.norm and n.normed:
            norm_forward(p, n.norm, n.normed, x, n.config.norm_eps)
            x = n.normed.y
    return x


def head_backward(p: Builder, n: Net, x: Buffer, state: Buffer) -> Buffer:
    """The loss and its gradient, then back to the end of the stream, x."""
    with p.section("head"):
        dstate = n.normed.dy if n.normed else n.dstream
        loss_backward(p, n, state, dstate)
        if n.norm and n.dnorm and n.normed:
            norm_backward(p, n.norm, n.dnorm, n.normed, x, dx=write(n.dstream), dy=dstate)
    return n.dstream


def loss_forward(p: Builder, n: Net, state: Buffer) -> None:
    with p.section("head"):
        if n.config.loss == "cross_entropy":
            p.classifier.forward(
                loss=write(n.loss), logits=write(n.logits),
                x=state, weight=n.head, targets=n.targets, count=n.count, class_weights=n.class_weights,
            )  # fmt: skip
        else:
            p.squared_error.forward(loss=write(n.loss), x=state, table=n.tokens, targets=n.targets, count=n.count)


def loss_backward(p: Builder, n: Net, state: Buffer, dstate: Buffer) -> None:
    if n.config.loss == "cross_entropy":
        p.classifier.backward(
            loss=write(n.loss), dx=write(dstate), dweight=add(n.dhead), logits=write(n.logits),
            x=state, weight=n.head, targets=n.targets, count=n.count, class_weights=n.class_weights,
        )  # fmt: skip
    else:
        p.squared_error.backward(
            loss=write(n.loss), dx=write(dstate), x=state, table=n.tokens, targets=n.targets, count=n.count
        )


def training(c: Config, batch: int, time: int, optimizer: Optimizer | None) -> Program:
    """zero, forward, backward, clip, update. Without an optimizer it ends with the gradients."""
    p = Builder()
    n = declare(p, c, batch, time)
    gradients = p.region("gradient", "gradients")
    with p.phase("zero"):
        p.zero.forward(y=write(gradients))
    with p.phase("forward"):
        x, inputs = stack_forward(p, n.blocks, front_forward(p, n))
        state = head_forward(p, n, x)
    with p.phase("backward"):
        dx = head_backward(p, n, x, state)
        dx = stack_backward(p, n.blocks, inputs, dx)
        front_backward(p, n, dx)
    if optimizer is not None:
        write_update(p, optimizer, gradients, n.loss)
    return _verified(p)


def write_update(p: Builder, optimizer: Optimizer, gradients: Buffer, loss: Buffer) -> None:
    """Clip by the global norm, then one pass over all weights. What changes each step is an input; whether the step may
    be taken at all is decided by the list itself."""
    weights = p.region("weight", "weights")
    starts = sections(weights)
    norm, scale = (p.buffer("output", name, (1,), "float64") for name in ("gradient_norm", "scale"))
    finite = p.buffer("output", "finite", (1,), "int64")
    limit, lr = (p.buffer("input", name, (1,), "float64") for name in ("limit", "lr"))
    by_section = (
        p.buffer("output", name, (len(starts),), "float64") for name in ("gradient_norms", "moved", "weight_norms")
    )
    norms, moved, sizes = by_section
    with p.phase("clip"):
        p.global_norm.forward(
            norm=write(norm), norms=write(norms), gradients=gradients, sections=tuple(starts.values())
        )
        p.clip.forward(
            scale=write(scale), finite=write(finite),
            loss=loss, norm=norm, limit=limit, largest=p.buffer("constant", "largest", (1,), "float64"),
        )  # fmt: skip
    step: dict[str, Any] = {
        "weights": update(weights), "step": update(p.buffer("state", "step", (1,), "int64")),
        "moved": write(moved), "norms": write(sizes), "sections": tuple(starts.values()),
        "gradients": gradients, "scale": scale, "finite": finite, "lr": lr,
    }  # fmt: skip
    with p.phase("update"):
        if optimizer.name == "sgd":
            p.sgd.forward(**step)
            return
        m = p.buffer("state", "m", weights.shape)
        if optimizer.name == "momentum":
            p.momentum.forward(**step, m=update(m), momentum=optimizer.momentum)
            return
        decays = optimizer.name == "adamw"
        p.adamw.forward(
            **step, m=update(m), v=update(p.buffer("state", "v", weights.shape)),
            beta1=optimizer.beta1, beta2=optimizer.beta2, eps=optimizer.eps,
            decay=optimizer.decay if decays else 0.0, decayed=_spans(weights, p.decayed) if decays else (),
        )  # fmt: skip


def sections(weights: Buffer) -> dict[str, int]:
    """Where each section of the model begins in the region of its weights, in which they lie section by section."""
    starts: dict[str, int] = {}
    for member, start in zip(weights.members, member_offsets(weights.members)[0], strict=True):
        section = section_of(member)
        if section in starts and section != next(reversed(starts)):
            raise ProgramError(f"{member.name} does not lie beside the other weights of {section}: declare it there.")
        starts.setdefault(section, start)
    return starts


def section_of(weight: Buffer) -> str:
    parts = weight.name.split(".")
    if parts[0] == "blocks":
        return ".".join(parts[:2])
    return "head" if parts[0] in ("norm", "head") else "embedding"


def _spans(region: Buffer, chosen: list[Buffer]) -> tuple[tuple[int, int], ...]:
    """Where the chosen members lie in their region: (first element, one past the last)."""
    starts = member_offsets(region.members)[0]
    return tuple((s, s + m.elements) for m, s in zip(region.members, starts, strict=True) if m in chosen)


def evaluation(c: Config, batch: int, time: int) -> Program:
    """The loss alone, in a place of its own: an update may still be due for the loss of a training step."""
    p = Builder()
    n = replace(declare(p, c, batch, time), loss=p.workspace("evaluated", 1))
    x, _ = stack_forward(p, n.blocks, front_forward(p, n))
    loss_forward(p, n, head_forward(p, n, x))
    return _verified(p)


def readout(c: Config, batch: int, time: int) -> Program:
    """The scores: products with the vocabulary, or proximity to every embedding."""
    p = Builder()
    n = declare(p, c, batch, time)
    x, _ = stack_forward(p, n.blocks, front_forward(p, n))
    state = head_forward(p, n, x)
    scores = p.buffer("output", "scores", (*state.shape[:-1], c.vocab))
    with p.section("head"):
        if c.loss == "cross_entropy":
            p.unembed.forward(y=write(scores), x=state, weight=n.head)
        else:
            p.proximity.forward(y=write(scores), x=state, weight=n.tokens)
    return _verified(p)


def _verified(p: Builder) -> Program:
    program = p.build()
    verify(program)
    return program
