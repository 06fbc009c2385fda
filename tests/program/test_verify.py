"""The verifier, refusal by refusal: each program here is right but for the one fault its test puts in."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from tapeless.errors import ProgramError, TapelessError
from tapeless.lowering import lower
from tapeless.lowering.verify import flattened
from tapeless.models import transformer
from tapeless.models.config import CHOICES, Optimizer, Preset
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS
from tapeless.program.arena import Plan, make_plan, verify_plan
from tapeless.program.builder import Builder
from tapeless.program.call import Argument, Buffer, Call, Program, View, add, as_view, update, write
from tapeless.program.precision import PRECISIONS
from tapeless.program.verify import check_call, verify

ROWS, IN, HIDDEN, WORDS = 3, 2, 4, 5


@dataclass(frozen=True)
class Tiny:
    """A two-layer regression in all its phases, its calls by name. Nothing here is wrong."""

    program: Program
    zero: Call
    linear1: Call
    relu: Call
    linear2: Call
    error: Call
    dlinear2: Call
    drelu: Call
    dlinear1: Call
    norm: Call
    clip: Call
    sgd: Call
    spare: Buffer  # workspace of the hidden layer's shape that no call uses

    def buffer(self, name: str) -> Buffer:
        return next(buffer for buffer in self.program.buffers if buffer.name == name)

    def with_calls(self, *calls: Call) -> Program:
        return Program(calls, self.program.buffers)

    def before(self, place: Call, *extra: Call) -> Program:
        index = self.program.calls.index(place)
        return self.with_calls(*self.program.calls[:index], *extra, *self.program.calls[index:])

    def without(self, call: Call) -> Program:
        return self.with_calls(*(c for c in self.program.calls if c != call))

    def replaced(self, *changes: tuple[Call, Call]) -> Program:
        return replaced(self.program, *changes)


def replaced(program: Program, *changes: tuple[Call, Call]) -> Program:
    for old, _ in changes:
        assert program.calls.count(old) == 1
    return Program(tuple(next((n for o, n in changes if o == c), c) for c in program.calls), program.buffers)


def taking(call: Call, *, mode: str | None = None, **buffers: Buffer | View) -> Call:
    """The same call, with other buffers for some of its arguments, or another way of access to them."""
    changed = {name: Argument(name, as_view(b), mode or _mode(call, name)) for name, b in buffers.items()}
    return replace(call, arguments=tuple(changed.get(a.name, a) for a in call.arguments))


def leaving_out(call: Call, name: str) -> Call:
    return replace(call, arguments=tuple(a for a in call.arguments if a.name != name))


def _mode(call: Call, name: str) -> str:
    return next(argument.mode for argument in call.arguments if argument.name == name)


@pytest.fixture
def tiny() -> Tiny:
    p = Builder()
    w1, b1 = p.weight("one.weight", IN, HIDDEN), p.weight("one.bias", HIDDEN)
    w2, b2 = p.weight("two.weight", HIDDEN, IN), p.weight("two.bias", IN)
    dw1, db1, dw2, db2 = (p.gradient(weight) for weight in (w1, b1, w2, b2))
    x, table = p.buffer("input", "x", (ROWS, IN)), p.buffer("constant", "table", (WORDS, IN))
    targets, count = p.buffer("input", "targets", (ROWS,), "index"), p.buffer("input", "count", (1,), "scalar")
    loss = p.buffer("output", "loss", (1,), "statistic")
    h, a, da, dh = (p.workspace(name, ROWS, HIDDEN) for name in ("h", "a", "da", "dh"))
    y, dy = p.workspace("y", ROWS, IN), p.workspace("dy", ROWS, IN)
    spare = p.workspace("spare", ROWS, HIDDEN)
    gradients, weights = p.region("gradient", "gradients"), p.region("weight", "weights")
    told = ("norm", "scale", "norms", "moved", "sizes")
    norm, scale, norms, moved, sizes = (p.buffer("output", name, (1,), "scalar") for name in told)
    limit, lr = (p.buffer("input", name, (1,), "scalar") for name in ("limit", "lr"))
    largest, finite = p.buffer("constant", "largest", (1,), "scalar"), p.buffer("output", "finite", (1,), "index")
    step = p.buffer("state", "step", (1,), "index")
    with p.phase("zero"):
        p.zero.forward(y=write(gradients))
    with p.phase("forward"):
        p.linear.forward(y=write(h), x=x, weight=w1, bias=b1)
        p.relu.forward(y=write(a), x=h)
        p.linear.forward(y=write(y), x=a, weight=w2, bias=b2)
    with p.phase("backward"):
        p.squared_error.backward(loss=write(loss), dx=write(dy), x=y, table=table, targets=targets, count=count)
        p.linear.backward(dx=write(da), dweight=add(dw2), dbias=add(db2), dy=dy, x=a, weight=w2)
        p.relu.backward(dx=write(dh), dy=da, x=h)
        p.linear.backward(dweight=add(dw1), dbias=add(db1), dy=dh, x=x, weight=w1)
    with p.phase("clip"):
        p.global_norm.forward(norm=write(norm), norms=write(norms), gradients=gradients, sections=(0,))
        p.clip.forward(scale=write(scale), finite=write(finite), loss=loss, norm=norm, limit=limit, largest=largest)
    with p.phase("update"):
        p.sgd.forward(
            weights=update(weights),
            step=update(step),
            moved=write(moved),
            norms=write(sizes),
            gradients=gradients,
            scale=scale,
            finite=finite,
            lr=lr,
            sections=(0,),
        )
    built = p.build()
    zero, linear1, relu, linear2, error, dlinear2, drelu, dlinear1, global_norm, clip, sgd = built.calls
    program = Program(built.calls, (*built.buffers, spare))
    return Tiny(program, zero, linear1, relu, linear2, error, dlinear2, drelu, dlinear1, global_norm, clip, sgd, spare)


def small(**changes: object) -> Program:
    """The training step of a small GPT with one thing changed."""
    config = Preset.of("small", layers=2, channels=4, heads=2, vocab=5, context=4, hidden=3).override(**changes)
    return transformer.training(config, 2, 3, Optimizer("adamw"))


def calls_of(program: Program, title: str, *, phase: str | None = None) -> list[Call]:
    return [c for c in program.calls if c.title == title and phase in (None, c.phase)]


def refusal(check: Callable[[], object], buffer: str, call: Call | str, *words: str) -> str:
    """The sentence with which `check` refuses. It names the buffer, the call and the line of the call."""
    with pytest.raises(ProgramError) as caught:
        check()
    message = str(caught.value)
    where = call if isinstance(call, str) else f"{call.title} at {call.source}"
    # As a whole name: the `a` of "a is read", not one inside another word.
    assert re.search(rf"(?<![\w.]){re.escape(buffer)}(?!\w|\.\w)", message), f"{buffer!r} is not in: {message}"
    for wanted in (where, *words):
        assert wanted in message
    assert re.search(r"\w+\.(forward|backward) at \w+\.py:\d+", message), message
    one_sentence(message)
    return message


def one_sentence(message: str) -> None:
    assert message.endswith((".", "?")), message
    assert not re.search(r"[.?!]\s", message), message
    assert "\n" not in message


def here() -> str:
    """The place this is called from, as a refusal should give it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{Path(__file__).name}:{frame.f_back.f_lineno}"


