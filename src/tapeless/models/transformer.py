"""A transformer from end to end: front (embedding), a stack of blocks, head (norm, readout, loss).

GPT and encoder differ in the fields of their architecture, not in this description. It is read as the training step, as
an evaluation (the loss alone), as a readout (the scores), and with a cache as decoding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tapeless.errors import ProgramError
from tapeless.models.blocks import Block, declare_block, stack_backward, stack_forward
from tapeless.models.config import Architecture, Optimizer, Preset
from tapeless.models.learning import check_trained, is_trained
from tapeless.models.parts import Scope
from tapeless.models.parts.affine import Affine, affine_backward, affine_forward, declare_affine
from tapeless.models.parts.dropout import (
    Draws,
    Dropout,
    declare_draws,
    declare_dropout,
    draws_forward,
    dropout_backward,
    dropout_forward,
)
from tapeless.models.parts.norm import Norm, declare_norm, norm_backward, norm_forward
from tapeless.models.parts.rotary import Rotary, declare_rotary, rotary_forward
from tapeless.program.builder import Builder
from tapeless.program.call import Buffer, Program, Weight, add, member_offsets, update, write

if TYPE_CHECKING:
    from tapeless.ops.muon.reference import Matrices


@dataclass(frozen=True)
class Net:
    """Every buffer outside the blocks. Gradients stand beside what they are the gradients of."""

    config: Architecture
    inputs: Buffer  # token ids B T, or features B T features
    tokens: Buffer | None
    dtokens: Buffer | None
    project: Affine | None  # from features to channels, where there are no tokens
    positions: Buffer | None  # a weight, or a constant; none where they are rotary
    dpositions: Buffer | None
    position: Buffer | None  # how many positions came before, where there is a cache of them
    rotary: Rotary | None
    x: Buffer  # the start of the residual stream
    draws: Draws | None  # of random numbers, where some of it is dropped
    dropout: Dropout | None  # of x
    blocks: tuple[Block, ...]
    norm: Norm | None  # pre-norm models norm the stream once more at the end
    head: Buffer
    dhead: Buffer | None
    dstream: Buffer  # the gradient of the residual stream at the end of the blocks
    logits: Buffer
    targets: Buffer
    count: Buffer  # how many targets are not −1, or the sum of their classes' weights
    class_weights: Buffer | None
    loss: Buffer


def declare(
    p: Builder,
    preset: Preset,
    batch: int,
    time: int,
    *,
    weighted: bool = False,
    cached: bool = False,
    learning: bool = False,
) -> Net:
    """Weights in the order in which they lie in memory, each with its gradient, then the activations, part by part.
    Only a program that is `learning` drops anything."""
    c = preset.architecture
    draws = declare_draws(p, preset.dropout if learning else 0.0)
    s = Scope(p, preset, batch, time, draws=draws)
    dropout = declare_dropout(s, "x", time, role="stream")
    s.position = p.buffer("input", "position", (1,), "index", meaning="cached length") if cached else None
    with p.section("embedding"):
        tokens, project, dtokens = None, None, None
        if c.features:
            project = declare_affine(s, "input", c.features, c.channels, s.scheme.matrix, matrices=())
        else:
            first = s.scheme.tokens
            tokens = p.weight("tokens.weight", c.vocab, c.channels, initial=first, meaning="vocabulary")
            dtokens = p.gradient(tokens)
        positions: Buffer | None = None
        dpositions, table = None, "position embeddings"
        if c.positions == "learned":
            first = s.scheme.positions
            positions = p.weight("positions.weight", c.context, c.channels, initial=first, meaning=table)
            dpositions = p.gradient(positions)
        elif c.positions == "sinusoidal":
            positions = p.buffer("constant", "positions.table", (c.context, c.channels), "stream", meaning=table)
        else:
            s.rotary = declare_rotary(s)
    last = c.readout == "last"  # then the last block keeps the last position alone: the loss sees no other
    final = 1 if last else time
    blocks = []
    for n in range(c.layers):
        with p.section(f"blocks.{n}"):
            blocks.append(declare_block(s, f"blocks.{n}", last and n == c.layers - 1))
    with p.section("head"):
        norm = declare_norm(s, "norm", final, s.scheme.final_norm) if c.placement == "pre" else None
        head = (
            tokens
            if tokens and c.tied
            else p.weight("head.weight", c.vocab, c.channels, initial=s.scheme.matrix, meaning="vocabulary")
        )
    return Net(
        config=c,
        inputs=p.buffer("input", "features", (batch, time, c.features))
        if c.features
        else p.buffer("input", "tokens", (batch, time), "index", meaning="token ids"),
        tokens=tokens,
        dtokens=dtokens,
        project=project,
        positions=positions,
        dpositions=dpositions,
        position=s.position,
        rotary=s.rotary,
        x=s.activations("x", time, c.channels, role="stream"),
        draws=draws,
        dropout=dropout,
        blocks=tuple(blocks),
        norm=norm,
        head=head,
        dhead=p.gradient(head),
        dstream=s.activations("dstream", final, c.channels, role="stream"),
        logits=p.workspace("logits", min(preset.layout.chunk or _usual_chunk(c), batch * final), c.vocab),
        targets=p.buffer("input", "targets", (batch,) if last else (batch, time), "index", meaning="targets"),
        count=p.buffer("input", "count", (1,), "scalar", meaning="loss denominator"),
        class_weights=p.buffer("constant", "class_weights", (c.vocab,), "statistic", meaning="class weights")
        if weighted
        else None,
        loss=p.buffer("output", "loss", (1,), "statistic"),
    )


def _usual_chunk(config: Architecture) -> int:
    """Rows of logits at a time, where neither a user nor the backend says: more where the vocabulary is most of the
    model, since each chunk reads all of its table and adds to all of its gradient."""
    return 512 if config.channels <= 256 else 256


def front_forward(p: Builder, n: Net) -> Buffer:
    with p.section("embedding"):
        draws_forward(p, n.draws)
        if n.project:
            affine_forward(p, n.project, n.x, n.inputs)
        else:
            p.embedding.forward(y=write(n.x), tokens=n.inputs, weight=n.tokens)
        if n.rotary:
            rotary_forward(p, n.rotary)
        elif n.position:
            p.positions_at.forward(y=add(n.x), table=n.positions, position=n.position)
        else:
            p.positions.forward(y=add(n.x), table=n.positions)
        return dropout_forward(p, n.dropout, n.x)


def front_backward(p: Builder, n: Net, dx: Buffer) -> None:
    with p.section("embedding"):
        dx = dropout_backward(p, n.dropout, dx, n.x)
        if n.dpositions:
            p.positions.backward(dtable=add(n.dpositions), dy=dx)
        if n.project:
            affine_backward(p, n.project, dx=None, dy=dx, x=n.inputs)
        elif n.dtokens:
            p.embedding.backward(dweight=add(n.dtokens), dy=dx, tokens=n.inputs)


def head_forward(p: Builder, n: Net, x: Buffer) -> Buffer:
    """From the end of the stream to the state that the loss or the scores are computed from."""
    with p.section("head"):
        if n.norm:
            norm_forward(p, n.norm, x)
            x = n.norm.y
    return x


def head_backward(p: Builder, n: Net, x: Buffer, state: Buffer) -> Buffer:
    """The loss and its gradient, then back to the end of the stream, x."""
    with p.section("head"):
        dstate = n.norm.dy if n.norm else n.dstream
        loss_backward(p, n, state, dstate)
        if n.norm:
            norm_backward(p, n.norm, dx=write(n.dstream), dy=dstate, x=x)
    return n.dstream


def loss_forward(p: Builder, n: Net, state: Buffer) -> None:
    with p.section("head"):
        p.op(_LOSSES[n.config.loss]).forward(loss=write(n.loss), **_judged(n, state))


def loss_backward(p: Builder, n: Net, state: Buffer, dstate: Buffer) -> None:
    if n.config.loss == "cross_entropy":
        dx = write(dstate) if p.active(state) else None
        p.classifier.backward(loss=write(n.loss), dx=dx, dweight=add(n.dhead), **_judged(n, state))
    else:
        p.squared_error.backward(loss=write(n.loss), dx=write(dstate), **_judged(n, state))


_LOSSES = {"cross_entropy": "classifier", "squared_error": "squared_error"}


def _judged(n: Net, state: Buffer) -> dict[str, Any]:
    """What a loss reads, forward and backward; the logits are scratch of both."""
    read: dict[str, Any] = {"x": state, "targets": n.targets, "count": n.count}
    if n.config.loss == "squared_error":
        return read | {"table": n.tokens}
    return read | {"logits": write(n.logits), "weight": n.head, "class_weights": n.class_weights}


def training(
    preset: Preset,
    batch: int,
    time: int,
    optimizer: Optimizer | None,
    *,
    master: bool = False,
    weighted: bool = False,
    verified: bool = True,
) -> Program:
    """zero, forward, backward, clip, update. Without an optimizer it ends with the gradients.
    `master`: what the update steps is a copy of the weights in a wider type. `weighted`: the loss weighs classes.
    `verified`: not, where nothing but its size is asked for."""
    lean = preset.layout.lean and optimizer is not None  # else the gradients are what is asked for
    p = Builder(partial(is_trained, preset), lean=lean)
    n = declare(p, preset, batch, time, weighted=weighted, learning=True)
    check_trained(preset, p.weights)
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
        write_update(p, optimizer, gradients, n.loss, master)
    return p.verified() if verified else p.build()


def write_update(p: Builder, optimizer: Optimizer, gradients: Buffer, loss: Buffer, master: bool) -> None:
    """Clip by the global norm, then one pass over all weights. What changes each step is an input; whether the step may
    be taken at all is decided by the list itself."""
    weights = p.region("weight", "weights")
    full = p.buffer("master", "master", weights.shape) if master else None
    starts = sections(weights)

    def number(kind: str, name: str, meaning: str, count: int = 1, role: str = "scalar") -> Buffer:
        return p.buffer(kind, name, (count,), role, meaning=meaning)

    norm, scale = number("output", "gradient_norm", "gradient norm"), number("output", "scale", "gradient scale")
    finite = number("output", "finite", "finite flag", role="index")
    limit, lr = number("input", "limit", "clip limit"), number("input", "lr", "learning rate")
    count = number("state", "step", "optimizer steps", role="index")
    norms = number("output", "gradient_norms", "gradient norms", len(starts))
    moved = number("output", "moved", "lengths of the step", len(starts))
    sizes = number("output", "weight_norms", "norms of weights", len(starts))
    with p.phase("clip"):
        p.global_norm.forward(
            norm=write(norm), norms=write(norms), gradients=gradients, sections=tuple(starts.values())
        )
        p.clip.forward(
            scale=write(scale),
            finite=write(finite),
            loss=loss,
            norm=norm,
            limit=limit,
            largest=number("constant", "largest", "largest number"),
        )
    step: dict[str, Any] = {
        "weights": update(weights),
        "master": update(full),
        "step": update(count),
        "moved": write(moved),
        "norms": write(sizes),
        "sections": tuple(starts.values()),
        "gradients": gradients,
        "scale": scale,
        "finite": finite,
        "lr": lr,
    }
    with p.phase("update"):
        if optimizer.name == "sgd":
            p.sgd.forward(**step)
            return
        step["m"] = update(p.buffer("state", "m", weights.shape, meaning="first moment"))
        if optimizer.name == "momentum":
            p.momentum.forward(**step, momentum=optimizer.number("momentum"))
            return
        step |= {name: optimizer.number(name) for name in ("beta1", "beta2", "eps", "decay")}
        step["decayed"] = _spans(weights) if optimizer.name != "adam" else ()
        if optimizer.name == "muon":
            matrices = _matrices(weights)
            rest = weights.elements - sum(rows * sum(widths) for _, rows, widths in matrices)
            # Where matrices alone are trained, nothing is in v.
            v = p.buffer("state", "v", (max(1, rest),), meaning="second moment")
            p.muon.forward(**step, v=update(v), momentum=optimizer.number("momentum"), matrices=matrices)
        else:
            v = p.buffer("state", "v", weights.shape, meaning="second moment")
            p.adamw.forward(**step, v=update(v))


def sections(weights: Buffer) -> dict[str, int]:
    """Where each section of the model begins in the region of its weights, in which they lie section by section."""
    starts: dict[str, int] = {}
    for member, start in zip(weights.members, member_offsets(weights.members)[0], strict=True):
        section = member.section if isinstance(member, Weight) else ""
        if section in starts and section != next(reversed(starts)):
            raise ProgramError(f"{member.name} does not lie beside the other weights of {section}: declare it there.")
        starts.setdefault(section, start)
    return starts


def _spans(region: Buffer) -> tuple[tuple[int, int], ...]:
    """Where the weights that decay lie in their region: (first element, one past the last)."""
    starts = member_offsets(region.members)[0]
    chosen = zip(region.members, starts, strict=True)
    return tuple((s, s + m.elements) for m, s in chosen if isinstance(m, Weight) and m.decay)


def _matrices(region: Buffer) -> Matrices:
    """Of the weights that are made of hidden layers' matrices: (first element in the region, rows, widths)."""
    chosen = zip(region.members, member_offsets(region.members)[0], strict=True)
    return tuple((s, m.shape[0], m.matrices) for m, s in chosen if isinstance(m, Weight) and m.matrices)


