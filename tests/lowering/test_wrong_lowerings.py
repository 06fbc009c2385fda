"""What the proof of a lowered program must refuse, list by list and rule by rule; and what a kernel of a fused call may
do wrong that no list shows, each found by lockstep."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tapeless import lowering
from tapeless.backends import folded
from tapeless.backends.cpu import Cpu
from tapeless.check.lockstep import lockstep
from tapeless.errors import ProgramError
from tapeless.lowering import lower, lowered_for
from tapeless.lowering.verify import verify_lowered
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.program.call import Buffer
from tests.lowering.wrong_lowerings import ALL, REASONS, WRONG, Wrong, mode, right, without
from tests.program.wiring import BASE, CHANGES


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.what)
def test_it_is_refused(wrong: Wrong) -> None:
    lowered = right(wrong.program)
    verify_lowered(lowered)
    with pytest.raises(ProgramError) as caught:
        verify_lowered(wrong.change(lowered))
    message = str(caught.value)
    assert re.search(REASONS[wrong.reason], message), message
    assert message.endswith("."), message


def test_there_are_many_and_each_reason_refuses_something() -> None:
    assert len(WRONG) + len(RULES) + len(KERNELS) >= 90
    assert len({wrong.what for wrong in WRONG}) == len(WRONG)
    assert {wrong.reason for wrong in WRONG} == set(REASONS)


# Rules that are wrong: what they make of a right program is refused.


def _adding(program: Any, calls: Any) -> Any:
    """Zeroing goes, and whoever added first adds."""
    return {number: call for number, call in calls.items() if call.phase != "zero"}


def _all_written(program: Any, calls: Any) -> Any:
    """Zeroing goes, and whoever added writes."""
    found = _adding(program, calls)
    for number, call in found.items():
        for argument in call.writes:
            if argument.view.buffer.kind == "gradient" and argument.mode == "add":
                found[number] = mode(argument.name, "write")(found[number])
    return found


def _last_written(program: Any, calls: Any) -> Any:
    """The last that adds to a gradient writes it."""
    found, seen = _adding(program, calls), set[Buffer]()
    for number, call in sorted(found.items(), reverse=True):
        for argument in call.writes:
            if argument.view.buffer.kind == "gradient" and argument.view.buffer not in seen:
                found[number] = mode(argument.name, "write")(found[number])
                seen.add(argument.view.buffer)
    return found


def _zeroed_and_written(program: Any, calls: Any) -> Any:
    return dict(calls) | _all_written(program, calls)


def _without_more(call: Any, omitted: Any) -> Any:
    """Every input that a call may do without."""
    reads = {each.name for each in call.arguments if each.mode == "read"}
    for name in reads & set(call.signature.optional):
        call = without(name)(call)
    return call


def _without_backward(call: Any, omitted: Any) -> Any:
    return without("starts")(call) if omitted and call.title == "attention.backward" else call


def _every_write(calls: Any, first: int, last: int) -> tuple[Buffer, ...]:
    return tuple({a.view.buffer for call in calls[first : last + 1] for a in call.writes})


def _every_read(calls: Any, first: int, last: int) -> tuple[Buffer, ...]:
    return tuple({a.view.buffer for call in calls[first : last + 1] for a in call.reads})


def _overlapping(program: Any, rules: Any) -> list[Any]:
    (first, rule), *more = MATCHED(program, rules)
    return [(first, rule), ((first[1], first[1] + 1), rule), *more]


def _one_too_far(program: Any, rules: Any) -> list[Any]:
    return [
        ((first, last + 1), rule._replace(over=lambda parts: ())) for (first, last), rule in MATCHED(program, rules)
    ]


MATCHED = lowering._matched
RULES: dict[str, tuple[str, Callable[..., Any], str, str]] = {
    "zeroing goes, and all add": ("first_writes", _adding, "not initialised", "gpt"),
    "zeroing goes, and all add, lean": ("first_writes", _adding, "not initialised", "lean"),
    "zeroing goes, and all write": ("first_writes", _all_written, "overwritten", "gpt"),
    "zeroing goes, and all write, lean": ("first_writes", _all_written, "overwritten", "lean"),
    "the last writes, and not the first": ("first_writes", _last_written, "not initialised", "gpt"),
    "zeroed, and written": ("first_writes", _zeroed_and_written, "overwritten", "gpt"),
    "all that may be left out is": ("without", _without_more, "given", "gpt"),
    "left out in the backward alone": ("without", _without_backward, "not the same", "llama"),
    "all that is written is between": ("intermediates", _every_write, "read later|kept|from outside", "gpt"),
    "all that is read is between": ("intermediates", _every_read, "read later|kept|from outside", "gpt"),
    "groups overlap": ("_matched", _overlapping, "twice|parts", "gpt"),
    "groups are longer than they are planned": ("_matched", _one_too_far, "twice|parts|missing", "llama"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_wrong_rule_is_refused(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong, reason, base = RULES[rule]
    fields = {"layers": 2, "lean": True} if base == "lean" else CHANGES[base]
    program = transformer.training(BASE.override(**fields), 2, 3, Optimizer("sgd"))
    omitted = frozenset({"starts"}) if base == "llama" and name == "without" else frozenset[str]()
    lowering._lowered_for.cache_clear()
    lowered_for(lower(program, ALL), (), omitted)
    monkeypatch.setattr(lowering, name, wrong)
    lowering._lowered_for.cache_clear()
    try:
        with pytest.raises(ProgramError) as caught:
            lowered_for(lower(program, ALL), (), omitted)
    finally:
        lowering._lowered_for.cache_clear()
    expected = [REASONS[each] for each in reason.split("|")]
    assert any(re.search(each, str(caught.value)) for each in expected), caught.value


# Kernels that are wrong: the list is right, and what a fused call computes is not.


def _bound(call: Any, arguments: list[Any], options: Any) -> list[Any]:
    return folded.bind_fused(call.parts, arguments, options.get("scratch", ()))


def _not_at_all(call: Any, arguments: list[Any], options: Any) -> list[Any]:
    return []


def _two_times(call: Any, arguments: list[Any], options: Any) -> list[Any]:
    """Shows where it adds."""
    return 2 * _bound(call, arguments, options)


def _halved(result: str) -> Callable[..., list[Any]]:
    def bind(call: Any, arguments: list[Any], options: Any) -> list[Any]:
        held = next((arrays[result] for arrays in reversed(arguments) if result in arrays), None)
        runs = _bound(call, arguments, options)
        return runs if held is None else [*runs, lambda: np.multiply(held, 0.5, out=held)]

    return bind


def _open(op: str, name: str) -> Callable[..., list[Any]]:
    """A ReLU that lets everything pass: its x is the activation's."""

    def bind(call: Any, arguments: list[Any], options: Any) -> list[Any]:
        changed = []
        for part, arrays in zip(call.parts, arguments, strict=True):
            hit = part.title == op
            changed.append(arrays | {name: np.abs(arrays[name]) + 1} if hit else arrays)
        return _bound(call, changed, options)

    return bind


