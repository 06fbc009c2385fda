"""What holds for every op at any shape, told from its Spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.check.complex_step import STEP
from tapeless.check.tolerances import TOLERANCES
from tapeless.ops import OPS
from tapeless.ops.contract import Array
from tests.properties.random_ops import Inputs, backward, forward, random_dys, random_inputs
from tests.random_cases import cases

DIFFERENTIABLE = [name for name, op in OPS.items() if op.SPEC.backward is not None]
TAKES_DY = [name for name in DIFFERENTIABLE if not OPS[name].SPEC.fused]
FUSED = [name for name in DIFFERENTIABLE if OPS[name].SPEC.fused]
PASSES = [name for name, op in OPS.items() if op.SPEC.passes]
ADDING = [name for name in DIFFERENTIABLE if OPS[name].SPEC.backward.adds]
# Sequences or rows that know nothing of each other; at random, a row's numbers hang on which row it is.
BY_ROWS = [
    name
    for name, op in OPS.items()
    if any(letters[:1] in ("R", "B") for letters in op.SPEC.shapes.values()) and not op.SPEC.random
]

seeds = st.integers(0, 2**32 - 1)
few = cases(25)


def close(found: Any, true: Any) -> None:
    found, true = np.asarray(found), np.asarray(true)
    assert found.shape == true.shape
    assert np.isfinite(found).all()
    if true.size:
        assert np.abs(found - true).max() <= TOLERANCES["complex step"] * max(1.0, float(np.abs(true).max()))


def slope(inputs: Inputs, argument: str, direction: Array) -> dict[str, Array]:
    """J·v by complex step: how every output changes as one input moves along a direction."""
    moved = inputs.replaced(**{argument: inputs.arrays[argument] + 1j * STEP * direction})
    return {output: array.imag / STEP for output, array in forward(moved, np.complex128).items()}


def along(slopes: Mapping[str, Array], dys: Mapping[str, Array]) -> float:
    """⟨Jv, u⟩, over all outputs through which a gradient comes back. A fused loss is its own: u = 1."""
    return float(sum((slopes[output] * dy).sum() for output, dy in dys.items()) if dys else slopes["loss"][0])


def drawn(name: str, seed: int) -> tuple[np.random.Generator, Inputs, dict[str, Array]]:
    rng = np.random.default_rng(seed)
    inputs = random_inputs(name, rng)
    return rng, inputs, random_dys(inputs, rng)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@few
@given(seed=seeds)
def test_complex_step_at_single_elements(name: str, seed: int) -> None:
    """One element of one input at a time, the first and the last among them."""
    rng, inputs, dys = drawn(name, seed)
    gradients, _ = backward(inputs, dys)
    for gradient, found in gradients.items():
        argument = gradient[1:]
        for index in {0, found.size - 1, *rng.integers(0, found.size, 4).tolist()}:
            unit = np.zeros(found.size)
            unit[index] = 1
            close(found.reshape(-1)[index], along(slope(inputs, argument, unit.reshape(found.shape)), dys))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@few
@given(seed=seeds)
def test_the_backward_is_the_adjoint_of_the_slope(name: str, seed: int) -> None:
    """⟨J·v, u⟩ = ⟨v, Jᵀ·u⟩ for all inputs at once: J from the complex step, Jᵀ from the backward."""
    rng, inputs, dys = drawn(name, seed)
    gradients, _ = backward(inputs, dys)
    directions = {gradient[1:]: rng.normal(size=found.shape) for gradient, found in gradients.items()}
    there = sum(along(slope(inputs, argument, v), dys) for argument, v in directions.items())
    back = sum((gradients[f"d{argument}"] * v).sum() for argument, v in directions.items())
    close(there, back)


@pytest.mark.parametrize("name", TAKES_DY)
@few
@given(seed=seeds, a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_the_backward_is_linear_in_dy(name: str, seed: int, a: float, b: float) -> None:
    rng, inputs, one = drawn(name, seed)
    two = random_dys(inputs, rng)
    mixed, _ = backward(inputs, {output: a * one[output] + b * two[output] for output in one})
    first, second = backward(inputs, one)[0], backward(inputs, two)[0]
    for gradient, found in mixed.items():
        close(found, a * first[gradient] + b * second[gradient])


@pytest.mark.parametrize("name", FUSED)
@few
@given(seed=seeds, factor=st.floats(0.25, 4))
def test_a_loss_and_its_gradients_are_shares_of_the_count(name: str, seed: int, factor: float) -> None:
    """What linearity in dy is to the others: the same rows among `factor` times as many."""
    _, inputs, _ = drawn(name, seed)
    gradients, loss = backward(inputs, {})
    thinned, thin_loss = backward(inputs.replaced(count=factor * inputs.arrays["count"]), {})
    assert loss is not None
    assert thin_loss is not None
    close(thin_loss, loss / factor)
    for gradient, found in thinned.items():
        close(found, gradients[gradient] / factor)


@pytest.mark.parametrize("name", FUSED)
@few
@given(seed=seeds)
def test_a_fused_backward_yields_the_loss_of_the_forward(name: str, seed: int) -> None:
    _, inputs, _ = drawn(name, seed)
    close(backward(inputs, {})[1], forward(inputs)["loss"])


@pytest.mark.parametrize("name", ADDING)
@few
@given(seed=seeds)
def test_adding_adds_and_writing_overwrites(name: str, seed: int) -> None:
    """Any of the outputs that may be added to, in any combination."""
    rng, inputs, dys = drawn(name, seed)
    adds = OPS[name].SPEC.backward.adds
    alone = backward(inputs, dys)[0]
    before = {output: rng.normal(size=alone[output].shape) for output in adds if output in alone and rng.integers(2)}
    together = backward(inputs, dys, into=before)[0]
    for gradient, found in together.items():
        close(found, alone[gradient] + before.get(gradient, 0))


@pytest.mark.parametrize("name", PASSES)
@few
@given(seed=seeds)
def test_what_passes_is_conserved(name: str, seed: int) -> None:
    """Every input moves the output by just as much: so one gradient serves all of them, and no backward is needed."""
    rng, inputs, _ = drawn(name, seed)
    for argument in OPS[name].SPEC.forward.reads:
        v = rng.normal(size=inputs.shape(argument))
        assert np.abs(slope(inputs, argument, v)["y"] - v).max() <= 1e-15 * np.abs(v).max()


def permuted(inputs: Inputs, arrays: Mapping[str, Array], orders: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays that have a row per row of the batch, in another order; the others as they are."""
    leading = {argument: (inputs.spec.letters(argument) or [""])[0] for argument in arrays}
    return {a: x[orders[leading[a]]] if leading[a] in orders else x for a, x in arrays.items()}


