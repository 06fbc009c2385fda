"""Bugs of the blocks: every op is right, and one call is made wrongly."""

from __future__ import annotations

from typing import Any

from tapeless.models import blocks, transformer
from tapeless.models.parts.feed_forward import down_forward
from tapeless.program.builder import Builder
from tapeless.program.call import Output, add, write
from tests.bugs.planting import Bug, Values, around, call, replaced, together


def _as(mode: Any, argument: str) -> Any:
    """The same call with `write` for `add`, or the other way round."""

    def change(values: Values) -> Values:
        output: Output | None = values.get(argument)
        return values if output is None else values | {argument: mode(output.view)}

    return change


def _exchanged(one: str, other: str) -> Any:
    def change(values: Values) -> Values:
        swapped = {one: values[other], other: values[one]}
        return values | swapped

    return change


def _keys_for_queries(values: Values) -> Values:
    """In both directions, where there are as many of the one as of the other."""
    if values["q"].shape != values["k"].shape:
        return values
    changed = _exchanged("q", "k")(values)
    exchanged: Values = _exchanged("dq", "dk")(changed) if "dq" in values else changed
    return exchanged


def _stream_dropped(values: Values) -> Values:
    return values | {"x": values["branch"]}


def _branch_dropped(values: Values) -> Values:
    return values | {"branch": values["x"]}


def _not_causal(values: Values) -> Values:
    return values | {"causal": False}


def _from_its_own_result(right: Any, p: Builder, n: Any, x: Any) -> None:
    """Recomputation that reads the norm's own result instead of its input."""
    right(p, n, n.y if p._phase == "recompute" else x)


def _backward_in_forward_order(p: Builder, stack: Any, inputs: Any, dx: Any) -> Any:
    for index, block in enumerate(stack):
        backward = blocks.pre_norm_backward if block.pre_norm else blocks.post_norm_backward
        with p.section(f"blocks.{index}"):
            dx = backward(p, block, dx, inputs[index])
    return dx


def _inputs_of_the_first(right: Any, p: Builder, stack: Any, inputs: Any, dx: Any) -> Any:
    return right(p, stack, [inputs[0]] * len(inputs), dx)


def _residual_in_place(p: Builder, b: Any, x: Any) -> Any:
    """As pre_norm_forward, but the stream is one buffer, and what the second norm's backward needs is gone."""
    blocks.pre_norm_inside(p, b, x)
    down_forward(p, b.mlp)
    p.residual.forward(y=write(b.sum1), x=b.sum1, branch=b.mlp.down)
    return b.sum1


def _input_of_up(right: Any, p: Builder, b: Any, dy: Any, x: Any) -> Any:
    """The backward of the feed-forward is told that it read the stream instead of the normed stream."""

    def of_the_stream(inner: Any, p: Builder, f: Any, dx: Any, dy: Any, x: Any) -> None:
        inner(p, f, dx, dy, b.sum1)

    with around(blocks, "feed_forward_backward", of_the_stream)():
        return right(p, b, dy, x)


