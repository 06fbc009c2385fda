"""`check.op` on other people's code: it passes what is right, and nothing else."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapeless import TapelessError
from tapeless.check import op
from tapeless.check.differences import slope
from tests.random_cases import cases

RNG = np.random.default_rng(7)
X, WEIGHT, BIAS = RNG.normal(size=(4, 5)), RNG.normal(size=5), RNG.normal(size=5)
SQUARE = RNG.normal(size=(4, 4))


def normalised(x):
    centred = x - x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)
    return centred * rstd, rstd


def layernorm(x, weight, bias):
    return normalised(x)[0] * weight + bias


def layernorm_backward(dy, x, weight, bias):
    xhat, rstd = normalised(x)
    g = dy * weight
    dx = rstd * (g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True))
    return dx, (dy * xhat).sum(axis=0), dy.sum(axis=0)


def wrong_layernorm(change):
    """A backward whose gradients go through `change` before they are returned."""
    return lambda dy, *inputs: change(*layernorm_backward(dy, *inputs))


def without_last_term(dy, x, weight, bias):
    _, rstd = normalised(x)
    g = dy * weight
    return rstd * (g - g.mean(axis=1, keepdims=True)), *layernorm_backward(dy, x, weight, bias)[1:]


def one_element(dx, dweight, dbias):
    dweight = dweight.copy()
    dweight[3] *= 1 + 1e-9
    return dx, dweight, dbias


def by_name(report):
    return {each.name: each for each in report.inputs}


# It holds


def test_a_right_backward_is_proven_by_complex_step_to_twelve_digits():
    report = op(layernorm, layernorm_backward, (X, WEIGHT, BIAS))
    assert report.ok
    assert bool(report)
    assert report.verdict == "right"
    assert [each.name for each in report.inputs] == ["x", "weight", "bias"]
    for each in report.inputs:
        assert (each.method, each.verdict, each.tolerance) == ("complex step", "right", 1e-12)
        assert each.error < 1e-14
    assert "all 20 elements" in str(report)
    report.raise_if_wrong()


def test_saved_values_go_from_forward_to_backward():
    def forward(x, weight):
        xhat, rstd = normalised(x)
        return xhat * weight, (xhat, rstd)

    def backward(dy, saved, x, weight):
        xhat, rstd = saved
        g = dy * weight
        dx = rstd * (g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True))
        return dx, (dy * xhat).sum(axis=0)

    assert op(forward, backward, (X, WEIGHT), saved=True).ok
    assert op(forward, lambda dy, saved, x, w: (x * 0, w * 0), (X, WEIGHT), saved=True).verdict == "wrong"


def test_a_layer_that_remembers_its_last_forward_can_be_checked():
    class Square:
        def forward(self, x):
            self.x = x.copy()
            return x * x

        def backward(self, dy):
            return 2 * dy * self.x

    layer = Square()
    assert op(layer.forward, lambda dy, x: layer.backward(dy), X).ok


def test_several_outputs_and_constants_and_integers():
    def forward(x, index, power, y):
        return (x**power)[index], np.sin(x) * y

    def backward(dy, x, index, power, y):
        dx = np.cos(x) * y * dy[1]
        np.add.at(dx, index, dy[0] * power * x[index] ** (power - 1))
        return dx, None, None, (np.sin(x) * dy[1]).sum()

    inputs = (X, np.array([0, 2, 2]), 3, np.array(0.7))
    assert op(forward, backward, inputs).ok
    assert op(forward, lambda *given: (backward(*given)[0], backward(*given)[3]), inputs).ok  # only what is asked for


def test_wrt_picks_inputs():
    report = op(layernorm, wrong_layernorm(lambda dx, dw, db: (None, dw, None)), (X, WEIGHT, BIAS), wrt=[1])
    assert report.ok
    assert [each.name for each in report.inputs] == ["weight"]


def test_torch_in_float64_and_complex128():
    x, weight = torch.tensor(X), torch.tensor(WEIGHT)

    def backward(dy, x, weight):
        return dy * weight * (1 - torch.tanh(x * weight) ** 2), (dy * x * (1 - torch.tanh(x * weight) ** 2)).sum(0)

    report = op(lambda x, weight: torch.tanh(x * weight), backward, (x, weight))
    assert report.ok, report
    assert {each.method for each in report.inputs} == {"complex step"}
    wrong = op(
        lambda x, weight: torch.tanh(x * weight), lambda *given: (backward(*given)[0] * (1 + 1e-9), None), (x, weight)
    )
    assert [each.verdict for each in wrong.inputs] == ["wrong", "wrong"]
    assert torch.equal(x, torch.tensor(X))


@pytest.mark.parametrize(("factor", "verdict"), [(1, "right"), (1 + 1e-9, "wrong")])
def test_a_product_in_torch_has_a_complex_step(factor, verdict):
    """torch multiplies no complex matrix by a real one."""
    x, weight = torch.from_numpy(RNG.normal(size=(4, 3))), torch.from_numpy(RNG.normal(size=(3, 5)))
    report = op(lambda x, weight: x @ weight, lambda dy, x, w: (factor * (dy @ w.T), x.T @ dy), (x, weight))
    assert report.verdict == verdict
    assert {each.method for each in report.inputs} == {"complex step"}


def test_a_single_number_of_torch():
    report = op(lambda x: x**3, lambda dy, x: 3 * x * x * dy, torch.tensor(1.5, dtype=torch.float64))
    assert report.verdict == "right", report
    narrow = op(lambda x: x**3, lambda dy, x: 3 * x * x * dy, torch.tensor(1.5))
    assert narrow.verdict == "right", narrow
    assert op(lambda x: x**3, lambda dy, x: 2 * x * x * dy, torch.tensor(1.5)).verdict == "wrong"


def test_torch_autograd_itself_is_a_backward():
    def backward(dy, x):
        x = x.requires_grad_()
        return torch.autograd.grad(torch.nn.functional.gelu(x), x, dy)[0]

    report = op(torch.nn.functional.gelu, backward, torch.tensor(X))
    assert report.ok, report
    assert report.inputs[0].method == "differences"
    assert "does not take complex input" in report.inputs[0].notes[0]


def test_a_gradient_of_zero_up_to_rounding_agrees_with_zero():
    def softmax(x):
        e = np.exp(x - x.real.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def backward(dy, x):
        p = softmax(x)
        return p * (dy - (p * dy).sum(axis=-1, keepdims=True))

    assert op(softmax, backward, X, dy=np.ones_like(X)).ok
    assert op(softmax, lambda dy, x: x * 0, X, dy=np.ones_like(X)).ok
    assert op(softmax, lambda dy, x: backward(dy, x) + 1e-9 * dy, X, dy=np.ones_like(X)).verdict == "wrong"


# What is wrong is called wrong


@pytest.mark.parametrize(
    ("backward", "wrong"),
    [
        (wrong_layernorm(lambda dx, dw, db: (-dx, dw, db)), "x"),
        (wrong_layernorm(lambda dx, dw, db: (dx * (1 + 1e-9), dw, db)), "x"),
        (wrong_layernorm(lambda dx, dw, db: (dx, dw / 4, db)), "weight"),
        (wrong_layernorm(one_element), "weight"),
        (wrong_layernorm(lambda dx, dw, db: (dx, dw, db[::-1].copy())), "bias"),
        (wrong_layernorm(lambda dx, dw, db: (dx, dw, None)), "bias"),
        (wrong_layernorm(lambda dx, dw, db: (dx, dw, db * 0)), "bias"),
        (without_last_term, "x"),
    ],
    ids=["sign", "1+1e-9", "mean for sum", "one element", "reversed", "None", "zero", "missing term"],
)
def test_a_wrong_gradient_is_found_and_the_others_are_not_blamed(backward, wrong):
    report = op(layernorm, backward, (X, WEIGHT, BIAS))
    assert not report
    assert report.verdict == "wrong"
    assert [each.name for each in report.inputs if each.verdict == "wrong"] == [wrong]
    with pytest.raises(TapelessError, match=f"d{wrong}: wrong"):
        report.raise_if_wrong()


def test_the_place_and_both_values_are_named():
    report = op(layernorm, wrong_layernorm(one_element), (X, WEIGHT, BIAS), dy=np.ones_like(X))
    each = by_name(report)["weight"]
    true = normalised(X)[0].sum(axis=0)[3]
    assert each.position == (3,)
    assert each.true == pytest.approx(true, rel=1e-14)
    assert each.found == pytest.approx(true * (1 + 1e-9), rel=1e-14)
    assert str((3,)) in str(report)


def test_a_transposed_gradient_of_a_square_matrix():
    def backward(dy, x, weight):
        return dy @ weight.T, dy.T @ x

    report = op(lambda x, weight: x @ weight, backward, (X[:, :4], SQUARE))
    assert [each.verdict for each in report.inputs] == ["right", "wrong"]


def test_one_wrong_element_among_many_is_found_and_named():
    big = RNG.normal(size=(100, 120))

    def backward(dy, x):
        dx = dy * np.cos(x)
        dx[61, 17] += 1e-7
        return dx

    (each,) = op(np.sin, backward, big).inputs
    assert (each.verdict, each.position) == ("wrong", (61, 17))
    assert each.checked == "8 random directions and 64 of 12,000 elements"


def test_one_wrong_element_among_many_is_found_by_differences():
    big = RNG.normal(size=(30, 40))

    def backward(dy, x):
        dx = dy * np.sign(x) * np.cos(x)
        dx[21, 17] += 1e-4
        return dx

    (each,) = op(lambda x: np.sin(np.abs(x)), backward, big).inputs
    assert (each.verdict, each.position, each.method) == ("wrong", (21, 17), "differences")
    assert "4 random directions" in each.checked
    assert op(lambda x: np.sin(np.abs(x)), lambda dy, x: dy * np.sign(x) * np.cos(x), big).ok


@pytest.mark.parametrize("factor", [1 + 1e-6, 1 - 3e-8])
def test_a_small_factor_is_found_by_differences(factor):
    report = op(np.vectorize(math.erf), lambda dy, x: factor * dy * 2 / np.sqrt(np.pi) * np.exp(-x * x), X)
    assert report.verdict == "wrong"
    assert report.inputs[0].method == "differences"


@pytest.mark.parametrize(
    "backward",
    [
        lambda dy, x: np.clip(2 * dy, -5, 5),
        lambda dy, x: np.where(np.abs(dy) < 100, 2, 3) * dy,
        lambda dy, x: 2 * dy + 1e-6 * (np.abs(dy) > 50),
    ],
)
def test_a_backward_that_is_not_linear_in_dy_is_wrong(backward):
    report = op(lambda x: 2 * x, backward, X)
    assert report.verdict == "wrong"
    assert "not linear in dy" in str(report)


# What is not analytic is said to be so


@pytest.mark.parametrize(
    ("forward", "backward", "reason"),
    [
        (np.abs, lambda dy, x: dy * np.sign(x), "not analytic"),
        (lambda x: x.real**2 + 0 * x, lambda dy, x: 2 * dy * x, "not analytic"),
        (lambda x: np.conj(x) * x, lambda dy, x: 2 * dy * x, "not analytic"),
        (lambda x: np.conj(x) ** 3, lambda dy, x: 3 * dy * x**2, "not analytic"),
        (lambda x: np.abs(x).max(axis=1), None, "not analytic"),
        (lambda x: np.sqrt(x * x.conj()) + x, lambda dy, x: dy * (np.sign(x) + 1), "not analytic"),
        (lambda x: np.floor(x.real) * x, lambda dy, x: dy * np.floor(x), None),
        (lambda x: np.where(x > 0.1, x * x, x), lambda dy, x: dy * np.where(x > 0.1, 2 * x, 1), None),
        (lambda x: np.exp(x.astype(np.float64)), lambda dy, x: dy * np.exp(x), "discards the imaginary part"),
        (lambda x: np.vectorize(math.sin)(x), lambda dy, x: dy * np.cos(x), "does not take complex input|discards"),
        (lambda x: x * x if x.dtype == float else x * x * 1.5, lambda dy, x: 2 * dy * x, "another result"),
        (lambda x: x * x if x.dtype == float else (x * x).sum(), lambda dy, x: 2 * dy * x, "other shapes"),
    ],
    ids=[
        "abs",
        "real-square",
        "conj-product",
        "conj-cube",
        "abs-max",
        "conj-root",
        "floor",
        "where",
        "float64-cast",
        "math-only",
        "by-type",
        "by-shape",
    ],
)
def test_a_forward_that_is_not_analytic_goes_to_differences_and_says_why(forward, backward, reason):
    def largest(dy, x):
        dx = np.zeros_like(x)
        place = np.abs(x).argmax(axis=1)
        dx[np.arange(4), place] = dy * np.sign(x[np.arange(4), place])
        return dx

    backward = backward or largest
    (each,) = op(forward, backward, X).inputs
    assert each.verdict == "right", each
    assert (each.method == "differences") == (reason is not None)
    if reason:
        assert any(piece in each.notes[0] for piece in reason.split("|"))
        assert each.bound < 1e-8
    (each,) = op(forward, lambda dy, x: (1 + 1e-6) * backward(dy, x), X).inputs
    assert each.verdict == "wrong"


def test_torch_casting_to_real_is_noticed_every_time():
    for _ in range(2):
        (each,) = op(lambda x: torch.sin(x.to(torch.float64)), lambda dy, x: dy * torch.cos(x), torch.tensor(X)).inputs
        assert each.verdict == "right"
        assert "discards the imaginary part" in each.notes[0]


# What cannot be told is not passed


@pytest.mark.parametrize("slope_at_0", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("forward", [lambda x: np.maximum(x, 0), lambda x: np.maximum(x.real, 0)], ids=["max", "real"])
def test_a_relu_at_its_kink(forward, slope_at_0):
    x = np.array([-1.0, 0.0, 0.5])
    report = op(forward, lambda dy, x: dy * np.where(x > 0, 1, np.where(x < 0, 0, slope_at_0)), x)
    assert report.verdict == "cannot tell"
    assert report.inputs[0].position == (1,)
    assert "kink" in str(report)
    with pytest.raises(TapelessError, match="cannot tell"):
        report.raise_if_wrong()


@pytest.mark.parametrize("seed", range(8))
def test_a_kink_alone_is_never_taken_for_smooth(seed):
    """Whichever way the random directions point."""
    for forward in (lambda x: np.maximum(x, 0), np.abs, lambda x: (x.real >= 0) * 1.0 + 0 * x):
        assert op(forward, lambda dy, x: dy * (x > 0), np.array([0.0]), seed=seed).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        (lambda x: np.sin(x.astype(np.float32)).astype(np.float64), lambda dy, x: dy * np.cos(x)),
        (lambda x: x + 1e8 - 1e8, lambda dy, x: dy * 1.0),
        (lambda x: np.round(np.sin(x.real) * 1e7) / 1e7, lambda dy, x: dy * np.cos(x)),
        (lambda x: np.sin(x.real) + 1e-9 * np.sin(1e10 * x.real), lambda dy, x: dy * np.cos(x)),
    ],
    ids=["float32", "cancellation", "rounded", "noise"],
)
def test_noise_is_said(forward, backward):
    for report in (op(forward, backward, X), op(forward, lambda dy, x: (1 + 1e-7) * backward(dy, x), X)):
        assert report.verdict == "cannot tell"
        assert "rough" in str(report)


@pytest.mark.parametrize("forward", [np.sign, lambda x: np.heaviside(x, 0.5), lambda x: (x >= 0) * 1.0])
def test_a_jump_is_said(forward):
    assert op(forward, lambda dy, x: dy * 0.0, np.array([0.0, 1.0, -1.0])).verdict == "cannot tell"
    assert op(forward, lambda dy, x: dy * 0.0, np.array([0.3, 1.0, -1.0])).verdict == "right"


def test_the_edge_of_the_domain():
    def root(x):
        return np.array([math.sqrt(value) for value in x])

    x = np.array([1e-3, 1.0, 4.0])
    assert op(root, lambda dy, x: dy / (2 * np.sqrt(x)), x).ok
    report = op(root, lambda dy, x: dy * 1.0, np.array([0.0, 1.0]))
    assert report.inputs[0].verdict == "wrong"  # at 1, where it can be told
    assert op(root, lambda dy, x: dy / np.array([9.0, 2.0]), np.array([0.0, 1.0])).verdict == "cannot tell"


@cases(30)
@given(st.integers(0, 2**32), st.floats(-3, 3), st.floats(0.01, 30))
def test_the_bound_holds_the_truth(seed, shift, frequency):
    """Random sums of smooth functions with kinks nearby: the derivative lies within the bound, always."""
    rng = np.random.default_rng(seed)
    kinks, place = rng.normal(size=3), shift

    def function(x):
        return np.sin(frequency * x) + np.exp(x / 3) + 0.3 * np.abs(x - kinks).sum()

    true = frequency * np.cos(frequency * place) + np.exp(place / 3) / 3 + 0.3 * np.sign(place - kinks).sum()
    found = slope(lambda t: [np.asarray(function(place + t))], [np.asarray(1.0)], 0.1234, 0.0)
    assert abs(found.value - true) <= found.bound + 1e-15 * abs(true)
    if np.abs(place - kinks).min() > 1e-2 * min(1, 1 / frequency):
        assert found.bound <= 1e-6


@pytest.mark.parametrize("function", [np.sin, np.exp, lambda x: 1 / (3 + x), lambda x: np.sin(20 * x) / 20])
def test_the_bound_is_tight_where_the_function_is_smooth(function):
    """Sixth order, and a jump without first and third powers: anything less does not come so close."""
    true = function(np.asarray(0.7 + 1e-30j)).imag / 1e-30
    found = slope(lambda t: [np.asarray(function(0.7 + t))], [np.asarray(1.0)], 0.1234, 0.0)
    assert abs(found.value - true) <= found.bound <= 3e-12
    assert found.smooth


@cases(100)
@given(st.integers(0, 2**32), st.sampled_from([2.0**-23, 1e-6, 1e-7, 1e-9]))
def test_the_bound_holds_the_truth_of_what_is_rounded_inside(seed, grain):
    """The slope that the function would have without the rounding lies within the bound: agreement is no accident."""
    place = float(np.random.default_rng(seed).normal())

    def function(x):
        return np.asarray(np.round(np.sin(x) / grain) * grain)

    found = slope(lambda t: [function(place + t)], [np.asarray(1.0)], 0.1234, 0.0)
    assert abs(found.value - np.cos(place)) <= found.bound
    assert found.bound > grain / 10
    assert not found.smooth


# What breaks the rules is refused


CALLS: list[int] = []


def unsteady(x):
    CALLS.append(len(CALLS))
    return x * (1 + 1e-15 * len(CALLS))


def running_mean(x, state=[0.0]):  # noqa: B006
    state[0] = 0.9 * state[0] + 0.1 * float(x.real.mean())
    return x - state[0]


def changes_input(x):
    x *= 2
    return x + 0


def changes_dy(dy, x):
    dy *= 2
    return dy + 0


def changes_x(dy, x):
    x += 1
    return 2 * dy


def twice(x):
    return 2 * x


def twice_backward(dy, x):
    return 2 * dy


@pytest.mark.parametrize(
    ("forward", "backward", "sentence"),
    [
        (lambda x: x, lambda dy, x: dy.copy(), "output 0 of the forward shares its memory with the input x"),
        (lambda x: x.reshape(-1), lambda dy, x: dy.reshape(x.shape).copy(), "shares its memory with the input x"),
        (lambda x: x + 0, lambda dy, x: dy, "the gradient of x shares its memory with dy"),
        (lambda x: x.sum(), lambda dy, x: np.broadcast_to(dy, x.shape), "shares its memory with dy"),
        (lambda x: x * x / 2, lambda dy, x: x, "the gradient of x shares its memory with the input x"),
        (changes_input, twice_backward, "the forward changes its input x"),
        (twice, changes_dy, "the backward changes dy"),
        (twice, changes_x, "the backward changes its input x"),
        (unsteady, twice_backward, "output 0 of the forward differs between two calls"),
        (running_mean, twice_backward, "output 0 of the forward differs between two calls"),
        (twice, lambda dy, x: dy + unsteady(dy), "the gradient of x differs between two calls"),
        (lambda x: np.log(x), twice_backward, "output 0 of the forward is nan at"),
        (twice, lambda dy, x: 2 * dy / (x > 0), "the gradient of x is -?inf at"),
        (twice, lambda dy, x: np.full_like(x, np.nan), "the gradient of x is nan at"),
        (twice, lambda dy, x: 2 * dy.sum(axis=0), r"the gradient of x has shape \(5,\), but the input has \(4, 5\)"),
        (twice, lambda dy, x: (2 * dy, 2 * dy), "returned 2 gradients where 1"),
        (twice, lambda dy, x: (2 * dy).astype(np.float32), "the gradient of x is float32"),
        (lambda x: x.astype(np.float32), twice_backward, "output 0 of the forward is float32"),
        (lambda x: (2 * x, "mask"), twice_backward, "output 1 of the forward is a str"),
        (lambda x: None, twice_backward, "the forward returned None: is there a `return` at its end"),
        (twice, lambda dy, x: None, "the backward returned None: is there a `return` at its end"),
        (lambda x: (), twice_backward, "returned no output"),
        (lambda x: x[x.real > x.real.mean()][:3] if x[0, 0] == X[0, 0] else x, twice_backward, "changes the shape"),
    ],
)
def test_refused_with_a_sentence(forward, backward, sentence):
    report = op(forward, backward, X)
    assert report.verdict == "refused"
    assert not report.ok
    with pytest.raises(TapelessError, match=f"refused: .*{sentence}"):
        report.raise_if_wrong()


def test_two_gradients_must_not_be_one():
    def backward(dy, x, y):
        dx = 1.0 * dy
        return dx, dx

    report = op(lambda x, y: x + y, backward, (X, X + 1))
    assert "the gradient of y shares its memory with the gradient of x" in report.reason


def test_a_torch_alias_is_refused():
    report = op(lambda x: x * 1, lambda dy, x: dy.view(-1).view(4, 5), torch.tensor(X))
    assert "the gradient of x shares its memory with dy" in report.reason


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"inputs": np.array([1.0, np.nan])}, r"x holds nan at \(1,\)"),
        ({"inputs": (3, "word")}, "no input is a float64 array"),
        ({"forward": 3}, "forward must be a function, not 3"),
        ({"backward": None}, "twice has no backward"),
        ({"forward": twice, "backward": X, "inputs": None}, "twice has no backward"),
        ({"wrt": 0}, r"^wrt must be numbers of inputs, such as \[0, 2\], not 0\.$"),
        ({"wrt": [1]}, r"wrt=\[1\]: input 1 is no float64 array"),
        ({"wrt": []}, "at least one input"),
        ({"dy": np.ones(3)}, r"dy must have the shape of the output, \(4, 5\), not \(3,\)"),
        ({"dy": 0 * X}, "not all of them 0"),
        ({"tolerance": 0}, "tolerance must be a number between 0 and 1, not 0"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"saved": 1}, "saved must be True or False"),
        ({"saved": True}, r"must return \(y, saved\)"),
        ({"forward": lambda x: x @ x}, "the forward raised ValueError"),
        ({"backward": lambda dy: dy}, "the backward raised TypeError"),
    ],
)
def test_bad_arguments_get_one_sentence(given, sentence):
    arguments = {"forward": twice, "backward": twice_backward, "inputs": X} | given
    with pytest.raises(TapelessError, match=sentence):
        op(**arguments).raise_if_wrong()


@pytest.mark.parametrize("forward", [lambda x: x[:0], lambda x: (x[:0], x[:0])])
def test_an_output_with_nothing_in_it_gets_one_sentence(forward):
    with pytest.raises(TapelessError, match="nothing but empty arrays"):
        op(forward, lambda dy, x: 0 * x, np.ones(3))


def test_an_empty_output_beside_another_is_no_trouble():
    assert op(lambda x: (x * x, x[:0]), lambda dy, x: 2 * dy[0] * x, np.ones(3))


SIGNED = (lambda x: np.abs(x) * x, lambda dy, x: 2 * dy * np.abs(x))  # by differences alone
SQUARED = (lambda x: x * x, lambda dy, x: 2 * dy * x)


@pytest.mark.parametrize(
    ("pair", "size", "verdict"),
    [
        (SQUARED, 1e-160, "right"),  # the squares are denormal or 0, and the complex step does not mind
        (SIGNED, 1e-160, "cannot tell"),
        (SQUARED, 1e-170, "right"),
        (SIGNED, 1e-170, "cannot tell"),
        (SQUARED, 1e-300, "cannot tell"),
        (SQUARED, 1e-100, "right"),
        (SIGNED, 1e-100, "right"),
    ],
)
def test_where_the_forward_underflows_a_right_backward_is_not_called_wrong(pair, size, verdict):
    forward, backward = pair
    report = op(forward, backward, np.array([1.0, -0.3, 0.7]) * size)
    assert report.verdict == verdict, report


def test_a_wrong_backward_of_tiny_inputs_is_still_wrong():
    assert op(lambda x: x * 1.0, lambda dy, x: 2 * dy, np.full(3, 1e-300)).verdict == "wrong"


def test_a_tolerance_of_ones_own():
    def off(dy, x):
        return 2 * dy * (1 + 1e-9)

    assert op(twice, off, X).verdict == "wrong"
    assert op(twice, off, X, tolerance=1e-8).verdict == "right"


def test_the_ten_lines_exit_with_1_when_wrong():
    script = """
import numpy as np
from tapeless.check import op
op(lambda x: x**3, lambda dy, x: {} * dy * x**2, np.linspace(1, 2, 5)).raise_if_wrong()
"""
    for factor, code in ((3, 0), (2, 1)):
        run = subprocess.run([sys.executable, "-c", script.format(factor)], capture_output=True, text=True)
        assert run.returncode == code
        assert ("dx: wrong" in run.stderr) == bool(code)
