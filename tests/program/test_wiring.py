"""The verifier proves the wiring: a list that it accepts computes the gradient of the loss that it computes.

Right programs are made wrong in one place, in every way there is, and each of those is either refused, or its gradients
are the derivative of its own loss all the same (by complex step).
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice

import pytest

from tapeless.errors import ProgramError
from tapeless.program.builder import Builder
from tapeless.program.call import Argument, Buffer, Call, Program, add, write
from tapeless.program.verify import verify
from tests.program.wiring import CHANGES, is_derivative, mutants, right

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


def taking(call: Call, mode: str | None = None, **buffers: Buffer) -> Call:
    def taken(a: Argument) -> Argument:
        return replace(a, view=buffers[a.name].all, mode=mode or a.mode) if a.name in buffers else a

    return replace(call, arguments=tuple(taken(a) for a in call.arguments))


def buffer(program: Program, name: str) -> Buffer:
    return next(each for each in program.buffers if each.name == name)


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
    program, given = right("gpt"), Buffer("given", "input", (1,), "scalar", meaning="gradient scale")
    program = Program(program.calls, (*program.buffers, given))
    sgd = program.calls[-1]
    with pytest.raises(ProgramError, match="must be the result of clip"):
        verify(changed(program, sgd, taking(sgd, scale=given)))


def two_steps(
    *,
    dx: tuple[int, ...] = (2, 3, 2),
    dy: tuple[int, ...] = (2, 3, 2),
    again: tuple[int, ...] | None = None,
    losses: int = 1,
    rows: int = 6,
    unused: bool = False,
) -> Program:
    """Words and positions through a linear. `dx`, `dy`: the shapes in which gradients come back; `again`: the shape in
    which what the linear read is computed once more; `losses`: how many are written to one place; `rows`: of the
    gradient of the positions; `unused`: two more calls, one after the other, of which nobody takes anything."""
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
    x, y, other = (p.workspace(name, 2, 3, 2) for name in ("x", "y", "other"))
    back, judged = p.workspace("back", *dx), p.workspace("judged", *dy)
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.embedding.forward(y=write(x), tokens=tokens, weight=words)
    p.positions.forward(y=add(x), table=table)
    p.linear.forward(y=write(y), x=x, weight=w)
    if unused:
        first, second = (p.workspace(name, 2, 3, 2) for name in ("first", "second"))
        p.relu.forward(y=write(first), x=y)
        p.relu.forward(y=write(second), x=first)
    read = x
    if again is not None:
        read = p.workspace("again", *again)
        with p.phase("recompute"):
            p.embedding.forward(y=write(read), tokens=tokens, weight=words)
            p.positions.forward(y=add(read), table=table)
    with p.phase("backward"):
        for place in (judged, other)[:losses]:
            p.squared_error.backward(loss=write(loss), dx=write(place), x=y, table=goals, targets=targets, count=count)
        p.linear.backward(dx=write(back), dweight=add(p.gradient(w)), dy=judged, x=read, weight=w)
        p.positions.backward(dtable=add(p.gradient(table)), dy=back)
        p.embedding.backward(dweight=add(p.gradient(words)), dy=back, tokens=tokens)
    return p.build()


def judge(p: Builder, state: Buffer, dstate: Buffer) -> None:
    """A squared error of three rows, as the first backward call."""
    targets, count = p.buffer("input", "targets", state.shape[:1], "index"), p.buffer("input", "count", (1,), "scalar")
    loss, goals = p.buffer("output", "loss", (1,), "statistic"), p.buffer("constant", "goals", (5, state.shape[-1]))
    p.squared_error.backward(loss=write(loss), dx=write(dstate), x=state, table=goals, targets=targets, count=count)


def by_columns() -> Program:
    """Every third of a product goes its own way into its third of one buffer; a norm's two statistics share one."""
    p = Builder()
    w, weight, bias = p.weight("w", 2, 6), p.weight("norm.weight", 6), p.weight("norm.bias", 6)
    dw, dweight, dbias = (p.gradient(each) for each in (w, weight, bias))
    x, stats = p.buffer("input", "x", (3, 2)), p.workspace("stats", 6, role="statistic")
    h, a, y, dy, da, dh = (p.workspace(name, 3, 6) for name in ("h", "a", "y", "dy", "da", "dh"))
    mean, rstd = stats.columns(0, 3), stats.columns(3, 6)
    thirds = ((p.relu, 0), (p.gelu, 2), (p.relu, 4))
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.linear.forward(y=write(h), x=x, weight=w)
    for op, at in thirds:
        op.forward(y=write(a.columns(at, at + 2)), x=h.columns(at, at + 2))
    p.layernorm.forward(y=write(y), mean=write(mean), rstd=write(rstd), x=a, weight=weight, bias=bias, eps=1e-5)
    with p.phase("backward"):
        judge(p, y, dy)
        p.layernorm.backward(
            dx=write(da), dweight=add(dweight), dbias=add(dbias), dy=dy, x=a, weight=weight, mean=mean, rstd=rstd
        )
        for op, at in reversed(thirds):
            span = (at, at + 2)
            op.backward(dx=write(dh.columns(*span)), dy=da.columns(*span), x=h.columns(*span))
        p.linear.backward(dweight=add(dw), dy=dh, x=x, weight=w)
    return p.build()


