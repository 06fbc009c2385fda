"""What dropout draws: the words that Philox is known by, on every backend the same bits, and no pattern in them."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import numpy as np
import pytest

from tapeless.backends.backend import backend_named, run_call
from tapeless.check.ops import call_alone, narrowed
from tapeless.errors import ProgramError
from tapeless.ops.dropout.reference import bits, factors

SIGMAS = 5.0  # of the normal distribution that a count of many draws has: once in two million


def test_the_words_are_those_that_philox_is_known_by():
    """The known answers that its authors give for Philox4x32-10: a counter and a key of zeros, of ones, and of π."""
    assert [f"{word:08x}" for word in bits(4, 0, 0, 0).tolist()] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    ones = bits(4, (1 << 64) - 1, (1 << 64) - 1, (1 << 32) - 1)  # but for the first word of the counter, which counts
    assert not np.array_equal(ones, bits(4, 0, 0, 0))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (70, 1000)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("rate", [0.0, 1e-12, 0.1, 0.5, 0.999, 1 - 2.0**-53])
def test_the_cpu_drops_the_same_bit_for_bit(shape, direction, rate):
    """On one thread and, at the largest, on several."""
    rng = np.random.default_rng(0)
    counters = {"seed": np.array([(1 << 63) - 1]), "draws": np.array([(5 << 32) + 1]), "rate": rate, "site": 2**32 - 1}
    call, arrays = call_alone("dropout", direction, {"x": rng.normal(size=shape), **counters})
    result, given = ("y", "x") if direction == "forward" else ("dx", "dy")
    held = narrowed(call, arrays, "float32")
    run_call(call, held, backend_named("cpu"))
    kept = factors(held[given].size, counters["seed"], counters["draws"], rate, 2**32 - 1).reshape(shape) != 0
    assert np.array_equal(held[result], np.where(kept, held[given] * np.float32(1 / (1 - rate)), 0))


@pytest.mark.parametrize("rate", [1.0, 1.5, -0.1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    counters = {"seed": np.array([1]), "draws": np.array([1]), "site": 0}
    with pytest.raises(ProgramError, match=r"rate must be at least 0 and below 1"):
        call_alone("dropout", "forward", {"x": np.ones((2, 2)), **counters, "rate": rate})


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_so_many_are_dropped(rate):
    dropped = _masks(rate, seeds=range(3), draws=range(1, 9), sites=range(4))
    count, size = dropped.sum(), dropped.size
    assert abs(count - rate * size) < SIGMAS * sqrt(size * rate * (1 - rate))
    for axis in range(4):  # of each seed, batch, site and place by itself
        share = dropped.mean(axis=tuple(other for other in range(4) if other != axis))
        size_each = dropped.size / dropped.shape[axis]
        assert np.abs(share - rate).max() < SIGMAS * sqrt(rate * (1 - rate) / size_each)


def test_no_two_masks_have_anything_to_do_with_each_other():
    """Of neighbouring seeds, batches and sites, and of one mask with itself a row, a word or a place further on."""
    dropped = _masks(0.5, seeds=(0, 1, 1 << 32), draws=(1, 2, 3, 1 << 32), sites=range(3)).reshape(36, -1)
    centred = 2.0 * dropped - 1
    length = centred.shape[1]
    for one, other in combinations(centred, 2):
        assert abs((one * other).mean()) < SIGMAS / sqrt(length)
    for mask in centred:
        for shift in (1, 2, 3, 4, 5, 8, 16, 64, 768, 1024):
            assert abs((mask[shift:] * mask[:-shift]).mean()) < SIGMAS / sqrt(length - shift)


def test_each_of_the_32_bits_is_as_often_one_as_zero():
    words = bits(1 << 16, 3, 7, 1)
    for bit in range(32):
        assert abs(((words >> bit) & 1).mean() - 0.5) < SIGMAS * 0.5 / sqrt(len(words))


def _masks(rate, seeds, draws, sites, size=4096):
    """True where something is dropped: by seed, batch, site and place."""
    return np.array(
        [
            [[factors(size, np.array([s]), np.array([d]), rate, site) == 0 for site in sites] for d in draws]
            for s in seeds
        ]
    )
