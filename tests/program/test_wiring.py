"""The verifier proves the wiring: a list that it accepts computes the gradient of the loss that it computes.

Right programs are made wrong in one place, in every way there is, and each of those is either refused, or its gradients
are the derivative of its own loss all the same (by complex step).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest

from tapeless.errors import ProgramError
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.program.builder import Builder
from tapeless.program.call import Argument, Buffer, Call, Program, add, write
from tapeless.program.verify import verify
from tests.program.wiring import BASE, BATCH, CHANGES, TIME, is_derivative, mutants, right

# Of all mutants, some 1,000 a program, every so many; `make soak` takes all.
EVERY = 1 if os.environ.get("TAPELESS_SOAK") else 23


@pytest.mark.parametrize("name", CHANGES)
def test_right_programs_are_accepted_and_right(name: str) -> None:
    program = right(name)
    verify(program)
    assert is_derivative(program)


@pytest.mark.parametrize("name", CHANGES)
def test_random_wiring_what_is_accepted_is_the_derivative(name: str) -> None:
    refused = 0
    start = list(CHANGES).index(name)
    for mutant in islice(mutants(right(name)), start, None, EVERY):
        sentence = refusal(mutant.program)
        if sentence is None:
            assert is_derivative(mutant.program), mutant.what
        else:
            assert " at " in sentence or "is read by no call" in sentence, sentence
            refused += 1
    assert refused


def refusal(program: Program) -> str | None:
    try:
        verify(program)
    except ProgramError as error:
        return str(error)
    return None


def call_of(program: Program, title: str, number: int = 0, *, writes: str = "") -> Call:
    found = [c for c in program.calls if c.title == title and c.arguments[0].view.name.endswith(writes)]
    return found[number]


def changed(program: Program, old: Call, *new: Call) -> Program:
    index = program.calls.index(old)
    return Program((*program.calls[:index], *new, *program.calls[index + 1 :]), program.buffers)


def moved(program: Program, call: Call, before: Call) -> Program:
    rest = [each for each in program.calls if each is not call]
    rest.insert(rest.index(before), call)
    return Program(tuple(rest), program.buffers)


def taking(call: Call, mode: str | None = None, **buffers: Buffer) -> Call:
    def taken(a: Argument) -> Argument:
        return replace(a, view=buffers[a.name].all, mode=mode or a.mode) if a.name in buffers else a

    return replace(call, arguments=tuple(taken(a) for a in call.arguments))


def without(call: Call, name: str) -> Call:
    return replace(call, arguments=tuple(a for a in call.arguments if a.name != name))


def buffer(program: Program, name: str) -> Buffer:
    return next(each for each in program.buffers if each.name == name)


def dx_over_its_dy(p: Program) -> Program:
    square = next(c for c in p.calls if c.title == "linear.backward" and c["dx"].shape == c["dy"].shape)
    return changed(p, square, taking(square, mode="write", dx=square["dy"].buffer))


def linear_in_place(p: Program) -> Program:
    square = next(c for c in p.calls if c.title == "linear.forward" and c["x"].shape == c["y"].shape)
    return changed(p, square, taking(square, x=square["y"].buffer))


def written_for_added(p: Program) -> Program:
    norm = call_of(p, "layernorm.backward", 1)
    return changed(p, norm, taking(norm, mode="write", dx=norm["dx"].buffer))


def dx_left_out(p: Program) -> Program:
    up = next(c for c in p.calls if c.title == "linear.backward" and c["weight"].name.endswith("mlp.up.weight"))
    return changed(p, up, without(up, "dx"))


def bias_left_out(p: Program) -> Program:
    up = next(c for c in p.calls if c.title == "linear.backward" and c["weight"].name.endswith("mlp.up.weight"))
    return changed(p, up, without(up, "dbias"))


def bias_of_another(p: Program) -> Program:
    proj = next(c for c in p.calls if c.title == "linear.backward" and c["weight"].name.endswith("attn.proj.weight"))
    return changed(p, proj, taking(proj, dbias=buffer(p, "blocks.0.mlp.down.dbias")))


def head_to_positions(p: Program) -> Program:
    head = call_of(p, "classifier.backward")
    wrong = next(
        b for b in p.buffers if b.kind == "gradient" and b.shape == head["dweight"].shape and "token" not in b.name
    )
    return changed(p, head, taking(head, dweight=wrong))


def not_causal_backward(p: Program) -> Program:
    attention = call_of(p, "attention.backward")
    return changed(p, attention, replace(attention, scalars=(("causal", False),)))


def queries_for_keys(p: Program) -> Program:
    call = call_of(p, "attention.backward")
    swapped = {"dq": call["dk"], "dk": call["dq"]}
    arguments = tuple(replace(a, view=swapped.get(a.name, a.view)) for a in call.arguments)
    return changed(p, call, replace(call, arguments=arguments))


def wrong_dy(p: Program) -> Program:
    gelu = call_of(p, "gelu.backward")
    return changed(p, gelu, taking(gelu, dy=gelu["x"].buffer))


def skip_dropped(p: Program) -> Program:
    """The norm's gradient goes to a buffer of its own, and from there on that is the stream's."""
    norm = call_of(p, "layernorm.backward", 1)
    other = buffer(p, norm["dy"].name)
    spare = Buffer("spare", "workspace", other.shape)
    later = p.calls[p.calls.index(norm) + 1 :]
    rest = tuple(_renamed(c, norm["dx"].buffer, spare) for c in later)
    calls = (*p.calls[: p.calls.index(norm)], taking(norm, mode="write", dx=spare), *rest)
    return Program(calls, (*p.buffers, spare))


def _renamed(call: Call, old: Buffer, new: Buffer) -> Call:
    return taking(call, None, **{a.name: new for a in call.arguments if a.view.buffer == old})


def constant_overwritten(p: Program) -> Program:
    last = call_of(p, "gelu.forward")
    table = Buffer("table", "constant", last["y"].shape)
    return Program((*p.calls[:2], taking(last, x=table, y=table), *p.calls[2:]), (*p.buffers, table))


def norm_too_early(p: Program) -> Program:
    return moved(p, call_of(p, "global_norm.forward"), call_of(p, "embedding.backward"))


def updated_twice(p: Program) -> Program:
    return Program((*p.calls, p.calls[-1]), p.buffers)


def part_zeroed(p: Program) -> Program:
    """Only the first vector of the gradients: the rest is what the last step left there."""
    zero = call_of(p, "zero.forward")
    region = zero["y"].buffer
    first = replace(zero.arguments[0], view=region.columns(0, next(m for m in region.members).elements))
    return changed(p, zero, replace(zero, arguments=(first,)))


def second_region(p: Program) -> Program:
    zero = call_of(p, "zero.forward")
    second = replace(zero["y"].buffer, name="gradients again")
    return Program((taking(zero, y=second), *p.calls[1:]), (*p.buffers, second))


def late_weight(p: Program) -> Program:
    return Program(p.calls, (*p.buffers, Buffer("late.weight", "weight", (3,))))


def other_order(p: Program) -> Program:
    names = ("blocks.0.norm1.dweight", "blocks.0.norm1.dbias")
    one, other = (buffer(p, name) for name in names)
    exchange = {one: other, other: one}
    return Program(p.calls, tuple(exchange.get(b, b) for b in p.buffers))


def relu_as_recomputation(p: Program) -> Program:
    gelu = next(c for c in p.calls if c.title == "gelu.forward" and c.phase == "forward")
    escaped = changed(p, gelu, replace(gelu, phase="recompute"))
    return changed(escaped, call_of(p, "gelu.backward"))


WRONG: dict[str, tuple[Callable[[Program], Program], str]] = {
    "dx over its own dy": (dx_over_its_dy, "writes dx over dy"),
    "linear in place": (linear_in_place, "writes y over x"),
    "a second contribution written instead of added": (written_for_added, "must be added to"),
    "an optional dx left out": (dx_left_out, "dnorm2 is read before it is written"),
    "a dbias left out": (bias_left_out, "no gradient"),
    "a dbias sent to another bias": (bias_of_another, "wrong gradient"),
    "the classifier's dweight sent to another weight": (head_to_positions, "wrong gradient"),
    "causal forward, other backward": (not_causal_backward, "wrong causal"),
    "dq and dk exchanged": (queries_for_keys, "wrong gradient"),
    "a wrong dy": (wrong_dy, "wrong gradient"),
    "the skip gradient dropped": (skip_dropped, "wrong gradient"),
    "a constant overwritten": (constant_overwritten, "writes y over x"),
    "the norm before the backward is done": (norm_too_early, "wrong gradient"),
    "the update applied twice": (updated_twice, "updated again"),
    "part of the gradients zeroed": (part_zeroed, "added to before it is initialised"),
    "zeroed through a second region": (second_region, "region"),
    "a weight declared after its region": (late_weight, "region"),
    "gradients in another order": (other_order, "order of their weights"),
    "a forward that calls itself a recomputation": (relu_as_recomputation, "not computed before"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_but_for_one_line(name: str) -> None:
    # As many positions as words, so that gradients of two tables can be taken for each other.
    program = transformer.training(BASE.override(context=5, layers=1), BATCH, TIME, Optimizer("adamw"))
    spoil, words = WRONG[name]
    spoilt = spoil(program)
    assert spoilt != program
    with pytest.raises(ProgramError, match=words) as caught:
        verify(spoilt)
    message = str(caught.value)
    assert message.endswith("."), message
    assert name == "a weight declared after its region" or " at " in message, message


def test_an_op_without_a_derivative_on_the_way_to_the_loss() -> None:
    """positions_at is a forward alone; what it adds to passes through, the table's gradient would be lost."""
    p = Builder()
    table, words = p.weight("table", 4, 2), p.weight("words", 5, 2)
    p.gradient(table), p.gradient(words)
    x, dx = p.workspace("x", 1, 3, 2), p.workspace("dx", 1, 3, 2)
    tokens, targets = (p.buffer("input", name, (1, 3), "index") for name in ("tokens", "targets"))
    at, count = p.buffer("input", "at", (1,), "index"), p.buffer("input", "count", (1,), "scalar")
    loss = p.buffer("output", "loss", (1,), "statistic")
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.embedding.forward(y=write(x), tokens=tokens, weight=words)
    p.positions_at.forward(y=add(x), table=table, position=at)
    with p.phase("backward"):
        p.squared_error.backward(loss=write(loss), dx=write(dx), x=x, table=words, targets=targets, count=count)
        p.embedding.backward(dweight=add(p.gradient(words)), dy=dx, tokens=tokens)
    with pytest.raises(ProgramError, match=r"no derivative: positions_at\.forward at .* has no backward"):
        verify(p.build())