# The right ones


def test_the_right_program_passes(tiny: Tiny) -> None:
    verify(tiny.program)
    verify(small())
    verify(small(recompute=True))


def test_a_table_that_nobody_trains_may_be_added_by_an_op_without_a_backward() -> None:
    program = small(positions="sinusoidal")
    (added,) = calls_of(program, "positions.forward")
    position = Buffer("position", "input", (1,), "index")
    other = replace(added, op="positions_at", arguments=(*added.arguments, Argument("position", position.all, "read")))
    verify(Program(replaced(program, (added, other)).calls, (*program.buffers, position)))


def test_where_nobody_zeroes_gradients_the_first_writes_them() -> None:
    program = flattened(lower(small(lean=True)))
    verify(program)
    assert not program.phase("zero")
    (norm,) = [call for call in calls_of(program, "layernorm.backward") if call["dweight"].name == "norm.dweight"]
    added = taking(norm, dweight=norm["dweight"], mode="add")
    refusal(lambda: verify(replaced(program, (norm, added))), "norm.dweight", norm, "added to before it is initialised")
    embedding = calls_of(program, "embedding.backward")[0]  # tied, so that the head has written it
    again = taking(embedding, dweight=embedding["dweight"], mode="write")
    overwritten = replaced(program, (embedding, again))
    refusal(lambda: verify(overwritten), "tokens.dweight", embedding, "written by the first, and from then on")
    zeroing = replace(small().calls[0], phase="forward")
    zeroed = Program((zeroing, *program.calls), program.buffers)
    refusal(lambda: verify(zeroed), "tokens.dweight", "zero.forward", "overwritten")
    without = replaced(program, (norm, leaving_out(norm, "dweight")))
    refusal(lambda: verify(without), "norm.dweight", "global_norm.forward", "read before it is written")


def test_gradients_lie_in_the_order_of_their_weights() -> None:
    p = Builder()
    one, two = p.weight("one.weight", IN, HIDDEN), p.weight("two.weight", IN, HIDDEN)
    p.gradient(two)
    p.gradient(one)
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    message = refusal(lambda: verify(p.build()), "two.dweight", "zero.forward", "stands where one.dweight is due")
    assert message.startswith("two.dweight")


def test_a_gradient_of_nothing_is_refused_as_such(tiny: Tiny) -> None:
    stray = Buffer("stray", "gradient", (HIDDEN,))
    program = Program(tiny.program.calls, (*tiny.program.buffers, stray))
    with pytest.raises(ProgramError, match="stray is no part of the region gradients"):
        verify(program)
    p = Builder()
    p.weight("one.weight", IN, HIDDEN)
    with p.phase("zero"):
        p.zero.forward(y=write(p.buffer("gradient", "stray", (HIDDEN,))))
    verify(p.build())  # where there is no region and no update, it does no harm


