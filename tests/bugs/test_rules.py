"""Other projects' acceptance rules: they accept what is right, refuse what is grossly wrong, miss what they miss."""

from functools import cache
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from tapeless.errors import ProgramError
from tapeless.program import builder
from tapeless.program.verify import verify
from tests.bugs import page, rules
from tests.bugs.catalogue import BUGS
from tests.bugs.rules import CASES, FLOAT64, RULES, Case, case_of, judge_all


def expected(configuration):
    return _expected(configuration.name)


@cache
def _expected(name):
    return case_of(next(each for each in CASES if each.name == name)).values("float64")


def bug(name):
    return next(each for each in BUGS if each.name == name)


def refusing(name):
    """In the smaller models: Qwen3, where differences take longest, is where the healthy program is accepted."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rules, "CASES", CASES[:3])
        (judged,) = judge_all((bug(name),))
    return {rule for rule, refused in judged.refused.items() if refused}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("configuration", CASES, ids=lambda configuration: configuration.name)
def test_the_healthy_program_is_accepted(rule, configuration):
    assert RULES[rule](case_of(configuration), expected(configuration))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in FLOAT64])
def test_the_healthy_cpu_backend_is_accepted(rule):
    configuration = CASES[0]
    assert RULES[rule](case_of(configuration, "cpu"), expected(configuration))


def test_a_gross_mistake_is_refused_by_all():
    assert refusing("residual-lost-in-pre-norm") == set(RULES)


def test_a_consistent_mistake_is_refused_only_where_values_are_compared():
    assert refusing("attention-unscaled") == {"llm.c"}


def test_a_small_mistake_is_seen_in_float64_only():
    """JAX's rule in float32 divides by 2e-4 what two losses were rounded by. So small a mistake is refused, or not, by
    the processor's roundings: two units in the last place of a loss are enough."""
    decided = set(RULES) - {"JAX check_grads, float32"}
    assert refusing("gelu-exact-in-backward") & decided == set(FLOAT64)
    assert refusing("loss-epsilon") & decided == set()


def test_what_changes_no_number_is_said_to():
    (judged,) = judge_all((bug("schedule-one-early"),))
    assert judged.changed == ()
    assert not any(judged.refused.values())


def test_a_bug_of_the_cpu_is_judged_on_the_cpu():
    (judged,) = judge_all((bug("cpu-rest-of-rows"),))
    assert judged.changed
    assert not any(judged.refused[rule] for rule in FLOAT64)
    assert judged.refused["differences in float32"]


def test_a_program_that_cannot_run_is_refused():
    def broken(case, expected):
        raise IndexError

    assert not rules._accepts(broken, case_of(CASES[0]), expected(CASES[0]))


def test_lists_that_the_verifier_refuses_are_run_and_judged():
    with bug("tied-weight-overwritten").plant():
        with pytest.raises(ProgramError):
            case_of(CASES[0])
        with rules.unverified():
            case_of(CASES[0])
    assert vars(builder)["verify"] is verify


class Off(torch.autograd.Function):  # type: ignore[misc]
    """Σ x²/2, whose gradient is off by a share."""

    share = 0.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x**2).sum() / 2

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * x * (1 + Off.share)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("share", "accepted"), [(8e-4, True), (1.2e-3, False), (-8e-4, True), (-1.2e-3, False)])
def test_gradcheck_s_rule_is_torch_s(monkeypatch, fast, share, accepted):
    """The same function, given to torch and to our statement of its rule."""
    values = np.array([1.0, 2.0, 3.0])
    weights = {"x": values.copy()}
    case = SimpleNamespace(
        weights={"x": values},
        gradients=lambda dtype: (SimpleNamespace(params=weights), {"x": values * (1 + share)}),
        differentiated=lambda model: model.params,
        loss=lambda model: (model.params["x"] ** 2).sum() / 2,
    )
    ours = rules.torch_gradcheck_fast if fast else rules.torch_gradcheck
    monkeypatch.setattr(Off, "share", share)
    x = torch.tensor(values, requires_grad=True)
    assert torch.autograd.gradcheck(Off.apply, (x,), raise_exception=False, fast_mode=fast) == accepted
    assert ours(cast(Case, case), _expected("cllm")) == accepted


def test_differences_leave_the_weights_as_they_were():
    case = case_of(CASES[0])
    model, _ = case.gradients("float64")
    before = {name: weight.copy() for name, weight in model.params.items()}
    rules._differences(case, model, model.params["norm.weight"], 1e-6)
    rules._difference(case, model, {"norm.bias": np.ones(6)}, 1e-4)
    for name, weight in model.params.items():
        assert (weight == before[name]).all()


def test_the_last_results_are_of_this_catalogue():
    head, *rows = [line.split("\t") for line in page.RESULTS.read_text(encoding="utf-8").splitlines()]
    assert tuple(head) == page.COLUMNS
    assert [(row[0], row[1]) for row in rows] == [(bug.name, bug.where) for bug in BUGS]
    text = page.PAGE.read_text(encoding="utf-8")
    table = text.partition(page.BEGIN)[2].partition(page.END)[0]
    named = sum(row[1] == row[3] for row in rows)
    assert table.strip() == page.report(rows, named).strip()
