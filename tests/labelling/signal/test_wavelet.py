"""Wavelet features against their definition, in blocks of any size, in memory that does not grow."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.labelling.signal import SCALES, feature_blocks, features
from tapeless.labelling.signal.wavelet import ODD_FACTORS, fast_size, kernel
from tests.labelling.signal.made import Endless, noise, plain_features
from tests.random_cases import SOAK, cases

BOUND = 1e-10


@cases(60)
@given(
    length=st.integers(1, 260),
    block=st.one_of(st.none(), st.integers(1, 300)),
    scales=st.lists(st.floats(0.05, 90), min_size=1, max_size=4),
    complex_values=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_features_are_the_direct_convolution(length, block, scales, complex_values, seed):
    signal = noise(length, seed, complex_values)
    starts, blocks = zip(*feature_blocks(signal, scales, block, dtype=np.float64), strict=True)
    lengths = [len(each) for each in blocks]
    assert list(starts) == [sum(lengths[:number]) for number in range(len(lengths))]
    assert max(lengths) <= (block or length)
    np.testing.assert_allclose(np.concatenate(blocks), plain_features(signal, scales), rtol=0, atol=BOUND)


@pytest.mark.parametrize("complex_values", [False, True])
def test_a_signal_of_several_blocks(complex_values):
    signal = noise(70_000, 1, complex_values)
    found = features(signal, dtype=np.float64)
    for column in (0, 3, 6):
        direct = np.convolve(signal, kernel(SCALES[column], len(signal)))
        reach = (len(direct) - len(signal)) // 2
        direct = direct[reach : reach + len(signal)]
        np.testing.assert_allclose(found[:, 2 * column], direct.real, rtol=0, atol=BOUND)
        np.testing.assert_allclose(found[:, 2 * column + 1], direct.imag, rtol=0, atol=BOUND)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float16, np.float32, np.complex64])
def test_any_numbers_are_taken_as_they_are(dtype):
    signal = np.array([3, 0, 1, 2, 5, 0, 9], dtype)
    np.testing.assert_allclose(features(signal, dtype=np.float64), plain_features(signal, SCALES), rtol=0, atol=BOUND)
    np.testing.assert_array_equal(features(signal.tolist()), features(signal))


def test_a_tone_is_found_at_its_period_with_its_phase():
    period, k = 10, np.arange(400)
    found = features(np.exp(2j * np.pi * k / period), dtype=np.float64)[150:250]
    strength = np.hypot(found[:, ::2], found[:, 1::2])
    assert (strength.argmax(axis=1) == SCALES.index(period)).all()
    expected = np.sqrt(period) * np.exp(2j * np.pi * k[150:250] / period)
    np.testing.assert_allclose(found[:, 6] + 1j * found[:, 7], expected, atol=1e-7)
    backwards = features(np.exp(-2j * np.pi * k / period), dtype=np.float64)[150:250]
    assert np.abs(backwards[:, 6:8]).max() < 1e-7


def test_beyond_its_ends_a_signal_is_zero():
    signal = noise(300, 2)
    between_zeros = np.concatenate([np.zeros(900), signal, np.zeros(900)])
    np.testing.assert_allclose(
        features(between_zeros, dtype=np.float64)[900:1200], features(signal, dtype=np.float64), rtol=0, atol=BOUND
    )


def test_white_noise_has_the_same_variance_at_every_scale():
    """∫|ψ|² = 1/(2√π), for the squares of both parts together."""
    found = features(noise(200_000, 3), (3.0, 10.0, 27.0), dtype=np.float64)
    energy = (found[:, ::2] ** 2 + found[:, 1::2] ** 2).mean(axis=0)
    np.testing.assert_allclose(energy, 1 / (2 * np.sqrt(np.pi)), rtol=0.05)


def test_float32_is_the_rounded_float64():
    signal = noise(5000, 4)
    single = features(signal)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, features(signal, dtype=np.float64).astype(np.float32))


def test_a_kernel_ends_at_eight_scales_or_at_the_signals_length():
    assert len(kernel(3.0, 1000)) == 2 * 24 + 1
    assert len(kernel(0.3, 1000)) == 2 * 2 + 1
    assert len(kernel(3.0, 10)) == 2 * 9 + 1
    assert len(kernel(0.1, 10)) == 1


def test_a_scale_far_beyond_the_signal():
    signal = noise(50, 5)
    scales = (1e3, 1e9, 1e300)
    np.testing.assert_allclose(features(signal, scales, dtype=np.float64), plain_features(signal, scales), atol=BOUND)


def test_a_file_on_disk_is_read_in_place(tmp_path):
    signal = noise(40_000, 6)
    np.save(tmp_path / "signal.npy", signal)
    mapped = np.load(tmp_path / "signal.npy", mmap_mode="r")
    np.testing.assert_array_equal(features(mapped), features(signal))


def test_memory_does_not_grow_with_the_signal():
    signal = Endless(2_000_000 * SOAK)
    tracemalloc.start()
    try:
        done = sum(len(block) for _, block in feature_blocks(signal))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert done == len(signal)
    assert peak < 20 << 20  # the features alone are 112 MB
    assert signal.longest < 1 << 20


def test_the_work_grows_no_faster_than_the_signal(monkeypatch):
    """Counted, not timed: points through the FFT, each at its logarithm."""
    work = 0.0

    def counted(transform):
        def run(values):
            nonlocal work
            work += len(values) * np.log2(len(values))
            return transform(values)

        return run

    monkeypatch.setattr(np.fft, "fft", counted(np.fft.fft))
    monkeypatch.setattr(np.fft, "ifft", counted(np.fft.ifft))
    costs = []
    for length in (1 << 16, 1 << 17, 1 << 18):
        work = 0.0
        for _ in feature_blocks(Endless(length), (3.0, 100.0)):
            pass
        costs.append(work)
    assert costs[0] > 0
    assert costs[1] < 2.1 * costs[0]
    assert costs[2] < 2.1 * costs[1]


def test_sizes_of_transforms():
    allowed = sorted(odd << power for odd in ODD_FACTORS for power in range(13))
    for least in range(1, 4000):
        assert fast_size(least) == next(size for size in allowed if size >= least)