def test_a_statistic_is_not_used_as_if_it_had_a_gradient() -> None:
    p = Builder()
    w, b = p.weight("w", 3), p.weight("b", 3)
    p.gradient(w), p.gradient(b)
    table = p.weight("table", 3)
    p.gradient(table)
    x, y, z, dz = p.buffer("input", "x", (3, 3)), *(p.workspace(name, 3, 3) for name in ("y", "z", "dz"))
    mean, rstd, other, other2 = (p.workspace(name, 3, role="statistic") for name in ("mean", "rstd", "other", "other2"))
    targets, count = p.buffer("input", "targets", (3,), "index"), p.buffer("input", "count", (1,), "scalar")
    loss, words = p.buffer("output", "loss", (1,), "statistic"), p.buffer("constant", "words", (4, 3))
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.layernorm.forward(y=write(y), mean=write(mean), rstd=write(rstd), x=x, weight=w, bias=b, eps=1e-5)
    p.layernorm.forward(y=write(z), mean=write(other), rstd=write(other2), x=y, weight=table, bias=mean, eps=1e-5)
    with p.phase("backward"):
        p.squared_error.backward(loss=write(loss), dx=write(dz), x=z, table=words, targets=targets, count=count)
    with pytest.raises(ProgramError, match=r"is mean of layernorm\.forward at .* through which no gradient comes back"):
        verify(p.build())