BUGS = (
    Bug(
        "residual-lost-in-pre-norm",
        "layernorm in norm",
        "The stream's gradient is overwritten where the feed-forward branch joins it.",
        "Everything below the last block learns from one branch only.",
        call("layernorm.backward", _as(write, "dx"), of="dstream"),
    ),
    Bug(
        "residual-lost-in-post-norm",
        "linear in affine",
        "A post-norm block writes attention's dx over the gradient of the residual.",
        "Deep models do not train.",
        call("linear.backward", _as(write, "dx"), of="dsum1"),
    ),
    Bug(
        "stream-dropped",
        "residual in blocks",
        "A residual adds the branch to itself instead of to the stream.",
        "Trains like a network without residuals.",
        call("residual.forward", _stream_dropped, of="sum1"),
    ),
    Bug(
        "branch-dropped",
        "residual in blocks",
        "The feed-forward is computed, and then the stream is added to itself.",
        "Half the weights do nothing.",
        call("residual.forward", _branch_dropped, of="sum2"),
    ),
    Bug(
        "mask-off-in-backward-call",
        "attention in attention",
        "The backward call says causal=False where the forward call says True.",
        "The future gets gradients.",
        call("attention.backward", _not_causal),
    ),
    Bug(
        "queries-and-keys-exchanged",
        "attention in attention",
        "Queries and keys are exchanged, in both directions.",
        "Trains; weights from elsewhere do not fit.",
        together(
            call("attention.forward", _keys_for_queries),
            call("attention.backward", _keys_for_queries),
        ),
    ),
    Bug(
        "gradients-of-queries-and-keys-exchanged",
        "attention in attention",
        "dq goes to the keys' columns and dk to the queries'.",
        "Attention learns nothing useful; feed-forward layers make up for some of it.",
        call("attention.backward", _exchanged("dq", "dk"), of="dqkv"),
    ),
    Bug(
        "recomputed-from-other-input",
        "layernorm in norm",
        "The norm is recomputed from its own result.",
        "Gradients that are almost right: a norm of a norm changes little.",
        around(blocks, "norm_forward", _from_its_own_result),
        public="Recomputation that differs is a standing danger: pytorch, issue 190758, with dropout masks.",
    ),
    Bug(
        "residual-in-place",
        "residual in blocks",
        "The branch is added to the stream in place, over what the norm's backward still needs.",
        "Less memory, and gradients of another function.",
        replaced(blocks, "pre_norm_forward", _residual_in_place),
    ),
    Bug(
        "backward-in-forward-order",
        "layernorm in norm",
        "The blocks' backward runs from the first to the last.",
        "Gradients that have nothing to do with the loss.",
        replaced(transformer, "stack_backward", _backward_in_forward_order),
    ),
    Bug(
        "inputs-of-the-first-block",
        "linear in affine",
        "Every block's backward is given the first block's input.",
        "Right with one layer.",
        around(transformer, "stack_backward", _inputs_of_the_first),
    ),
    Bug(
        "mlp-backward-of-other-input",
        "linear in affine",
        "The feed-forward's weight gradient is made with the stream instead of the normed stream.",
        "The first matrix of every feed-forward learns the wrong thing.",
        together(*(around(blocks, f"{kind}_norm_backward", _input_of_up) for kind in ("pre", "post"))),
    ),
    Bug(
        "tied-weight-overwritten",
        "embedding in transformer",
        "The embedding writes the tied table's gradient over what the head has put there.",
        "The table learns as input only; the loss falls, slowly.",
        call("embedding.backward", _as(write, "dweight")),
    ),
    Bug(
        "weight-gradient-written",
        "linear in affine",
        "A weight's gradient is written, not added to, in the call that the model makes.",
        "Nothing, until gradients are accumulated over batches.",
        call("linear.backward", _as(write, "dweight"), of="dact"),
    ),
    Bug(
        "norm-eps-of-another-model",
        "layernorm in norm",
        "The norms are called with ε = 1e-12 whatever the configuration says.",
        "Loaded weights give slightly other numbers.",
        call("layernorm.forward", lambda values: values | {"eps": 1e-12}, of="norm1"),
    ),
    Bug(
        "last-position-gradient-written",
        "last_position in blocks",
        "Where only the last position is read, its gradient replaces what came through keys and values.",
        "Earlier tokens are not trained.",
        call("last_position.backward", _as(write, "dx"), of="dx"),
    ),
    Bug(
        "positions-written-over-tokens",
        "positions in transformer",
        "The position table is written over the token embeddings instead of added.",
        "The model sees where it is, and not what it reads.",
        call("positions.forward", _as(write, "y")),
    ),
    Bug(
        "stream-gradient-added-to-rubbish",
        "layernorm in norm",
        "The first norm's dx is added to a gradient that nothing has set yet.",
        "Gradients left over from the step before.",
        call("layernorm.backward", _as(add, "dx"), of="dstream"),
    ),
)
