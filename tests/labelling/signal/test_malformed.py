"""Signals, labels, scales, windows and probabilities that cannot be used: one sentence each, before any work."""

from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.errors import TapelessError
from tapeless.labelling.signal import (
    Features,
    Labelled,
    Recording,
    Scores,
    Windows,
    blend,
    class_weights,
    feature_blocks,
    features,
    hold_out,
    predict,
)
from tapeless.models.presets import preset
from tests.labelling.signal.made import bursts, noise

WITH_NAN = np.where(np.arange(400_000) == 300_000, np.nan, 1.0)
WITH_COMPLEX_INFINITY = np.array([1 + 1j, 2, complex(0, np.inf)])
MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
LONG = np.broadcast_to(np.float32(0), 20_000_000)

SIGNALS: dict[str, tuple[Any, str]] = {
    "NaN": (WITH_NAN, "nan at position 300000"),
    "complex infinity": (WITH_COMPLEX_INFINITY, "at position 2"),
    "minus infinity": ([0.0, -np.inf], "-inf at position 1"),
    "larger than double": (np.array([1, np.finfo(np.longdouble).max]), "at position 1"),
    "two dimensions": (np.zeros((3, 4)), "shape (3, 4)"),
    "one column": (np.zeros((3, 1)), "shape (3, 1)"),
    "no dimension": (np.array(3.5), "one dimension"),
    "number": (3.5, "one dimension"),
    "none": (None, "one dimension"),
    "empty array": (np.zeros(0), "there are none"),
    "empty list": ([], "there are none"),
    "text": ("ACGT", "one dimension"),
    "bytes": (b"ACGT", "one dimension"),
    "list of text": (["1", "2"], "must hold numbers"),
    "objects": (np.array([1, None], object), "must hold numbers, not object"),
    "ragged": ([[1, 2], [3]], "one dimension"),
    "dictionary": ({0: 1.0}, "one dimension"),
    "set": ({1.0, 2.0}, "one dimension"),
    "generator": ((x for x in (1, 2)), "one dimension"),
    "truth values": (np.array([True, False]), ".astype(float)"),
    "dates": (np.array(["2020-01-01"], "datetime64[D]"), "must hold numbers"),
    "masked": (MASKED, "masked array"),
    "whole numbers beyond 64 bits": ([1, 10**30], "must hold numbers, not object"),
}

SCALES: dict[str, tuple[Any, str]] = {
    "empty": ((), "scales are empty"),
    "zero": ((3, 0), "above 0, not 0"),
    "negative": ((-3.0,), "above 0, not -3.0"),
    "NaN": ((np.nan,), "above 0, not nan"),
    "infinite": ((np.inf,), "above 0, not inf"),
    "text": ("3", "sequence of numbers"),
    "list of text": (["3"], "above 0, not '3'"),
    "truth": ((True,), "above 0, not True"),
    "complex": ((3j,), "above 0, not 3j"),
    "one number": (3.0, "sequence of numbers"),
    "array without dimension": (np.array(3.0), "sequence of numbers"),
    "nested": (((3, 4),), "above 0, not (3, 4)"),
    "generator": ((x for x in (3, 4)), "sequence of numbers"),
}