@pytest.mark.parametrize("name", BY_ROWS)
@few
@given(seed=seeds)
def test_rows_know_nothing_of_each_other(name: str, seed: int) -> None:
    """In another order they give the same results in that order, and what is summed over them stays."""
    rng = np.random.default_rng(seed)
    inputs = random_inputs(name, rng)
    orders = {letter: rng.permutation(inputs.dims[letter]) for letter in ("R", "B")}
    other = inputs.replaced(**permuted(inputs, inputs.arrays, orders))
    scratch = [
        a for a in inputs.spec.forward.writes if "K" in inputs.spec.letters(a)
    ]  # a chunk of rows, the last one's
    wanted = permuted(inputs, forward(inputs), orders)
    for output, found in forward(other).items():
        if output not in scratch:
            close(found, wanted[output])
    if inputs.spec.backward is not None:
        dys = random_dys(inputs, rng)
        gradients = permuted(inputs, backward(inputs, dys)[0], orders)
        for gradient, found in backward(other, permuted(inputs, dys, orders))[0].items():
            close(found, gradients[gradient])


SEES_THE_PAST = [name for name, op in OPS.items() if "causal" in op.SPEC.forward.scalars]


@pytest.mark.parametrize("name", SEES_THE_PAST)
@few
@given(seed=seeds)
def test_a_later_key_changes_no_earlier_query_and_gets_no_gradient_from_it(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = random_inputs(name, rng)
    inputs = Inputs(name, inputs.dims, inputs.arrays, {**inputs.scalars, "causal": True})
    time, keys = inputs.dims["T"], inputs.dims["S"]
    if time > keys:
        return
    query = int(rng.integers(0, time))
    hidden = query + keys - time + 1  # the first key that this query must not see
    later = {argument: inputs.arrays[argument].copy() for argument in ("k", "v")}
    for array in later.values():
        array[:, hidden:] = rng.normal(size=array[:, hidden:].shape)
    before, after = forward(inputs), forward(inputs.replaced(**later))
    assert np.array_equal(before["y"][:, : query + 1], after["y"][:, : query + 1])
    dys = random_dys(inputs, rng)
    dys["y"][:, query + 1 :] = 0
    gradients, _ = backward(inputs, dys)
    assert not gradients["dk"][:, hidden:].any()
    assert not gradients["dv"][:, hidden:].any()


@pytest.mark.parametrize("size", [0.0, 1.0, np.inf])
def test_clip_leaves_a_norm_at_its_limit_alone(size: float) -> None:
    """Where limit / norm would be 0/0 or ∞/∞, too: a limit of infinity clips nothing, not even an infinite norm."""
    scale, finite = np.full(1, np.nan), np.full(1, -1)
    OPS["clip"].forward(scale, finite, np.ones(1), np.array([size]), np.array([size]), np.array([1e19]))
    assert (scale.tolist(), finite.tolist()) == ([1.0], [size < np.inf])