def test_what_is_proven_is_proven_of_these_ops(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same list is not walked twice; but where an op is another, it is another list."""
    verify(tiny.program)
    monkeypatch.setattr(OPS["relu"], "SPEC", replace(OPS["relu"].SPEC, backward=None))
    with pytest.raises((ProgramError, LookupError)):
        verify(tiny.program)


def test_every_call_knows_the_line_that_made_it(tiny: Tiny) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    for call in tiny.program.calls:
        file, number = call.source.split(":")
        assert file == Path(__file__).name
        assert f"p.{call.op}.{call.direction}(" in lines[int(number) - 1]
    assert len({call.source for call in tiny.program.calls}) == len(tiny.program.calls)


def test_every_call_of_a_model_knows_its_line() -> None:
    """A call that is spread over several lines is found at its first."""
    folder = Path(inspect.getfile(transformer)).parents[2]
    for call in small(recompute=True).calls:
        file, number = call.stack[0].split(":")
        line = (folder / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        assert f".{call.direction}(" in line
        assert f"p.{call.op}." in line or "p.op(f.activation)" in line


@pytest.mark.parametrize("name", PRESETS)
def test_the_programs_of_every_preset_pass(name: str) -> None:
    config = PRESETS[name]
    length = min(8, config.architecture.context)
    verify(transformer.training(config, 2, length, Optimizer(config.optimizer)))
    verify(transformer.evaluation(config, 2, length))
    verify(transformer.readout(config, 2, length))


@pytest.mark.parametrize("name", CHOICES["optimizer"])
def test_the_program_of_every_optimizer_passes(name: str) -> None:
    program = transformer.training(PRESETS["ops-102k"], 2, 8, Optimizer(name))
    verify(program)
    assert program.calls[-1].phase == "update"
    assert transformer.training(PRESETS["ops-102k"], 2, 8, None).calls[-1].phase == "backward"


@pytest.mark.parametrize("name", PRESETS)
def test_full_size_presets_build_and_plan_in_seconds(name: str) -> None:
    config = PRESETS[name]
    # Time on the processor, not on the wall: a busy machine does not count. The largest takes about a second.
    start = time.process_time()
    program = transformer.training(config, 8, config.architecture.context, Optimizer(config.optimizer))
    plan = make_plan(program, PRECISIONS["float32"])
    make_plan(transformer.evaluation(config, 8, config.architecture.context), PRECISIONS["float32"], beside=plan)
    make_plan(transformer.readout(config, 8, config.architecture.context), PRECISIONS["float32"])
    assert time.process_time() - start < 10
    assert plan.peak_bytes > 4 * 4 * plan.parameters  # weights, gradients, m and v in float32


# Wrong shape, wrong role, wrong access


def test_wrong_shape(tiny: Tiny) -> None:
    faulty = taking(tiny.linear2, x=tiny.buffer("x"))
    message = refusal(lambda: verify(tiny.replaced((tiny.linear2, faulty))), "two.weight", tiny.linear2, "wrong shape")
    # x comes before the weight, so the weight is where the two are found to disagree.
    assert "two.weight is 4×2, but weight of" in message
    assert "must be C F = 2×2" in message


def test_wrong_shape_of_a_gradient(tiny: Tiny) -> None:
    faulty = taking(tiny.drelu, dx=tiny.buffer("dy"))
    program = tiny.replaced((tiny.drelu, faulty))
    refusal(lambda: verify(program), "da", tiny.drelu, "wrong shape", "3×4")


def test_wrong_number_of_axes() -> None:
    p = Builder()
    flat, table = p.workspace("flat", 6, 4), p.buffer("constant", "table", (6, 4))
    message = refusal(
        lambda: p.positions.forward(y=write(flat), table=table), "flat", "positions.forward", "wrong shape"
    )
    assert "flat is 6×4, but y of" in message
    assert "must be B T C" in message


def test_shapes_are_refused_at_the_line_that_makes_the_call() -> None:
    p = Builder()
    x, w, y = p.buffer("input", "x", (ROWS, IN)), p.weight("w", IN, HIDDEN), p.workspace("y", ROWS, HIDDEN + 1)
    with pytest.raises(ProgramError) as caught:
        p.linear.forward(y=write(y), x=x, weight=w)
    file, number = here().split(":")
    assert f"linear.forward at {file}:{int(number) - 1} must be" in str(caught.value)


def test_columns_beyond_the_end_of_a_buffer() -> None:
    """Such a view claims columns that no array has; the kernel would see fewer than the shapes say."""
    p = Builder()
    narrow, y = p.buffer("input", "narrow", (ROWS, IN)), p.workspace("y", ROWS, HIDDEN)

    def build() -> None:
        p.relu.forward(y=write(y), x=narrow.columns(0, HIDDEN))
        verify(p.build())

    refusal(build, "narrow", "relu.forward", "wrong columns", "which has 2")


def test_wrong_type(tiny: Tiny) -> None:
    faulty = taking(tiny.error, count=tiny.buffer("loss"))
    message = refusal(lambda: verify(tiny.replaced((tiny.error, faulty))), "loss", tiny.error, "wrong role")
    assert "of role statistic" in message
    assert "must be scalar" in message


def test_integers_where_numbers_are_needed() -> None:
    p = Builder()
    tokens, y = p.buffer("input", "tokens", (ROWS, IN), "index"), p.workspace("y", ROWS, IN)
    refusal(lambda: p.relu.forward(y=write(y), x=tokens), "tokens", "relu.forward", "wrong role", "index")


def test_numbers_where_integers_are_needed() -> None:
    p = Builder()
    tokens, w, y = p.buffer("input", "tokens", (ROWS,)), p.weight("w", WORDS, IN), p.workspace("y", ROWS, IN)
    refusal(
        lambda: p.embedding.forward(y=write(y), tokens=tokens, weight=w),
        "tokens",
        "embedding.forward",
        "wrong role",
        "index",
    )


def test_write_where_update_is_needed(tiny: Tiny) -> None:
    faulty = taking(tiny.sgd, mode="write", weights=tiny.buffer("weights"))
    program = tiny.replaced((tiny.sgd, faulty))
    refusal(lambda: verify(program), "weights", tiny.sgd, "wrong access", "cannot write", "it takes update")


def test_add_where_it_is_not_allowed(tiny: Tiny) -> None:
    faulty = taking(tiny.linear2, mode="add", y=tiny.buffer("y"))
    program = tiny.replaced((tiny.linear2, faulty))
    refusal(lambda: verify(program), "y", tiny.linear2, "wrong access", "cannot add", "it takes write")


def test_update_where_it_is_not_allowed(tiny: Tiny) -> None:
    faulty = taking(tiny.dlinear2, mode="update", dx=tiny.buffer("da"))
    program = tiny.replaced((tiny.dlinear2, faulty))
    refusal(lambda: verify(program), "da", tiny.dlinear2, "wrong access", "cannot update", "write or add")


def test_writing_to_what_is_only_read(tiny: Tiny) -> None:
    faulty = taking(tiny.relu, mode="write", x=tiny.buffer("h"))
    program = tiny.replaced((tiny.relu, faulty))
    refusal(lambda: verify(program), "h", tiny.relu, "wrong access", "cannot write", "it takes read")


def test_what_an_op_itself_refuses() -> None:
    """Heads that do not divide the channels, a table too short: the Spec's own conditions."""
    p = Builder()
    qkv, y, lse = (
        p.buffer("input", "qkv", (2, 3, 4)),
        p.workspace("y", 2, 3, 4),
        p.workspace("lse", 2, 3, 3, role="statistic"),
    )
    refusal(
        lambda: p.attention.forward(y=write(y), lse=write(lse), q=qkv, k=qkv, v=qkv, causal=True, window=0),
        "y",
        "attention.forward",
        "C=4 channels",
        "H=3 heads",
    )
    table = p.buffer("constant", "table", (2, 4))
    refusal(lambda: p.positions.forward(y=write(y), table=table), "y", "positions.forward", "T=3 positions", "P=2")


# Read before write, add before initialised


def test_read_before_write(tiny: Tiny) -> None:
    """Both linear calls read `spare`, which nobody ever wrote."""
    program = tiny.replaced(
        (tiny.linear2, taking(tiny.linear2, x=tiny.spare)), (tiny.dlinear2, taking(tiny.dlinear2, x=tiny.spare))
    )
    refusal(lambda: verify(program), "spare", tiny.linear2, "read before it is written", "x of")


def test_a_gradient_that_is_read_before_it_is_written(tiny: Tiny) -> None:
    program = tiny.without(tiny.error)
    refusal(lambda: verify(program), "dy", tiny.dlinear2, "read before it is written", "dy of")


def test_read_at_the_wrong_place(tiny: Tiny) -> None:
    """Written, but only after it was read."""
    calls = [call for call in tiny.program.calls if call != tiny.clip]
    refusal(
        lambda: verify(tiny.with_calls(*calls, tiny.clip)),
        "scale",
        tiny.sgd,
        "read before it is written",
        "scale of",
    )


def test_add_into_uninitialised_memory(tiny: Tiny) -> None:
    program = tiny.without(tiny.zero)
    refusal(lambda: verify(program), "two.dweight", tiny.dlinear2, "added to before it is initialised")


def test_add_into_an_uninitialised_stream(tiny: Tiny) -> None:
    """Not only gradients of weights: a branch may not add to a stream that nothing has written yet."""
    program = tiny.replaced((tiny.dlinear2, taking(tiny.dlinear2, mode="add", dx=tiny.buffer("da"))))
    refusal(lambda: verify(program), "da", tiny.dlinear2, "added to before it is initialised", "dx of")


def test_update_of_uninitialised_memory() -> None:
    p = Builder()
    weights, gradients = p.workspace("unset", 4), p.buffer("input", "gradients", (4,))
    scale, lr, moved, norms = (p.buffer("input", name, (1,), "scalar") for name in ("scale", "lr", "moved", "norms"))
    step, finite = (p.buffer("state", name, (1,), "index") for name in ("step", "finite"))
    p.sgd.forward(
        weights=update(weights),
        step=update(step),
        moved=write(moved),
        norms=write(norms),
        gradients=gradients,
        scale=scale,
        finite=finite,
        lr=lr,
        sections=(0,),
    )
    program = p.build()
    refusal(lambda: verify(program), "unset", program.calls[0], "read before it is written")


def test_an_update_looks_at_what_its_clip_says(tiny: Tiny) -> None:
    """Whether it may be made is for the clip to say that also scales it, and for nobody else."""
    flag, other = Buffer("flag", "state", (1,), "index"), Buffer("other", "output", (1,), "index")
    unpredicated = replaced(tiny.program, (tiny.sgd, taking(tiny.sgd, finite=flag)))
    program = Program(unpredicated.calls, (*unpredicated.buffers, flag))
    refusal(lambda: verify(program), "flag", tiny.sgd, "finite of", "must be the result of clip")
    second = replaced(tiny.program, (tiny.sgd, taking(tiny.sgd, finite=other)))
    scale = Buffer("other scale", "output", (1,), "scalar")
    twice = replace(taking(tiny.clip, finite=other, scale=scale), source="test_verify.py:1")
    calls = (*second.calls[:-1], twice, second.calls[-1])
    program = Program(calls, (*second.buffers, other, scale))
    refusal(lambda: verify(program), "other", tiny.sgd, "must be that of", tiny.clip.at)


def test_a_clip_looks_at_the_loss(tiny: Tiny) -> None:
    told = Buffer("told", "constant", (1,), "statistic")
    changed = replaced(tiny.program, (tiny.clip, taking(tiny.clip, loss=told)))
    program = Program(changed.calls, (*changed.buffers, told))
    refusal(lambda: verify(program), "told", tiny.clip, "loss of", "must be the result of squared_error")


def test_columns_that_were_not_written_are_unwritten() -> None:
    p = Builder()
    x, wide = p.buffer("input", "x", (ROWS, IN)), p.workspace("wide", ROWS, 2 * IN)
    y, part = p.workspace("y", ROWS, 2 * IN), p.workspace("part", ROWS, IN)
    p.relu.forward(y=write(wide.columns(0, IN)), x=x)
    p.relu.forward(y=write(part), x=wide.columns(0, IN))
    verify(p.build())  # the written half alone may be read
    p.tanh.forward(y=write(y), x=wide)
    half = p.build()
    refusal(lambda: verify(half), "wide", half.calls[-1], "read before it is written")
    second = replace(half.calls[0], arguments=taking(half.calls[0], y=wide.columns(IN, 2 * IN)).arguments)
    verify(Program((half.calls[0], second, *half.calls[1:]), half.buffers))  # both halves: all of it


def test_columns_that_overlap_what_was_written() -> None:
    """Two views that split a buffer at different columns: what counts is each column."""
    p = Builder()
    x, wide, y = p.buffer("input", "x", (ROWS, 3)), p.workspace("wide", ROWS, 4), p.workspace("y", ROWS, 3)
    p.relu.forward(y=write(wide.columns(0, 3)), x=x)
    p.relu.forward(y=write(y), x=wide.columns(1, 4))
    program = p.build()
    refusal(lambda: verify(program), "wide", program.calls[1], "read before it is written")


def test_a_third_of_dqkv_that_nobody_wrote() -> None:
    program = small()
    attention = calls_of(program, "attention.backward")[0]
    linear = program.calls[program.calls.index(attention) + 1]
    faulty = replaced(program, (attention, leaving_out(attention, "dk")))
    refusal(lambda: verify(faulty), "blocks.1.attn.dqkv", linear, "read before it is written", "dy of")


# Partners


def test_forward_without_its_backward(tiny: Tiny) -> None:
    """The gradient goes round the ReLU: everything is written and read in order, but the gradient is wrong."""
    shortcut = taking(tiny.dlinear1, dy=tiny.buffer("da"))
    calls = [c for c in tiny.replaced((tiny.dlinear1, shortcut)).calls if c != tiny.drelu]
    refusal(lambda: verify(tiny.with_calls(*calls)), "a", tiny.relu, "no backward")


def test_backward_without_a_forward(tiny: Tiny) -> None:
    """The second linear reads h itself; the ReLU is gone from the forward, not from the backward."""
    faulty = tiny.replaced(
        (tiny.linear2, taking(tiny.linear2, x=tiny.buffer("h"))),
        (tiny.dlinear2, taking(tiny.dlinear2, x=tiny.buffer("h"))),
    )
    calls = [call for call in faulty.calls if call != tiny.relu]
    refusal(lambda: verify(tiny.with_calls(*calls)), "dh", tiny.drelu, "no forward")


def test_backward_done_twice(tiny: Tiny) -> None:
    """Everything it adds would count double."""
    program = tiny.before(tiny.norm, tiny.dlinear1)
    refusal(lambda: verify(program), "one.dweight", tiny.dlinear1, "no forward")


def test_forward_done_twice_with_one_backward() -> None:
    """Two lookups with the same tokens, one backward call: the gradient of the other is lost."""
    p = Builder()
    w = p.weight("words", WORDS, IN)
    tokens, targets = (p.buffer("input", name, (ROWS,), "index") for name in ("tokens", "targets"))
    count, loss = p.buffer("input", "count", (1,), "scalar"), p.buffer("output", "loss", (1,), "statistic")
    some, other, both, dboth = (p.workspace(name, ROWS, IN) for name in ("some", "other", "both", "dboth"))
    with p.phase("zero"):
        p.gradient(w)
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.embedding.forward(y=write(some), tokens=tokens, weight=w)
    p.embedding.forward(y=write(other), tokens=tokens, weight=w)
    p.residual.forward(y=write(both), x=some, branch=other)
    with p.phase("backward"):
        p.squared_error.backward(loss=write(loss), dx=write(dboth), x=both, table=w, targets=targets, count=count)
        p.embedding.backward(dweight=add(p.gradient(w)), dy=dboth, tokens=tokens)
    program = p.build()
    first, second = calls_of(program, "embedding.forward")
    verify(Program((*program.calls, program.calls[-1]), program.buffers))  # one for each: right
    assert first.source != second.source
    refusal(lambda: verify(program), "some", first, "no backward")


def test_partners_out_of_order() -> None:
    """Positions and embedding read the same gradient and could change places; the rule is the exact reverse."""
    program = small()
    positions, embedding = calls_of(program, "positions.backward")[0], calls_of(program, "embedding.backward")[0]
    due = calls_of(program, "positions.forward")[0]
    swapped = replaced(program, (positions, embedding), (embedding, positions))
    assert swapped.calls != program.calls
    message = refusal(lambda: verify(swapped), "tokens.dweight", embedding, "out of order")
    assert f"the backward of positions.forward at {due.source}" in message


def test_partners_with_other_buffers(tiny: Tiny) -> None:
    """The right op at the right place, but the backward looks at what another call read."""
    program = tiny.replaced((tiny.drelu, taking(tiny.drelu, x=tiny.buffer("a"))))
    refusal(lambda: verify(program), "a", tiny.relu, "no backward")


def test_inputs_and_constants_need_no_backward() -> None:
    """Sinusoidal positions are a constant, features an input: no call takes their gradient, and none is missed."""
    program = small(positions="sinusoidal")
    assert not calls_of(program, "positions.backward")
    verify(program)


# Gradients


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_weight_whose_gradient_nobody_produces(tiny: Tiny, part: str) -> None:
    program = tiny.replaced((tiny.dlinear2, leaving_out(tiny.dlinear2, f"d{part}")))
    message = refusal(lambda: verify(program), f"two.{part}", tiny.linear2, "no gradient")
    assert f"two.d{part}" in message


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_columns_of_a_weight_whose_gradient_nobody_produces(part: str) -> None:
    """A model that answers once computes q apart from k and v. Here the gradient of q's columns is left out."""
    program = small(readout="last", layers=1)
    name = f"blocks.0.attn.qkv.d{part}"
    queries = next(
        c for c in calls_of(program, "linear.backward") if any(a.view.name == f"{name}[0:4]" for a in c.arguments)
    )
    faulty = replaced(program, (queries, leaving_out(queries, f"d{part}")))
    refusal(lambda: verify(faulty), name, "linear.forward at affine.py:", "no gradient", "[0:4]")


def test_a_weight_that_no_call_reads(tiny: Tiny) -> None:
    """It has no gradient either, and there is no reader to name."""
    orphan = Buffer("orphan", "weight", (2,))
    with pytest.raises(ProgramError, match="orphan"):
        verify(Program(tiny.program.calls, (*tiny.program.buffers, orphan)))


def test_the_gradient_of_another_weight(tiny: Tiny) -> None:
    """Equal shapes would let a gradient go to the wrong weight."""
    swapped = taking(tiny.dlinear2, dbias=tiny.buffer("one.dbias").columns(0, IN))
    refusal(lambda: verify(tiny.replaced((tiny.dlinear2, swapped))), "one.dbias", swapped, "wrong gradient", "two.bias")


def test_a_produced_gradient_is_not_written_again(tiny: Tiny) -> None:
    """The tied head's mistake: the second to come writes where it should add."""
    late_zero = replace(tiny.zero, source="late.py:1")
    refusal(lambda: verify(tiny.before(tiny.norm, late_zero)), "one.dweight", late_zero, "overwritten")
    program = small(tied=True)
    embedding = calls_of(program, "embedding.backward")[0]
    writing = taking(embedding, mode="write", dweight=embedding["dweight"])
    refusal(lambda: verify(replaced(program, (embedding, writing))), "tokens.dweight", writing, "must be added to")


def test_a_buffer_of_another_program(tiny: Tiny) -> None:
    stranger = Builder().workspace("stranger", ROWS, HIDDEN)
    faulty = taking(tiny.relu, y=stranger)
    refusal(lambda: verify(tiny.replaced((tiny.relu, faulty))), "stranger", faulty, "not a buffer of this program")


def test_a_phase_that_does_not_exist() -> None:
    with pytest.raises(TapelessError, match="did you mean 'forward'"), Builder().phase("foward"):
        pass


def test_a_program_without_backward_needs_no_gradients() -> None:
    evaluation = transformer.evaluation(PRESETS["ops-102k"], 2, 8)
    assert evaluation.weights
    verify(evaluation)


# Overwritten while still needed, and recomputation


def test_overwritten_while_a_later_backward_reads_it(tiny: Tiny) -> None:
    """The gradient of a is put where h lies, and then h is needed."""
    h = tiny.buffer("h")
    program = tiny.replaced((tiny.dlinear2, taking(tiny.dlinear2, dx=h)), (tiny.drelu, taking(tiny.drelu, dy=h)))
    message = refusal(lambda: verify(program), "h", tiny.drelu, "is overwritten by")
    assert f"by linear.backward at {tiny.dlinear2.source}" in message
    assert f"what relu.forward at {tiny.relu.source} had there" in message


def test_an_output_overwritten_while_a_later_backward_reads_it() -> None:
    """Attention's backward reads what its forward wrote; here the next block's attention writes there too."""
    program = small()
    mine = calls_of(program, "attention.forward")
    mix, lse = mine[0]["y"], mine[0]["lse"]
    faulty = tuple(
        taking(call, y=mix, lse=lse)
        if call.title == "attention.forward"
        else taking(call, x=mix)
        if "x" in {a.name for a in call.arguments} and call["x"].name.endswith("attn.mix")
        else taking(call, y=mix, lse=lse)
        if call.title == "attention.backward"
        else call
        for call in program.calls
    )
    message = refusal(
        lambda: verify(Program(faulty, program.buffers)),
        "blocks.0.attn.mix",
        calls_of(program, "linear.backward")[-2],
        "is overwritten by",
    )
    assert f"by attention.forward at {mine[1].source}" in message


def test_two_outputs_of_one_call_in_the_same_place() -> None:
    """The second overwrites the first before anyone can read it: here rstd the mean, in both directions alike."""
    program = small()
    faulty = tuple(taking(call, mean=call["rstd"]) if call.op == "layernorm" else call for call in program.calls)
    first = calls_of(program, "layernorm.forward")[0]
    refusal(lambda: verify(Program(faulty, program.buffers)), "blocks.0.norm1.rstd", first)


def test_weights_updated_before_the_backward_is_through(tiny: Tiny) -> None:
    rest = [call for call in tiny.program.calls if call not in (tiny.dlinear1, tiny.sgd)]
    program = tiny.with_calls(*rest, tiny.sgd, tiny.dlinear1)
    refusal(lambda: verify(program), "one.dweight", tiny.norm, "wrong gradient", "lacks")


def clobber(tiny: Tiny) -> Call:
    """A call that puts something else into a, between forward and backward: what the first linear computed."""
    return taking(replace(tiny.linear1, phase="recompute", source="elsewhere.py:7"), y=tiny.buffer("a"))


def again(tiny: Tiny) -> Call:
    return replace(tiny.relu, phase="recompute", source="elsewhere.py:8")


def test_an_overwritten_value_without_recomputation(tiny: Tiny) -> None:
    program = tiny.before(tiny.dlinear2, clobber(tiny))
    message = refusal(lambda: verify(program), "a", tiny.dlinear2, "is overwritten by")
    assert "by linear.forward at elsewhere.py:7" in message


def test_a_right_recomputation_is_accepted(tiny: Tiny) -> None:
    verify(tiny.before(tiny.dlinear2, clobber(tiny), again(tiny)))
    verify(tiny.before(tiny.dlinear2, again(tiny)))


def test_a_recomputation_into_another_buffer_is_the_same_value(tiny: Tiny) -> None:
    elsewhere = taking(again(tiny), y=tiny.spare)
    program = tiny.before(tiny.dlinear2, clobber(tiny), elsewhere)
    verify(replaced(program, (tiny.dlinear2, taking(tiny.dlinear2, x=tiny.spare))))


def test_a_recomputation_too_late(tiny: Tiny) -> None:
    calls = tiny.before(tiny.dlinear2, clobber(tiny)).calls
    index = calls.index(tiny.drelu)
    program = tiny.with_calls(*calls[:index], again(tiny), *calls[index:])
    refusal(lambda: verify(program), "a", tiny.dlinear2, "is overwritten by")


def test_what_was_never_computed_is_not_computed_again(tiny: Tiny) -> None:
    """A forward call that calls itself a recomputation would need no backward."""
    new = replace(tiny.relu, op="tanh", phase="recompute", source="elsewhere.py:9")
    refusal(
        lambda: verify(tiny.before(tiny.dlinear2, new)), "a", "tanh.forward at elsewhere.py:9", "not computed before"
    )
    escaped = tiny.replaced((tiny.relu, again(tiny)))
    calls = [c for c in escaped.calls if c != tiny.drelu]
    refusal(lambda: verify(tiny.with_calls(*calls)), "a", "relu.forward at elsewhere.py:8", "not computed before")


def test_a_recomputation_from_another_buffer(tiny: Tiny) -> None:
    """Same op, same output, but not computed from h."""
    wrong = taking(again(tiny), x=tiny.spare)
    fill = replace(tiny.relu, phase="recompute", arguments=taking(tiny.relu, y=tiny.spare).arguments)
    program = tiny.before(tiny.dlinear2, fill, wrong)
    refusal(lambda: verify(program), "a", "relu.forward at elsewhere.py:8", "not computed before")


def test_a_recomputation_from_the_same_buffer_with_another_value(tiny: Tiny) -> None:
    """h itself was overwritten before a is computed from it again: the call looks the same and is not."""
    over = taking(again(tiny), y=tiny.buffer("h"), x=tiny.spare)
    keep = taking(replace(tiny.linear1, phase="recompute"), y=tiny.spare)
    program = tiny.before(tiny.dlinear2, keep, over, again(tiny))
    message = refusal(lambda: verify(program), "h", "relu.forward at elsewhere.py:8", "is overwritten by")
    assert "again" in message


def test_a_recomputation_with_another_scalar() -> None:
    program = small(recompute=True)
    norm = calls_of(program, "layernorm.forward", phase="recompute")[0]
    faulty = replaced(program, (norm, replace(norm, scalars=(("eps", 0.5),))))
    refusal(lambda: verify(faulty), "blocks.1.norm1", norm, "not computed before")


def test_a_recomputation_in_the_wrong_order(tiny: Tiny) -> None:
    """h and a are both computed again, but a first, from what was not yet h."""
    keep = taking(replace(tiny.linear1, phase="recompute"), y=tiny.spare)
    spoil = taking(again(tiny), y=tiny.buffer("h"), x=tiny.spare)
    restore = replace(tiny.linear1, phase="recompute")
    verify(tiny.before(tiny.dlinear2, keep, spoil, restore, again(tiny)))
    program = tiny.before(tiny.dlinear2, keep, spoil, again(tiny), restore)
    refusal(lambda: verify(program), "h", "relu.forward at elsewhere.py:8", "is overwritten by")


# The arena


def moved(plan: Plan, name: str, offset: int) -> Plan:
    return replace(plan, placements=plan.placements | {name: replace(plan.placements[name], offset=offset)})


def test_two_live_buffers_that_overlap(tiny: Tiny) -> None:
    plan = make_plan(used(tiny), PRECISIONS["float64"])
    verify_plan(plan)
    h, a = plan.placements["h"], plan.placements["a"]
    message = refusal(lambda: verify_plan(moved(plan, "a", h.offset)), "h", tiny.relu, "overlap", "a")
    assert f"at byte {h.offset:,}" in message
    assert f"call {plan.program.calls.index(tiny.relu)}" in message
    refusal(lambda: verify_plan(moved(plan, "a", h.offset + h.bytes - 8)), "h", tiny.relu, "overlap", "a")
    free = plan.peak_bytes
    verify_plan(moved(plan, "a", free))
    assert a.bytes == h.bytes


def test_buffers_that_touch_or_live_at_other_times_may_share(tiny: Tiny) -> None:
    plan = make_plan(used(tiny), PRECISIONS["float64"], share=False)
    placements = plan.placements
    verify_plan(moved(plan, "a", placements["h"].offset + placements["h"].bytes))
    assert placements["y"].last_call < placements["dh"].first_call
    verify_plan(moved(plan, "y", placements["dh"].offset))
    refusal(lambda: verify_plan(moved(plan, "da", placements["a"].offset)), "da", tiny.dlinear2, "overlap", "a")


def test_a_weight_under_a_gradient(tiny: Tiny) -> None:
    plan = make_plan(used(tiny), PRECISIONS["float64"])
    offset = plan.placements["one.dweight"].offset
    refusal(lambda: verify_plan(moved(plan, "one.weight", offset)), "one.weight", tiny.zero, "overlap", "one.dweight")


def used(tiny: Tiny) -> Program:
    """Without the buffer that no call uses, as the builder would have left it."""
    return Program(tiny.program.calls, tuple(b for b in tiny.program.buffers if b != tiny.spare))


# What the builder itself refuses


def test_unknown_op() -> None:
    with pytest.raises(TapelessError, match="unknown op 'liner': did you mean 'linear'") as caught:
        Builder().liner.forward()
    one_sentence(str(caught.value))
    with pytest.raises(
        TapelessError, match="unknown op 'qqq': choose one of adamw, adapt, angles, attention"
    ) as caught:
        Builder().op("qqq")
    one_sentence(str(caught.value))


@dataclass(frozen=True)
class Parts:
    p: Builder
    x: Buffer
    y: Buffer
    w: Buffer
    mean: Buffer
    rstd: Buffer


@pytest.fixture
def parts() -> Parts:
    p = Builder()
    statistics = (p.workspace(name, ROWS, role="statistic") for name in ("mean", "rstd"))
    return Parts(
        p,
        p.buffer("input", "x", (ROWS, IN)),
        p.workspace("y", ROWS, IN),
        p.buffer("weight", "w", (IN,)),
        *statistics,
    )


def builder_refusal(check: Callable[[], object], title: str, *words: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check()
    message = str(caught.value)
    assert re.match(rf"{re.escape(title)} at {Path(__file__).name}:\d+: ", message), message
    for word in words:
        assert word in message
    one_sentence(message)


def test_unknown_argument(parts: Parts) -> None:
    check = lambda: parts.p.relu.forward(y=write(parts.y), z=parts.x)  # noqa: E731
    builder_refusal(check, "relu.forward", "no argument 'z'", "it takes y, x")


def test_missing_argument(parts: Parts) -> None:
    p, x, y = parts.p, parts.x, parts.y
    builder_refusal(lambda: p.relu.forward(y=write(y)), "relu.forward", "argument 'x' is missing")
    builder_refusal(lambda: p.relu.forward(x=x), "relu.forward", "argument 'y' is missing")
    builder_refusal(lambda: p.relu.backward(dx=write(y), x=x), "relu.backward", "argument 'dy' is missing")


def test_missing_scalar(parts: Parts) -> None:
    p, w = parts.p, parts.w
    outputs = {"y": write(parts.y), "mean": write(parts.mean), "rstd": write(parts.rstd)}
    builder_refusal(
        lambda: p.layernorm.forward(**outputs, x=parts.x, weight=w, bias=w), "layernorm.forward", "scalar 'eps'"
    )
    p.layernorm.forward(**outputs, x=parts.x, weight=w, bias=w, eps=1e-5)


def test_missing_output_that_is_no_gradient() -> None:
    """The loss and the memory for the scores are not gradients that nobody needs."""
    p = Builder()
    x, dx, w = p.buffer("input", "x", (ROWS, IN)), p.workspace("dx", ROWS, IN), p.weight("w", WORDS, IN)
    targets, count = p.buffer("input", "targets", (ROWS,), "index"), p.buffer("input", "count", (1,), "scalar")
    loss, logits = p.buffer("output", "loss", (1,), "statistic"), p.workspace("logits", 2, WORDS)
    reads = {"x": x, "weight": w, "targets": targets, "count": count}
    outputs = {"loss": write(loss), "dx": write(dx), "dweight": write(p.gradient(w)), "logits": write(logits)}
    p.classifier.backward(**outputs, **reads)
    for name in ("loss", "logits"):
        rest = {output: value for output, value in outputs.items() if output != name}
        call = partial(p.classifier.backward, **rest, **reads)
        builder_refusal(call, "classifier.backward", f"{name!r} is missing")


def test_what_may_be_left_out(parts: Parts) -> None:
    """A bias that is not there and its gradient, and the gradient of an input that takes none."""
    p, w = parts.p, parts.p.weight("matrix", IN, IN)
    p.linear.forward(y=write(parts.y), x=parts.x, weight=w)
    p.linear.forward(y=write(parts.y), x=parts.x, weight=w, bias=None)
    p.linear.backward(dx=None, dweight=write(p.gradient(w)), dy=parts.y, x=parts.x, weight=w)
    with pytest.raises(ProgramError, match="asks for no gradient"):
        p.linear.backward(dy=parts.y, x=parts.x, weight=w)


def test_a_backward_that_yields_nothing(parts: Parts) -> None:
    p, x, y = parts.p, parts.x, parts.y
    builder_refusal(lambda: p.relu.backward(dy=y, x=x), "relu.backward", "'dx' is missing")


def test_wrong_kinds_of_value(parts: Parts) -> None:
    p, x, y = parts.p, parts.x, parts.y
    builder_refusal(lambda: p.relu.forward(y=y, x=x), "relu.forward", "y is an output", "write(…)")
    builder_refusal(lambda: p.relu.forward(y=write(y), x=3), "relu.forward", "x is read", "not 3")
    builder_refusal(lambda: p.relu.forward(y=write(y), x="x"), "relu.forward", "x is read", "not 'x'")
    builder_refusal(lambda: p.relu.forward(y=write(y), x=write(x)), "relu.forward", "x is read")


@pytest.mark.parametrize("nonsense", [3, "y"])
def test_an_output_that_is_no_buffer(parts: Parts, nonsense: object) -> None:
    with pytest.raises(ProgramError) as caught:
        parts.p.relu.forward(y=write(nonsense), x=parts.x)  # type: ignore[arg-type]
    one_sentence(str(caught.value))


def test_backward_of_an_op_that_has_none(parts: Parts) -> None:
    builder_refusal(lambda: parts.p.residual.backward(dx=write(parts.y)), "residual.backward", "has no backward")


def test_a_name_declared_twice(parts: Parts) -> None:
    with pytest.raises(ProgramError, match="buffer y is declared twice") as caught:
        parts.p.workspace("y", 3)
    assert "give the second another name" in str(caught.value)


def test_a_refused_call_is_not_in_the_list(parts: Parts) -> None:
    """Refusals come before anything is changed."""
    with pytest.raises(ProgramError):
        parts.p.relu.forward(y=write(parts.y), x=parts.w)
    parts.p.relu.forward(y=write(parts.y), x=parts.x)
    assert [call["x"].name for call in parts.p.build().calls] == ["x"]


# Frozen weights


def frozen_first(*, dx: bool = False, drelu: bool = False, dweight: bool = False, written: bool = False) -> Program:
    """Of two linears the first is frozen, so nothing goes back beyond the weights of the second; unless asked for."""
    p = Builder(lambda weight: not weight.name.startswith("one."))
    w1, w2 = p.weight("one.weight", IN, HIDDEN), p.weight("two.weight", HIDDEN, IN)
    dw1, dw2 = p.workspace("one.dweight", IN, HIDDEN), p.gradient(w2)
    x, table = p.buffer("input", "x", (ROWS, IN)), p.buffer("constant", "table", (7, IN))
    targets, count = p.buffer("input", "targets", (ROWS,), "index"), p.buffer("input", "count", (1,), "scalar")
    loss = p.buffer("output", "loss", (1,), "statistic")
    h, a, da, dh = (p.workspace(name, ROWS, HIDDEN) for name in ("h", "a", "da", "dh"))
    y, dy = p.workspace("y", ROWS, IN), p.workspace("dy", ROWS, IN)
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    with p.phase("forward"):
        p.linear.forward(y=write(h), x=x, weight=w1)
        p.relu.forward(y=write(a), x=h)
        if written:
            p.relu.forward(y=write(w1), x=p.buffer("constant", "other", w1.shape))
        p.linear.forward(y=write(y), x=a, weight=w2)
    with p.phase("backward"):
        p.squared_error.backward(loss=write(loss), dx=write(dy), x=y, table=table, targets=targets, count=count)
        p.linear.backward(dx=write(da) if dx else None, dweight=add(dw2), dy=dy, x=a, weight=w2)
        if drelu:
            p.relu.backward(dx=write(dh), dy=da if dx else a, x=h)
        if dweight:
            p.linear.backward(dweight=write(dw1), dy=h, x=x, weight=w1)
    return p.build()


def test_below_frozen_weights_nothing_goes_back() -> None:
    verify(frozen_first())


@pytest.mark.parametrize(
    ("options", "buffer", "call", "word"),
    [
        ({"written": True}, "one.weight", "relu.forward", "a frozen weight, which no call may write"),
        ({"dx": True}, "da", "linear.backward", "unneeded"),
        ({"drelu": True}, "dh", "relu.backward", "unneeded"),
        ({"dweight": True}, "one.dweight", "linear.backward", "unneeded"),
    ],
)
def test_what_nobody_needs_is_refused(options: dict[str, bool], buffer: str, call: str, word: str) -> None:
    refusal(lambda: verify(frozen_first(**options)), buffer, f"{call} at test_verify.py", word)


@pytest.mark.parametrize(("mean", "word"), [("mean", "unneeded"), ("other", "no forward")])
def test_what_nobody_needs_is_known_by_all_it_reads(mean: str, word: str) -> None:
    """A backward of a frozen norm, with its own mean or with another's: of another's it is no backward at all."""
    p = Builder(lambda weight: not weight.name.startswith("norm."))
    weight, bias, w = p.weight("norm.weight", IN), p.weight("norm.bias", IN), p.weight("two.weight", IN, IN)
    dw = p.gradient(w)
    x, table = p.buffer("input", "x", (ROWS, IN)), p.buffer("constant", "table", (7, IN))
    targets, count = p.buffer("input", "targets", (ROWS,), "index"), p.buffer("input", "count", (1,), "scalar")
    loss = p.buffer("output", "loss", (1,), "statistic")
    first, n, y, dy, back = (p.workspace(name, ROWS, IN) for name in ("first", "n", "y", "dy", "back"))
    means = {name: p.buffer("workspace", name, (ROWS,), "statistic") for name in ("mean", "rstd", "other")}
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    with p.phase("forward"):
        for given, normed, kept in ((x, first, "other"), (first, n, "mean")):
            p.layernorm.forward(
                y=write(normed),
                mean=write(means[kept]),
                rstd=write(means["rstd"]),
                x=given,
                weight=weight,
                bias=bias,
                eps=1e-5,
            )
        p.linear.forward(y=write(y), x=n, weight=w)
    with p.phase("backward"):
        p.squared_error.backward(loss=write(loss), dx=write(dy), x=y, table=table, targets=targets, count=count)
        p.linear.backward(dweight=add(dw), dy=dy, x=n, weight=w)
        p.layernorm.backward(dx=write(back), dy=dy, x=first, weight=weight, mean=means[mean], rstd=means["rstd"])
    refusal(lambda: verify(p.build()), "back", "layernorm.backward at test_verify.py", word)


@pytest.mark.parametrize("frozen", ["blocks.1.mlp.up.weight", "blocks.1.mlp.up.bias"])
def test_a_frozen_weight_still_passes_gradients_on(frozen: str) -> None:
    """In a post-norm block the feed-forward adds its dx to the stream's gradient: left out, nothing is unwritten."""
    program = small(placement="post", frozen=(frozen,))
    up = next(c for c in calls_of(program, "linear.backward") if c.section == "blocks.1" and "sum2" in c["dx"].name)
    faulty = replaced(program, (up, leaving_out(up, "dx")))
    refusal(lambda: verify(faulty), "blocks.1.dnorm1", "linear.backward at affine.py", "no gradient")


def test_a_backward_that_asks_for_no_gradient_or_lacks_what_it_needs(tiny: Tiny) -> None:
    empty = leaving_out(leaving_out(tiny.dlinear1, "dbias"), "dweight")
    refusal(lambda: check_call(empty), "gradient", empty, "asks for no gradient")
    lacking = leaving_out(tiny.dlinear1, "x")
    refusal(lambda: check_call(lacking), "one.dweight", lacking, "is computed from x")