LABELS: dict[str, tuple[Any, str]] = {
    "too few": (np.zeros(99, int), "length of 99 and the signal has 100"),
    "too many": (np.zeros(101, int), "length of 101"),
    "floats": (np.zeros(100), ".astype(int)"),
    "complex": (np.zeros(100, complex), "must be integers, not complex128"),
    "text": (["exon"] * 100, "must be integers"),
    "too large": (np.arange(100) // 98 * 2, "hold 2 at position 98; they must lie between −1 (not known) and 1"),
    "below −1": (np.where(np.arange(100) == 7, -2, 0), "hold -2 at position 7"),
    "unsigned and large": (np.where(np.arange(100) == 7, np.uint64(2**64 - 1), np.uint64(0)), "position 7"),
    "two dimensions": (np.zeros((100, 2), int), "shape (100, 2)"),
    "empty": ([], "there are none"),
    "none": (None, "one dimension"),
    "all unknown": (np.full(100, -1), "all labels are −1"),
    "masked": (np.ma.array(np.zeros(100, int), mask=True), "masked array"),
}


def refused(action, says: str) -> None:
    with pytest.raises(TapelessError) as caught:
        action()
    message = str(caught.value)
    assert says in message
    assert message.endswith((".", "?"))
    assert "\n" not in message
    assert len(message) < 400


def small_task(**changes: Any) -> Labelled:
    given: dict[str, Any] = {"training": [bursts(200, 0)], "validation": [bursts(50, 1)], "time": 32, "seed": 0}
    return Labelled(preset("sunfish").architecture, **(given | changes))


@pytest.mark.parametrize("name", SIGNALS)
def test_signals(name):
    signal, says = SIGNALS[name]
    refused(lambda: features(signal), says)
    refused(lambda: feature_blocks(signal, (3.0,), 10), says)  # at the call, before a block is asked for


@pytest.mark.parametrize("name", SCALES)
def test_scales(name):
    scales, says = SCALES[name]
    refused(lambda: features(noise(10), scales), says)
    refused(lambda: small_task(features=Features(scales=scales)), says)


@pytest.mark.parametrize("name", LABELS)
def test_labels(name):
    labels, says = LABELS[name]
    refused(lambda: small_task(training=[Recording(noise(100), labels)]), says)
    refused(lambda: small_task(validation=[Recording(noise(100), labels)]), says)


def test_an_error_names_the_recording():
    refused(lambda: small_task(training=[bursts(9, 0), Recording([1.0, np.nan], [0, 1])]), "signal 1 holds nan")
    refused(lambda: small_task(validation=[bursts(9, 0), Recording([1.0, 2.0], [0])]), "the labels of signal 1")


def test_features_too_large_for_their_type():
    refused(lambda: features(np.full(10, 1e300)), "position 0 are too large for float32")
    refused(lambda: features(np.full(100_000, 1e308), dtype=np.float64), "too large for float64")
    refused(lambda: features([1.0], (1e-300,)), "too large for float32")


def test_a_kernel_longer_than_memory_should_hold():
    refused(lambda: feature_blocks(LONG, (3.0, 1e6)), "scale 1e+06 sees 8,000,000 samples to each side")


@pytest.mark.parametrize("block", [0, -1, 2.5, True, "10"])
def test_blocks(block):
    refused(lambda: feature_blocks(noise(10), (3.0,), block), "block must be a whole number of at least 1")


@pytest.mark.parametrize("dtype", ["float16", int, "complex128", "flaot32", object()])
def test_types_of_features(dtype):
    refused(lambda: features(noise(10), dtype=dtype), "unknown dtype")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((0, 4, 2), "length must be"),
        ((10, 0, 2), "window must be"),
        ((10, 4, 0), "step must be"),
        ((10, 4, 5), "step=5 is more than window=4"),
        ((10, 4.0, 2), "window must be"),
        ((10, 4, None), "step must be"),
    ],
)
def test_windows(given, says):
    refused(lambda: Windows(*given), says)


@pytest.mark.parametrize(
    ("predictions", "says"),
    [
        ([np.zeros((4, 2))] * 2, "end before the window at 4"),
        ([np.zeros((4, 2))] * 4, "more predictions than the 3 windows"),
        ([np.zeros((3, 2))] * 3, "shape (4, classes), not (3, 2)"),
        ([np.zeros(4)] * 3, "not (4,)"),
        ([np.zeros((4, 2)), np.zeros((4, 3)), np.zeros((4, 2))], "shape (4, 2), not (4, 3)"),
    ],
)
def test_predictions_that_do_not_fit_the_windows(predictions, says):
    refused(lambda: list(blend(predictions, Windows(8, 4, 2))), says)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"training": []}, "there are no recordings"),
        ({"validation": []}, "there are no recordings"),
        ({"time": 513}, "longer than the 512 positions"),
        ({"time": 0}, "time must be"),
        ({"step": 33}, "step=33 is more than window=32"),
        ({"step": 0}, "step must be"),
        ({"seed": -1}, "seed must be"),
        (
            {"features": Features(scales=(3.0, 4.0))},
            "this model reads 14 features at each position, and 2 scales give 4",
        ),
    ],
)
def test_tasks(changes, says):
    refused(lambda: small_task(**changes), says)