def the_same_twice() -> Program:
    """Two products that are the same in all but where they lie, both computed again."""
    p = Builder()
    w, one, two = p.weight("w", 2, 2), p.weight("one", 2, 2), p.weight("two", 2, 2)
    dw, done, dtwo = (p.gradient(each) for each in (w, one, two))
    x = p.buffer("input", "x", (3, 2))
    h, a, b, y, z = (p.workspace(name, 3, 2) for name in "habyz")
    s, ds, da, db, dh = (p.workspace(name, 3, 2) for name in ("s", "ds", "da", "db", "dh"))
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.linear.forward(y=write(h), x=x, weight=w)
    for same in (a, b):
        p.linear.forward(y=write(same), x=h, weight=w)
    p.linear.forward(y=write(y), x=a, weight=one)
    p.linear.forward(y=write(z), x=b, weight=two)
    p.residual.forward(y=write(s), x=y, branch=z)
    with p.phase("backward"):
        judge(p, s, ds)
    with p.phase("recompute"):
        for same in (a, b):
            p.linear.forward(y=write(same), x=h, weight=w)
    with p.phase("backward"):
        p.linear.backward(dx=write(db), dweight=add(dtwo), dy=ds, x=b, weight=two)
        p.linear.backward(dx=write(da), dweight=add(done), dy=ds, x=a, weight=one)
        p.linear.backward(dx=write(dh), dweight=add(dw), dy=db, x=h, weight=w)
        p.linear.backward(dx=add(dh), dweight=add(dw), dy=da, x=h, weight=w)
        p.linear.backward(dweight=add(dw), dy=dh, x=x, weight=w)
    return p.build()


@pytest.mark.parametrize("read", [4, 0])
def test_how_much_of_a_weight_has_no_gradient_is_said(read: int) -> None:
    p = Builder()
    w, other = p.weight("w", 3, 6), p.weight("other", 3, 4)
    dw, dother = p.gradient(w), p.gradient(other)
    assert dw is not None
    assert dother is not None
    x, y, dy = p.buffer("input", "x", (3, 3)), p.workspace("y", 3, 4), p.workspace("dy", 3, 4)
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    used, dused = (w.columns(0, 4), dw.columns(0, 4)) if read else (other.all, dother.all)
    p.linear.forward(y=write(y), x=x, weight=used)
    with p.phase("backward"):
        judge(p, y, dy)
        p.linear.backward(dweight=add(dused), dy=dy, x=x, weight=used)
    why = (
        r" in 2 of 6 columns has none, as w, which linear\.forward at "
        if read
        else r" has none, as w is read by no call"
    )
    with pytest.raises(ProgramError, match=rf"^no gradient: dw{why}"):
        verify(p.build())


def test_how_much_of_a_bias_has_no_gradient_is_said() -> None:
    p = Builder()
    w, b = p.weight("w", 3, 4), p.weight("b", 6)
    dw, db = p.gradient(w), p.gradient(b)
    assert dw is not None
    assert db is not None
    x, y, dy = p.buffer("input", "x", (3, 3)), p.workspace("y", 3, 4), p.workspace("dy", 3, 4)
    with p.phase("zero"):
        p.zero.forward(y=write(p.region("gradient", "gradients")))
    p.linear.forward(y=write(y), x=x, weight=w, bias=b.columns(0, 4))
    with p.phase("backward"):
        judge(p, y, dy)
        p.linear.backward(dweight=add(dw), dbias=add(db.columns(0, 4)), dy=dy, x=x, weight=w)
    with pytest.raises(
        ProgramError, match=r"^no gradient: db in 2 of 6 columns has none, as b, which linear\.forward at "
    ):
        verify(p.build())


def test_small_lists_are_right() -> None:
    for program in (two_steps(), two_steps(again=(2, 3, 2)), by_columns(), the_same_twice()):
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
        (two_steps(dy=(1, 6, 2)), r"wrong shape: judged is 1×6×2, but dx of squared_error\.backward"),
        (two_steps(unused=True), "no loss depends on second,"),
    ],
    ids=[
        "gradient by other rows",
        "exchanged axes",
        "recomputed by other rows",
        "two losses in one",
        "fewer rows",
        "of a loss by other rows",
        "the last of what is not used",
    ],
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


def test_of_several_parts_that_lack_the_first_is_named() -> None:
    program = right("gpt")
    embedding = call_of(program, "embedding.backward")
    wrong = taking(embedding, dy=buffer(program, "blocks.0.dnorm1"))
    with pytest.raises(ProgramError, match=r"lacks what comes back through x \(x\) of layernorm\.forward"):
        verify(changed(program, embedding, wrong))


def test_the_phase_that_zeroes_does_nothing_else() -> None:
    """A gradient is set to zero once, and only gradients are: a step that adds leaves out this phase, and no more."""
    program = right("gpt")
    zero = call_of(program, "zero.forward")
    with pytest.raises(ProgramError, match=r"tokens\.dweight is written by zero\.forward at .* once, and does nothing"):
        verify(changed(program, zero, zero, zero))
    other = taking(zero, y=Buffer("scratch", "workspace", zero["y"].shape, zero["y"].buffer.role))
    with pytest.raises(ProgramError, match=r"scratch is written by zero\.forward at .* in phase 'zero'"):
        verify(Program((zero, other, *program.calls[1:]), (*program.buffers, other["y"].buffer)))


def test_columns_before_the_first() -> None:
    program = right("gpt")
    gelu = call_of(program, "gelu.forward")
    before = tuple(replace(a, view=a.view.buffer.columns(-1, 4)) for a in gelu.arguments)
    with pytest.raises(ProgramError, match=r"wrong columns: y of gelu\.forward .* takes columns -1 to 4"):
        verify(changed(program, gelu, replace(gelu, arguments=before)))
