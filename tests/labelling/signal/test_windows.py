"""Windows that cover everything, and predictions blended over their overlaps."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.labelling.signal import Windows, blend
from tapeless.labelling.signal.windows import window_weights
from tests.random_cases import cases


@st.composite
def some_windows(draw):
    window = draw(st.integers(1, 40))
    return Windows(draw(st.integers(1, 200)), window, draw(st.integers(1, window)))


def some_predictions(windows, seed, classes=3):
    values = np.random.default_rng(seed).uniform(size=(len(windows), windows.size, classes))
    return values / values.sum(axis=2, keepdims=True)


@cases(100)
@given(some_windows())
def test_windows_cover_everything_and_stay_inside(windows):
    starts = list(windows)
    assert len(starts) == len(windows)
    assert starts[0] == 0
    assert starts[-1] + windows.size == windows.length
    assert starts[:-1] == [number * windows.step for number in range(len(starts) - 1)]
    assert all(0 < after - before <= windows.step for before, after in pairwise(starts))


@pytest.mark.parametrize(
    ("length", "window", "step", "starts"),
    [(10, 4, 2, [0, 2, 4, 6]), (11, 4, 2, [0, 2, 4, 6, 7]), (4, 4, 1, [0]), (3, 4, 2, [0]), (5, 4, 4, [0, 1])],
)
def test_windows_by_hand(length, window, step, starts):
    assert list(Windows(length, window, step)) == starts


def test_a_short_signal_is_one_window_of_its_own_length():
    assert (len(Windows(3, 512, 256)), Windows(3, 512, 256).size) == (1, 3)


def test_weights_by_hand():
    assert window_weights(5).tolist() == [1, 2, 3, 2, 1]
    assert window_weights(4).tolist() == [1, 2, 2, 1]
    assert window_weights(1).tolist() == [1]


@cases(100)
@given(some_windows(), st.integers(0, 1000))
def test_blending_is_the_weighted_mean(windows, seed):
    predictions = some_predictions(windows, seed)
    weights = window_weights(windows.size)[:, None]
    above, below = np.zeros((windows.length, 3)), np.zeros((windows.length, 1))
    running, total = np.zeros((windows.length, 3)), np.zeros((windows.length, 1))
    for start, values in zip(windows, predictions, strict=True):
        held = slice(start, start + windows.size)
        above[held] += weights * values
        below[held] += weights
        total[held] += weights
        running[held] += (values - running[held]) * (weights / total[held])
    starts, parts = zip(*blend(predictions, windows), strict=True)
    assert list(starts) == [sum(map(len, parts[:number])) for number in range(len(parts))]
    found = np.concatenate(parts)
    np.testing.assert_array_equal(found, running)  # in a stream or as a whole: the same bits
    np.testing.assert_allclose(found, above / below, rtol=1e-13)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-13)


@cases(50)
@given(some_windows(), st.integers(0, 1000))
def test_where_all_windows_agree_the_answer_is_theirs(windows, seed):
    truth = np.random.default_rng(seed).uniform(size=(windows.length, 2))
    predictions = [truth[start : start + windows.size] for start in windows]
    np.testing.assert_array_equal(np.concatenate([part for _, part in blend(predictions, windows)]), truth)


def test_one_window_gives_its_own_probabilities():
    for length in (1, 7, 512):
        values = some_predictions(Windows(length, 512, 256), length)
        ((start, found),) = blend(values, Windows(length, 512, 256))
        assert start == 0
        np.testing.assert_array_equal(found, values[0])


def test_positions_come_as_soon_as_no_later_window_holds_them():
    windows = Windows(1000, 50, 20)
    pulled = []

    def predictions():
        for start, values in zip(windows, some_predictions(windows, 0), strict=True):
            pulled.append(start)
            yield values

    for start, part in blend(predictions(), windows):
        last = start + len(part) == windows.length
        assert pulled[-1] == (windows.start(len(windows) - 1) if last else start + len(part))
        assert len(part) <= windows.window


def test_what_was_given_out_does_not_change_afterwards():
    windows = Windows(100, 10, 3)
    given_out = [(part, part.copy()) for _, part in blend(some_predictions(windows, 1), windows)]
    for part, copy in given_out:
        np.testing.assert_array_equal(part, copy)
