"""Which calls are fused for a GPU: what a group hands on is what its parts read, and nothing near it is one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tapeless.lowering import Rules, lower, lowered_for
from tapeless.lowering.gpu import FINDS, FUSIONS, group_of, made_again
from tapeless.lowering.omitted import without
from tapeless.lowering.verify import why_not_over
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.program.call import Argument, Buffer, Call, View
from tests.program.wiring import BASE, CHANGES

FIELDS: dict[str, dict[str, Any]] = {
    "gelu": CHANGES["gpt"],
    "swiglu": CHANGES["llama"] | {"query_key_norm": False},
    "adapted": CHANGES["adapted"],
}


@cache
def groups(name: str) -> list[tuple[str, tuple[Call, ...]]]:
    """Every group of a program's training step: by which rule, and its calls."""
    program = transformer.training(BASE.override(**FIELDS[name]), 2, 3, Optimizer("sgd"))
    lowered = lower(program, Rules(FUSIONS))
    return [(call.op, call.parts) for call in lowered.calls if len(call.parts) > 1]


def group(rule: str, name: str, *titles: str) -> list[Call]:
    """The first group of this rule with calls of these titles."""
    return list(next(parts for op, parts in groups(name) if op == rule and {*titles} <= {each.title for each in parts}))


def found(rule: str, calls: list[Call]) -> int:
    """How many of these calls the rule fuses."""
    match = FINDS[rule](calls, 0)
    return 0 if match is None else len(match.calls)


def other(call: Call, name: str, **columns: Any) -> Call:
    """The call with a buffer in place of this argument that is like it and no other, or with other columns of it."""

    def changed(argument: Argument) -> Argument:
        if argument.name != name:
            return argument
        view = argument.view
        like = replace(view.buffer, name=f"another {view.buffer.name}")
        return replace(argument, view=replace(view, **columns) if columns else replace(view, buffer=like))

    assert call.has(name)
    return replace(call, arguments=tuple(map(changed, call.arguments)))


# By rule: in which program, which call of the group by title (and which of those), and the argument that another buffer
# stands for; then how many calls are left in the group: LOWER, those before the activation's backward.
LOWER = -1
BROKEN = [
    ("norm of a residual", "gelu", "layernorm.forward", 0, "x", 0),
    ("norm of a residual", "swiglu", "rmsnorm.forward", 0, "x", 0),
    ("linear with GELU", "gelu", "gelu.forward", 0, "x", 0),
    ("RoPE of queries and keys", "swiglu", "rope.forward", 1, "cos", 0),
    ("RoPE of queries and keys", "swiglu", "rope.forward", 1, "sin", 0),
    ("adapters first", "adapted", "adapt.forward", 0, "y", 0),
    ("adapters first", "adapted", "adapt.forward", 0, "low", 0),
    ("norm to linear backward", "gelu", "linear.backward", 0, "dy", 0),
    ("norm to linear backward", "gelu", "gelu.backward", 0, "dy", LOWER),
    ("norm to linear backward", "gelu", "linear.backward", 1, "dy", LOWER),
    ("norm to linear backward", "swiglu", "swiglu.backward", 0, "dy", LOWER),
    ("norm to linear backward", "swiglu", "linear.backward", 1, "dy", LOWER),
    ("norm to linear backward", "adapted", "adapt.backward", 0, "dy", 0),
    ("norm to linear backward", "adapted", "adapt.backward", 0, "dlow", 0),
    ("norm to linear backward", "adapted", "linear.backward", 1, "dy", 0),
]


@pytest.mark.parametrize(("rule", "name", "title", "which", "argument", "left"), BROKEN, ids=str)
def test_what_is_not_handed_on_is_not_fused(
    rule: str, name: str, title: str, which: int, argument: str, left: int
) -> None:
    activation = ["swiglu.backward" if name == "swiglu" else "gelu.backward"]
    calls = group(rule, name, title, *(activation if rule.startswith("norm to") else []))
    assert found(rule, calls) == len(calls)
    if left == LOWER:
        (left,) = [number for number, call in enumerate(calls) if call.title == activation[0]]
    at = [number for number, call in enumerate(calls) if call.title == title][which]
    calls[at] = other(calls[at], argument)
    assert found(rule, calls) == left


