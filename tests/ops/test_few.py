"""Attention for few queries, on the CPU, beside the reference: right in front of a guard page."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from tapeless.kernels import cpu as cpu_kernels
from tapeless.ops.attention import cpu, cpu_few, reference
from tests.kernels.gemm_shapes import Guarded

# queries, keys, heads, heads of keys, numbers in a head, causal
SHAPES = [
    (8, 8, 4, 4, 16, False),
    (8, 8, 4, 4, 16, True),
    (1, 8, 4, 4, 16, True),
    (5, 7, 4, 2, 32, True),
    (3, 13, 2, 1, 64, True),
    (8, 64, 2, 2, 128, False),
    (7, 5, 2, 2, 16, False),
    (1, 1, 2, 2, 16, True),
    (2, 9, 4, 4, 48, True),
    (4, 16, 2, 2, 16, False),
    (6, 11, 2, 2, 112, True),
]
RNG = np.random.default_rng(3)


def guarded(shape, between):
    """Sequence behind sequence, with so many numbers between the rows."""
    batch, positions, channels = shape
    step = channels + between
    rows = Guarded(batch * positions * step).rows(batch * positions, step, channels)
    rows[...] = np.nan
    steps = (positions * rows.strides[0], *rows.strides)
    return np.lib.stride_tricks.as_strided(rows, (batch, positions, channels), steps)


def a_case(queries, keys, heads, groups, width, size=1.0, batch=3):
    sizes = ((queries, heads), (keys, groups), (keys, groups), (queries, heads))
    factors = (size, 1.0, 1.0, 1.0)
    return [
        factor * RNG.normal(size=(batch, positions, count * width))
        for (positions, count), factor in zip(sizes, factors, strict=True)
    ]


def computed(case, heads, causal, workers):
    """y, lse, dq, dk, dv, as the cpu backend has them."""
    given = [guarded(x.shape, between) for between, x in enumerate(case, 1)]
    for to, values in zip(given, case, strict=True):
        to[...] = values
    q, k, v, dy = given
    (batch, queries, channels), keys = q.shape, k.shape[1]
    lse = np.full((batch, heads, queries), np.nan, np.float32)
    y, dq, dk, dv = (guarded(x.shape, between) for between, x in enumerate((q, q, k, v), 5))
    strips = np.empty((workers, 2, 8, 80), np.float32)
    parts = [np.full((batch, keys, channels), np.nan, np.float32) for _ in "kv"] if k.shape[2] < channels else []
    assert cpu_few.is_few(q, k, heads, None, causal, 0)
    forward = cpu.forward(y, lse, q, k, v, None, causal, 0, [strips[:, 0]])
    backward = cpu.backward(dq, dk, dv, dy, q, k, v, y, lse, None, causal, 0, [strips, *parts])
    for run in [*forward, *backward]:
        run()
    return y, lse, dq, dk, dv


def defined(case, heads, causal):
    q, k, v, dy = (x.astype(np.float32).astype(np.float64) for x in case)
    y, lse = np.zeros(q.shape), np.zeros((len(q), heads, q.shape[1]))
    dq, dk, dv = (np.zeros(x.shape) for x in (q, k, v))
    reference.forward(y, lse, q, k, v, None, causal, 0)
    reference.backward(dq, dk, dv, dy, q, k, v, y, lse, None, causal, 0)
    return y, lse, dq, dk, dv


@pytest.mark.parametrize(("queries", "keys", "heads", "groups", "width", "causal"), SHAPES)
def test_what_the_reference_computes(queries, keys, heads, groups, width, causal):
    given = a_case(queries, keys, heads, groups, width)
    for found, true in zip(computed(given, heads, causal, 1), defined(given, heads, causal), strict=True):
        assert np.abs(found - true).max() <= 2e-6 * max(1.0, np.abs(true).max())


def test_bits_do_not_depend_on_threads():
    given = a_case(8, 8, 4, 4, 16)
    before = cpu_kernels.threads()
    alone = computed(given, 4, True, 1)
    try:
        cpu_kernels.set_threads(min(2, cpu_kernels.cores()))
        for _ in range(20):
            for workers in (2, 3):
                assert all(map(np.array_equal, computed(given, 4, True, workers), alone))
    finally:
        cpu_kernels.set_threads(before)


def test_a_key_that_has_all_the_weight_leaves_no_slope():
    given = a_case(8, 8, 2, 2, 16, size=4000.0)
    _, _, dq, dk, _ = computed(given, 2, False, 1)
    q, k = (x.reshape(3, 8, 2, 16) for x in given[:2])
    two = np.sort(np.einsum("bihd,bjhd->bhij", q, k) / 4)[..., -2:]
    alone = (two[..., 1] - two[..., 0] > 200).all(-1)  # of a head's queries, each
    assert alone.any()
    for b, h in zip(*np.nonzero(alone), strict=True):
        assert not dq[b, :, 16 * h : 16 * h + 16].any()
        assert not dk[b, :, 16 * h : 16 * h + 16].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("number", range(4), ids=["q", "k", "v", "dy"])
def test_what_is_not_finite_is_seen_and_stays_in_its_sequence(number, bad):
    given = a_case(8, 8, 2, 2, 16)
    given[number][1, 5] = bad
    y, lse, *gradients = computed(given, 2, True, 1)
    assert np.isfinite(y[1, 5]).any() == (number == 3)
    assert np.isfinite(lse[1, :, 5]).all() == (number >= 2)
    assert np.isfinite(lse[1, :, :5]).all()
    assert not all(np.isfinite(each[1]).all() for each in gradients)
    for whole in (y, lse, *gradients):
        assert np.isfinite(whole[[0, 2]]).all()
    if number == 2:  # values that earlier queries do not see have no slope
        assert np.isfinite(gradients[0][1, :5]).all()


def test_an_infinite_score_has_no_logarithm():
    given = a_case(8, 8, 2, 2, 16)
    given[0][...], given[1][1, 5] = np.abs(given[0]), np.inf
    lse = computed(given, 2, True, 1)[1]
    assert np.isnan(lse[1, :, 5:]).all()
    assert np.isfinite(lse[1, :, :5]).all()


def test_others_are_left_to_the_strips():
    q, k = (np.empty((2, count, 64), np.float32) for count in (8, 8))
    assert cpu_few.is_few(q, k, 4, None, True, 0)
    starts = np.zeros((2, 8), np.int64)
    more, most = (np.empty((2, count, 64), np.float32) for count in (9, 65))
    others = [
        (more, more, 4, None, True, 0),
        (q, most, 4, None, True, 0),
        (q, k, 16, None, True, 0),
        (q, k, 4, starts, True, 0),
        (q, k, 4, None, True, 3),
        (q, k[:, :7], 4, None, True, 0),
        (*(np.empty((2, 8, 2 * 144), np.float32) for _ in "qk"), 2, None, True, 0),
        (*(np.empty((2, 8, 64), ml_dtypes.bfloat16) for _ in "qk"), 4, None, True, 0),
    ]
    assert not any(cpu_few.is_few(*each) for each in others)
    assert cpu_few.is_few(q, k[:, :7], 4, None, False, 0)


def test_logarithms_and_exponentials():
    """lse of one key is its score, of several what the reference has, over all that a float32 may be asked for."""
    for size, keys in product((1e-30, 1e-3, 1.0, 80.0, 1e4, 1e18), (1, 2, 8, 64)):
        given = a_case(8, keys, 2, 2, 16, size=size)
        found, true = computed(given, 2, False, 1)[1], defined(given, 2, False)[1]
        scale = np.maximum(1e-30, np.abs(np.einsum("bik,bjk->bij", np.abs(given[0]), np.abs(given[1]))).max())
        assert np.abs(found - true).max() <= 3e-7 * max(scale / 4, np.log(keys) + 1)