def _writing(call: Any, arguments: list[Any], options: Any) -> list[Any]:
    """What the fused call leaves besides: a weight."""
    runs = _bound(call, arguments, options)
    held = next(arrays["y"] for arrays in reversed(arguments) if "y" in arrays) if call.direction == "forward" else None
    return runs if held is None else [*runs, lambda: held.__setitem__((0, 0), 7.0)]


KERNELS: dict[str, tuple[Callable[..., list[Any]], str]] = {
    "nothing is computed": (_not_at_all, "relu"),
    "its result is halved": (_halved("y"), "linear"),
    "the gradient that goes on is halved": (_halved("dx"), "relu.backward"),
    "the weight's gradient is halved": (_halved("dweight"), "linear.backward"),
    "the bias's gradient is halved": (_halved("dbias"), "linear.backward"),
    "the ReLU is open forward": (_open("relu.forward", "x"), "relu.forward"),
    "the ReLU is open backward": (_open("relu.backward", "x"), "relu.backward"),
    "one number is another": (_writing, "linear.forward"),
}


@pytest.mark.parametrize("wrong", KERNELS)
@pytest.mark.usefixtures("own_products")
def test_a_wrong_kernel_of_a_fused_call_is_found_by_lockstep(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted, title = KERNELS[wrong]
    fields: dict[str, Any] = {"layers": 1, "channels": 16, "heads": 2, "vocab": 11, "context": 6, "hidden": 24}
    reference = Model("ops-102k", batch=3, time=6, backend="reference", seed=1, **fields)
    given = np.arange(18).reshape(3, 6) % 11, np.arange(3)
    real = Cpu.bind
    for bound in (real, lambda *a: planted(*a[1:]) if len(a[1].parts) > 1 else real(*a)):
        monkeypatch.setattr(Cpu, "bind", bound)
        model = Model("ops-102k", batch=3, time=6, backend="cpu", seed=1, **fields)
        for name in model.params:
            reference.write(name, model.read(name))
        found = [each for each in lockstep(model, reference, *given) if not each.ok]
        if bound is real:
            assert not found
    assert found
    assert all(len(each.call.parts) > 1 and title in each.call.title for each in found), found