def test_batches_larger_than_the_data():
    refused(lambda: small_task().batches(1000), "a batch of 1000 windows is more than the 12 windows")
    refused(lambda: small_task().batches(0), "batch must be")


@pytest.mark.parametrize("name", ["gpt2-124m", "cllm", "ops-102k"])
def test_models_that_read_tokens(name):
    recordings = [bursts(100, 0)]
    refused(lambda: Labelled(preset(name).architecture, recordings, recordings, time=8, seed=0), "reads tokens")


def test_models_that_answer_once():
    config, recordings = preset("sunfish").override(readout="last").architecture, [bursts(100, 0)]
    refused(lambda: Labelled(config, recordings, recordings, time=8, seed=0), "answers once per sequence")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"signal": WITH_NAN}, "nan at position 300000"),
        ({"window": 17}, "longer than the 16 positions"),
        ({"window": 0}, "time must be"),
        ({"step": 9, "window": 8}, "step=9 is more than window=8"),
        ({"batch": 0}, "batch must be"),
        ({"features": Features(scales=(3.0,))}, "1 scales give 2 features"),
    ],
)
def test_prediction(changes, says):
    model = Model("sunfish", backend="reference", layers=1, channels=4, heads=1, features=4, context=16)
    refused(lambda: predict(model, **({"signal": noise(40), "features": Features(scales=(3.0, 4.0))} | changes)), says)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, np.nan, True, "0.1"])
def test_shares_that_cannot_be_held_out(share):
    refused(lambda: hold_out([bursts(100, 0)], share), "between 0 and 1")


def test_recordings_too_short_to_be_cut():
    refused(lambda: hold_out([bursts(100, 0), bursts(1, 0)], 0.1), "signal 1 has a length of 1")
    refused(lambda: hold_out([Recording(noise(10), [0] * 9)], 0.1), "length of 9 and the signal has 10")


@pytest.mark.parametrize(
    ("labels", "classes", "says"),
    [
        ([-1, -1], None, "all labels are −1"),
        ([], None, "there are none"),
        (3, None, "one dimension"),
        ([0.5], None, "must be integers"),
        ([0, 10**12], None, "hold 1000000000000 at position 1"),
        ([0, 2], 2, "hold 2 at position 1"),
        (np.where(np.arange(400_000) == 300_000, 5, 0), 2, "hold 5 at position 300000"),
        ([0], 0, "classes must be"),
    ],
)
def test_labels_without_frequencies(labels, classes, says):
    refused(lambda: class_weights(labels, classes), says)


@pytest.mark.parametrize(
    ("labels", "probabilities", "says"),
    [
        ([0], [[0.5, np.nan]], "nan at (0, 1)"),
        ([0], [[1.5, 0.0]], "1.5 at (0, 0)"),
        ([0], [[0.5, -0.1]], "-0.1 at (0, 1)"),
        ([0], [0.5, 0.5], "shape (positions, 2), not (2,)"),
        ([0], [[1.0]], "not (1, 1)"),
        ([], np.zeros((0, 2)), "not (0, 2)"),
        ([0], [["a", "b"]], "array of real numbers"),
        ([0, 1], [[0.5, 0.5]], "length of 2 and the signal has 1"),
        ([2], [[0.5, 0.5]], "hold 2 at position 0"),
        ([0.5], [[0.5, 0.5]], "must be integers"),
    ],
)
def test_scores_of_what_is_no_probability(labels, probabilities, says):
    scores = Scores(2)
    refused(lambda: scores.add(labels, probabilities), says)
    assert scores.accuracy is None
    assert not scores.confusion.any()


def test_classes_without_a_curve():
    scores = Scores(3)
    scores.add([0, 1], [[1, 0, 0], [0, 1, 0]])
    refused(lambda: scores.curve(2), "no label is 2")
    refused(lambda: scores.curve(3), "classes 0 to 2, not 3")
    refused(lambda: Scores(0), "classes must be")
    refused(lambda: Scores(10**9), "up to 1,024 classes")
