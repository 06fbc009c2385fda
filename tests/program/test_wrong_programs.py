"""What the verifier must refuse, program by program; and the few mistakes that no list shows, each with the checker
that finds it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tapeless.errors import ProgramError
from tapeless.program.verify import verify
from tests.bugs.planting import Plant, Values, call, together
from tests.check.steps import check_steps
from tests.check.walked_models import WALKED, check_program, check_walk
from tests.program.wrong_programs import FOUNDING, RULES, WRONG, Wrong, base

HOW = ("drop", "exchange", "redirect", "write for add", "reorder")


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.what)
def test_it_is_refused(wrong: Wrong) -> None:
    right = base(wrong.program)
    verify(right)
    with pytest.raises(ProgramError) as caught:
        verify(wrong.change(right))
    message = str(caught.value)
    assert re.search(RULES[wrong.rule], message), message
    assert re.search(rf"(?<![\w.]){re.escape(wrong.buffer)}(?!\w|\.\w)", message), message
    assert re.search(rf"{re.escape(wrong.call)} at \w+\.py:\d+", message), message
    assert message.endswith("."), message
    assert not re.search(r"[.?!]\s", message), message


def test_there_are_many_and_no_two_are_the_same() -> None:
    programs = {(wrong.program, wrong.change(base(wrong.program)).calls) for wrong in WRONG if wrong.rule != "region"}
    regions = [wrong for wrong in WRONG if wrong.rule == "region"]  # of these the buffers are wrong
    assert len(programs) + len(regions) == len(WRONG) >= 80
    assert len({wrong.what for wrong in WRONG}) == len(WRONG)
    assert len(FOUNDING) == 21
    ways, rules = Counter(wrong.how for wrong in WRONG), Counter(wrong.rule for wrong in WRONG)
    assert set(ways) == set(HOW)
    assert min(ways.values()) >= 8, ways
    assert set(rules) == set(RULES), "every rule refuses something"


# What the calls do not say: whether the forward is the one that was meant. In each of these both directions agree, so
# the gradients are those of the loss; of another loss.


def _swapped(one: str, other: str) -> Plant:
    """In both directions, gradients too."""

    def change(values: Values) -> Values:
        names = [(one, other), (f"d{one}", f"d{other}")]
        there = [pair for pair in names if all(name in values for name in pair)]
        if values[one].shape != values[other].shape:
            return values
        return values | {a: values[b] for pair in there for a, b in (pair, pair[::-1])}

    return together(call("attention.forward", change), call("attention.backward", change))


UNSEEN: dict[str, tuple[Plant, str]] = {
    "another eps": (call("layernorm.forward", lambda v: v | {"eps": 1e-12}), "plain model"),
    "no mask, in both directions": (
        together(
            *(call(f"attention.{way}", lambda v: v | {"causal": False, "window": 0}) for way in ("forward", "backward"))
        ),
        "plain model",
    ),
    "queries for keys, in both directions": (_swapped("q", "k"), "plain model"),
    "keys for values, in both directions": (_swapped("k", "v"), "plain model"),
    "numbers that say nothing of themselves": (
        call("adamw.forward", lambda v: v | {"beta1": 0.999, "beta2": 0.9}),
        "steps",
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_list_shows_is_found_by_a_second_statement(name: str) -> None:
    plant, checker = UNSEEN[name]
    with plant():
        for configuration in WALKED:
            assert not list(check_program(configuration)), "the verifier does see it: move it to WRONG"
        walked = WALKED[:1] if checker == "steps" else WALKED  # a walk does not update
        found = next((f for c in walked for f in check_walk(c)), None) or next(check_steps(), None)
    assert found is not None
    assert found.checker == checker