def test_a_program_whose_clip_nobody_uses() -> None:
    program = right("gpt")
    with pytest.raises(ProgramError, match="used by no update"):
        verify(Program(program.calls[:-1], program.buffers))


def test_the_scale_of_the_update_is_that_of_the_clip() -> None:
    program = right("gpt")
    sgd = program.calls[-1]
    with pytest.raises(ProgramError, match="must be the result of clip"):
        verify(changed(program, sgd, taking(sgd, scale=buffer(program, "limit"))))


def two_steps(
    *, dx: tuple[int, ...] = (2, 3, 2), again: tuple[int, ...] | None = None, losses: int = 1, rows: int = 6
) -> Program:
    """Words and positions through a linear. `dx`: the shape in which the gradient comes back; `again`: the shape in
    which what the linear read is computed once more; `losses`: how many are written to one place; `rows`: of the
    gradient of the positions."""
    p = Builder()
    words, table, w = p.weight("words", 5, 2), p.weight("table", 6, 2), p.weight("w", 2, 2)
    p.gradient(words), p.buffer("gradient", "dtable", (rows, 2)), p.gradient(w)
    tokens, targets = (p.buffer("input", name, (2, 3), "index") for name in ("tokens", "targets"))
    count, loss, goal = (
        p.buffer("input", "count", (1,), "scalar"),
        p.buffer("output", "loss", (1,), "statistic"),
        (5, 2),
    )
    goals = p.buffer("constant", "goals", goal)
    x, y, dy, other = (p.workspace(name, 2, 3, 2) for name in ("x", "y", "dy", "other"))
    back = p.workspace("back", *dx)
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.embedding.forward(y=write(x), tokens=tokens, weight=words)
    p.positions.forward(y=add(x), table=table)
    p.linear.forward(y=write(y), x=x, weight=w)
    read = x
    if again is not None:
        read = p.workspace("again", *again)
        with p.phase("recompute"):
            p.embedding.forward(y=write(read), tokens=tokens, weight=words)
            p.positions.forward(y=add(read), table=table)
    with p.phase("backward"):
        for place in (dy, other)[:losses]:
            p.squared_error.backward(loss=write(loss), dx=write(place), x=y, table=goals, targets=targets, count=count)
        p.linear.backward(dx=write(back), dweight=add(p.gradient(w)), dy=dy, x=read, weight=w)
        p.positions.backward(dtable=add(p.gradient(table)), dy=back)
        p.embedding.backward(dweight=add(p.gradient(words)), dy=back, tokens=tokens)
    return p.build()