@pytest.mark.parametrize("rule", FINDS)
def test_a_group_that_ends_early_is_none(rule: str) -> None:
    name = {"RoPE of queries and keys": "swiglu", "adapters first": "adapted"}.get(rule, "gelu")
    calls = group(rule, name)
    assert found(rule, calls[:1]) == 0
    assert found(rule, calls[1:]) < len(calls)


def test_adapters_reach_each_column_once() -> None:
    """Two that reach the same half would leave the other to the product, which adds to what nobody has written."""
    calls = group("adapters first", "adapted")
    (at,) = [number for number, call in enumerate(calls) if call.title == "adapt.forward"]
    y = calls[at]["y"]
    half = (y.start + y.stop) // 2
    low = other(calls[at], "y", stop=half)
    high = other(calls[at], "y", start=half)
    assert found("adapters first", [*calls[:at], low, high]) == at + 2
    assert found("adapters first", [*calls[:at], low, low]) == 0
    assert found("adapters first", [*calls[:at], low]) == 0


def test_norms_of_heads_and_turns_both_ways_are_left_alone() -> None:
    program = transformer.training(BASE.override(**CHANGES["llama"]), 2, 3, Optimizer("sgd"))
    heads = [call for call in program.calls if call.op == "rmsnorm" and call.dims.get("H", 1) > 1]
    assert heads
    assert all(call not in parts for _, parts in groups_of(program) for call in heads)
    forward, *_ = group("RoPE of queries and keys", "swiglu", "rope.forward")
    back, *_ = group("RoPE of queries and keys", "swiglu", "rope.backward")
    assert found("RoPE of queries and keys", [forward, back]) == 0


def groups_of(program: Any) -> list[tuple[str, tuple[Call, ...]]]:
    return [(call.op, call.parts) for call in lower(program, Rules(FUSIONS)).calls if len(call.parts) > 1]


def test_only_the_activation_that_is_read_is_made_again_by_its_backward() -> None:
    calls = group("norm to linear backward", "gelu", "gelu.forward", "gelu.backward")
    made = made_again(group_of(calls))
    assert made is not None
    assert calls[made].title == "gelu.forward"
    for argument in ("y", "x"):
        changed = list(calls)
        changed[made] = other(calls[made], argument)
        assert made_again(group_of(changed)) is None


def test_what_is_needed_is_not_left_out() -> None:
    """Only an input that the op can do without."""
    program = transformer.training(BASE.override(**CHANGES["llama"]), 2, 3, Optimizer("sgd"))
    for call in program.calls:
        read = frozenset(argument.view.buffer.name for argument in call.reads)
        left = without(call, read)
        assert {each.name for each in call.arguments} - {each.name for each in left.arguments} == {
            each.name for each in call.arguments if each.name in call.signature.optional and each.mode == "read"
        } | {
            each.name
            for each in call.arguments
            if each.name in call.signature.optional and each.mode != "read" and each.view.buffer.name in read
        }


def test_lists_without_an_input_are_told_from_those_with_it() -> None:
    planned = lower(transformer.training(BASE.override(**CHANGES["llama"]), 2, 3, Optimizer("sgd")), Rules((), True))
    given, left = lowered_for(planned), lowered_for(planned, (), frozenset({"starts"}))
    assert given.omitted != left.omitted
    assert given.calls != left.calls


def test_workspace_alone_is_written_over() -> None:
    """Whichever of the two is kept."""
    rows, width = 2, 3
    work, more = (Buffer(name, "workspace", (rows, width)) for name in ("work", "more"))
    kept = Buffer("kept", "output", (rows, width))

    def part(read: Buffer, written: Buffer) -> list[Call]:
        views = (Argument("y", View(written, 0, width), "write"), Argument("x", View(read, 0, width), "read"))
        return [Call("relu", "forward", views, (), "forward", "", "here:1")]

    assert why_not_over((), (0, 0), part(work, more), more, work) is None
    assert why_not_over((), (0, 0), part(kept, more), more, kept) == "is kept"
    assert why_not_over((), (0, 0), part(work, kept), kept, work) == "is kept"