def reader(preset: Preset) -> Builder:
    """Of a program that only reads: what is frozen is to it a weight like any other, but may be of another type."""
    return Builder(partial(is_trained, preset))


def evaluation(preset: Preset, batch: int, time: int, *, weighted: bool = False) -> Program:
    """The loss alone, in a place of its own: an update may still be due for the loss of a training step."""
    p = reader(preset)
    n = declare(p, preset, batch, time, weighted=weighted)
    n = replace(n, loss=p.workspace("evaluated", 1, role="statistic"))
    x, _ = stack_forward(p, n.blocks, front_forward(p, n))
    loss_forward(p, n, head_forward(p, n, x))
    return p.verified()


def readout(preset: Preset, batch: int, time: int) -> Program:
    p = reader(preset)
    n = declare(p, preset, batch, time)
    write_scores(p, n)
    return p.verified()


def write_scores(p: Builder, n: Net) -> None:
    """Products with the vocabulary, or proximity to every embedding."""
    x, _ = stack_forward(p, n.blocks, front_forward(p, n))
    state = head_forward(p, n, x)
    scores = p.buffer("output", "scores", (*state.shape[:-1], n.config.vocab))
    with p.section("head"):
        if n.config.loss == "cross_entropy":
            p.unembed.forward(y=write(scores), x=state, weight=n.head)
        else:
            p.proximity.forward(y=write(scores), x=state, weight=n.tokens)