def test_small_lists_are_right() -> None:
    for program in (two_steps(), two_steps(again=(2, 3, 2))):
        verify(program)
        assert is_derivative(program)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (two_steps(dx=(1, 6, 2)), "wrong shape: back is 1×6×2"),
        (two_steps(dx=(3, 2, 2)), "wrong shape: back is 3×2×2"),
        (two_steps(again=(1, 6, 2)), "not computed before"),
        (two_steps(losses=2), "loss is overwritten after"),
        (two_steps(rows=3), "wrong shape: dtable is 3×2"),
    ],
    ids=["gradient by other rows", "exchanged axes", "recomputed by other rows", "two losses in one", "fewer rows"],
)
def test_rows_count_as_columns_do(program: Program, words: str) -> None:
    """Kernels that fold leading axes take any of them; positions, heads and the rows of a weight are then others."""
    with pytest.raises(ProgramError, match=words):
        verify(program)


def test_a_buffer_that_only_has_the_name_of_one() -> None:
    program = two_steps()
    linear = call_of(program, "linear.backward")
    impostor = replace(linear["dweight"].buffer, kind="workspace")
    with pytest.raises(ProgramError, match=r"dw, which linear\.backward at .* is not a buffer of this program"):
        verify(changed(program, linear, taking(linear, "write", dweight=impostor)))
