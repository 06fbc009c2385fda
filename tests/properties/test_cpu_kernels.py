"""The kernels of the cpu backend on random shapes beside the reference, each call by itself, within the lockstep table.

Small shapes run on one thread; large ones cross every limit at which a kernel cuts blocks, uses threads or holds the
vocabulary transposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.backends.backend import backend_named
from tapeless.check.lockstep import compare
from tapeless.check.ops import forms_of
from tapeless.kernels import cpu as cpu_kernels
from tapeless.ops import OPS
from tapeless.ops.contract import NONE, Array
from tapeless.program.builder import Builder
from tapeless.program.call import Call, add, update, write
from tests.properties.random_ops import EDGES, LARGE, SMALL, Inputs, forward, random_dys, random_inputs
from tests.random_cases import SOAK, cases

pytestmark = pytest.mark.usefixtures("two_threads")

cpu = backend_named("cpu")

DIRECTIONS = [(name, way) for name in OPS for way in ("forward", "backward") if getattr(OPS[name].SPEC, way)]
every_kernel = pytest.mark.parametrize(("name", "direction"), DIRECTIONS, ids=map(".".join, DIRECTIONS))


@every_kernel
@cases(16)
@given(seed=st.integers(0, 2**32 - 1), adding=st.booleans())
def test_kernels_at_small_shapes(name: str, direction: str, seed: int, adding: bool) -> None:
    judge(name, direction, seed, adding, SMALL)


@every_kernel
@cases(8 if SOAK > 1 else 2)
@given(seed=st.integers(0, 2**32 - 1), adding=st.booleans())
def test_kernels_at_large_shapes(name: str, direction: str, seed: int, adding: bool) -> None:
    judge(name, direction, seed, adding, LARGE)


@every_kernel
@pytest.mark.parametrize("edge", EDGES)
@cases(2)
@given(seed=st.integers(0, 2**32 - 1), adding=st.booleans())
def test_kernels_at_edges(name: str, direction: str, edge: str, seed: int, adding: bool) -> None:
    judge(name, direction, seed, adding, LARGE, EDGES[edge])


WITH_PRODUCTS = ("linear", "attention", "cached_attention", "classifier", "unembed", "proximity")


@pytest.mark.parametrize("name", WITH_PRODUCTS)
@cases(4)
@given(seed=st.integers(0, 2**32 - 1), adding=st.booleans(), large=st.booleans())
def test_random_kernels_with_products_of_our_own(name: str, seed: int, adding: bool, large: bool) -> None:
    before = cpu_kernels.gemm_library()
    cpu_kernels.set_gemm_library("own")
    try:
        for direction in (way for op, way in DIRECTIONS if op == name):
            judge(name, direction, seed, adding, LARGE if large else SMALL)
    finally:
        cpu_kernels.set_gemm_library(before)


def judge(
    name: str, direction: str, seed: int, adding: bool, limits: Mapping[str, int], dims: Mapping[str, int] | None = None
) -> None:
    rng = np.random.default_rng(seed)
    inputs = random_inputs(name, rng, limits, dims)
    while inputs.dims["C"] < 3:  # over one channel a norm's dx is zero, over two nearly: differences of equal numbers
        inputs = random_inputs(name, rng, limits, dims)
    forms = forms_of(inputs.spec.signature(direction), dict(inputs.arrays))
    call = call_of(inputs, direction, adding, forms[0] if rng.integers(2) else forms[rng.integers(len(forms))])
    assert_agreement(call, arrays_of(inputs, call, rng))


def assert_agreement(call: Call, arrays: dict[str, Array]) -> None:
    true = {
        argument: array.astype(np.float64 if array.dtype == np.float32 else array.dtype)
        for argument, array in arrays.items()
    }
    for difference in compare(call, arrays, true, cpu):
        assert difference.ok, str(difference)


def call_of(inputs: Inputs, direction: str, adding: bool, without: frozenset[str] = NONE) -> Call:
    spec, p = inputs.spec, Builder()
    signature, values = spec.signature(direction), dict[str, Any]()
    optional = {argument for argument in spec.forward.optional if argument not in inputs.arrays}
    for argument in signature.arguments:
        if {argument, argument.removeprefix("d")} & optional or argument in without:
            continue
        buffer = p.buffer("input", argument, inputs.shape(argument), spec.roles.get(argument))
        if argument in signature.updates:
            values[argument] = update(buffer)
        elif argument in signature.writes:
            values[argument] = add(buffer) if adding and argument in signature.adds else write(buffer)
        else:
            values[argument] = buffer
    values |= {scalar: inputs.scalars[scalar] for scalar in signature.scalars}
    p.call(inputs.name, direction, values, ("a random call",))
    (call,) = p.build().calls
    return call


def arrays_of(inputs: Inputs, call: Call, rng: np.random.Generator) -> dict[str, Array]:
    """What the call reads: the inputs, what the forward saved, a random dy. What it writes is NaN until then."""
    known = {**forward(inputs), **inputs.arrays, **{f"d{o}": dy for o, dy in random_dys(inputs, rng).items()}}
    arrays = {}
    for argument in call.arguments:
        if argument.mode == "write":
            array = inputs.empty(argument.name, np.float64)
        elif argument.mode == "add":
            array = rng.normal(size=inputs.shape(argument.name))
        else:
            array = known[argument.name]
        if inputs.spec.is_number(argument.name):
            array = array.astype(np.float32)
            times = parts_of(inputs, argument.name)
            array = among_columns(array, times) if times else array
        arrays[argument.name] = array.copy() if array.base is None else array
    return arrays


# Queries, keys and values are columns of one product, or of two: how many times as wide it is, each in its own way.
PARTS = {"q": 3, "k": 4, "v": 5, "dq": 4, "dk": 5, "dv": 3}
# What is turned or normed head by head, and the halves of a gated activation, are columns too.
PARTS |= {"gate": 3, "up": 4, "dgate": 3, "dup": 4}
IN_PLACE = {"rope": {"x": 3, "y": 4, "dx": 5, "dy": 3}, "rmsnorm": {"x": 3, "y": 4, "dx": 5, "dy": 3}}


def parts_of(inputs: Inputs, argument: str) -> int | None:
    among = PARTS.get(argument) if inputs.spec.letters(argument)[-1] in ("C", "E", "F") else None
    return among or IN_PLACE.get(inputs.name, {}).get(argument)


def among_columns(array: Array, times: int) -> Array:
    """The same numbers, in the middle of a wider array that holds NaN beside them."""
    width = array.shape[-1]
    wide = np.full((*array.shape[:-1], times * width), np.nan, array.dtype)
    wide[..., width : 2 * width] = array
    return wide[..., width : 2 * width]


def test_relu_passes_nothing_back_where_its_input_is_zero() -> None:
    """The derivative there is a choice: ours is 0, in every backend. Random numbers never are 0."""
    from tapeless.ops.relu import cpu as relu

    x, dy = np.array([-1, -0.0, 0.0, 1], np.float32), np.full(4, 7, np.float32)
    ours, true = np.full(4, np.nan, np.float32), np.full(4, np.nan)
    for run in relu.backward(ours, dy, x):
        run()
    OPS["relu"].backward(true, dy, x)
    assert ours.tolist() == true.tolist() == [0, 0, 0, 7]


@pytest.mark.parametrize("size", [0.0, 1.0, np.inf])
def test_clip_leaves_a_norm_at_its_limit_alone(size: float) -> None:
    """As the reference does: where limit / norm would be 0/0 or ∞/∞, too."""
    from tapeless.ops.clip import cpu as clip

    scale, finite = np.full(1, np.nan), np.full(1, -1)
    for run in clip.forward(scale, finite, np.ones(1), np.array([size]), np.array([size]), np.array([1e19])):
        run()
    assert (scale.tolist(), finite.tolist()) == ([1.0], [size < np.inf])


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("vocab", [700, 1500])
def test_classifier_with_one_score_far_above_the_others(vocab: int, direction: str) -> None:
    """Wherever in the vocabulary it is, and at the ends of what one thread, or one round, looks through. A maximum that
    is not the largest overflows the exp."""
    peaks = [0, 1, 31, 32, vocab // 2 - 1, vocab // 2, vocab // 2 + 1, vocab - 2, vocab - 1]
    peaks *= 12  # enough for two threads
    rng = np.random.default_rng(0)
    x, weight = np.eye(len(peaks)), rng.normal(size=(vocab, len(peaks)))
    weight[peaks, range(len(peaks))] = 300.0
    dims = {"R": len(peaks), "C": len(peaks), "V": vocab, "K": len(peaks)}
    arrays = {"x": x, "weight": weight, "targets": rng.integers(0, vocab, len(peaks)), "count": np.array([108.0])}
    inputs = Inputs("classifier", dims, arrays, {})
    call = call_of(inputs, direction, adding=False)
    given = arrays_of(inputs, call, rng)
    true = {
        name: array.astype(np.float64 if array.dtype == np.float32 else array.dtype) for name, array in given.items()
    }
    for difference in compare(call, given, true, cpu):
        assert difference.ok, str(difference)


def test_tanh_to_the_last_digits() -> None:
    """Within two units in the last place at any size, on both sides of every seam."""
    from tapeless.ops.tanh import cpu as tanh

    size = np.concatenate([np.geomspace(1e-6, 20, 40_000), np.linspace(0.5, 0.75, 40_000)])
    x = np.concatenate([-size, size]).astype(np.float32)
    y = np.full_like(x, np.nan)
    for run in tanh.forward(y, x):
        run()
    true = np.tanh(x.astype(np.float64))
    assert (np.abs(y - true) / np.spacing(np.abs(true).astype(np.float32))).max() <= 2


@pytest.mark.parametrize("adding", [False, True])
def test_layernorm_backward_of_values_near_each_other(adding: bool) -> None:
    """What the saved mean has lost to rounding is then a part of every value's distance from it, and is taken off."""
    from tapeless.ops.layernorm import cpu as layernorm

    rng = np.random.default_rng(0)
    rows, channels = 32, 8
    x = (3000 + 1e-2 * rng.normal(size=(rows, channels))).astype(np.float32)
    weight, dy = rng.normal(size=channels).astype(np.float32), rng.normal(size=(rows, channels)).astype(np.float32)
    wide = [each.astype(np.float64) for each in (x, weight, dy)]
    y, mean, rstd = np.empty((rows, channels)), np.empty(rows), np.empty(rows)
    OPS["layernorm"].forward(y, mean, rstd, wide[0], wide[1], np.zeros(channels), 1e-12)
    shapes = (rows, channels), (channels,), (channels,)
    true, ours = [np.zeros(shape) for shape in shapes], [np.zeros(shape, np.float32) for shape in shapes]
    OPS["layernorm"].backward(*true, wide[2], wide[0], wide[1], mean, rstd)
    scratch = [np.empty((2, 2, channels), np.float32)]
    narrow: list[Any] = [mean.astype(np.float32), rstd.astype(np.float32)]
    adds = frozenset({"dx"}) if adding else NONE
    arguments: tuple[Any, ...] = (*ours, dy, x, weight, *narrow, scratch, adds)
    for run in layernorm.backward(*arguments):
        run()
    assert np.abs(mean - narrow[0]).max() > 1e-5, "the saved mean has lost something"
    for name, mine, truth in zip(("dx", "dweight", "dbias"), ours, true, strict=True):
        assert np.abs(mine - truth).max() <= 1e-4 * np.abs(truth).max(), name
