"""Scores against their definitions, counted position by position."""

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.labelling.signal import Scores, picture
from tapeless.labelling.signal.scores import BINS, Score, reliability_picture
from tests.random_cases import cases


def some(seed: int, length: int = 400, classes: int = 3, coarse: bool = False):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, length)
    values = rng.integers(1, 8, (length, classes)) if coarse else rng.uniform(0.01, 1, (length, classes))
    values = values + 0.7 * (labels[:, None] == np.arange(classes))
    return labels, values / values.sum(axis=1, keepdims=True)


def counted(labels, probabilities) -> Scores:
    scores = Scores(probabilities.shape[1])
    scores.add(labels, probabilities)
    return scores


@cases(40)
@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_precision_recall_and_f1_by_counting(seed, classes, coarse):
    labels, probabilities = some(seed, 60, classes, coarse)
    scores = counted(labels, probabilities)
    pairs = [(int(label), int(row.argmax())) for label, row in zip(labels, probabilities, strict=True) if label >= 0]
    assert scores.accuracy == (np.mean([label == said for label, said in pairs]) if pairs else None)
    for number, score in enumerate(scores.per_class()):
        right = sum(label == said == number for label, said in pairs)
        said_so, true = sum(said == number for _, said in pairs), sum(label == number for label, _ in pairs)
        assert score.precision == (right / said_so if said_so else None)
        assert score.recall == (right / true if true else None)
        assert score.positions == true
        if right:
            assert score.precision
            assert score.recall
            harmonic = 2 * score.precision * score.recall / (score.precision + score.recall)
            assert score.f1 == pytest.approx(harmonic, rel=1e-12)
        else:
            assert score.f1 == (0 if said_so + true else None)


@cases(40)
@given(st.integers(0, 10**6), st.booleans())
def test_the_curve_by_counting(seed, coarse):
    labels, probabilities = some(seed, 80, coarse=coarse)
    labels[0] = 1
    curve = counted(labels, probabilities).curve(1)
    score, true = probabilities[labels >= 0, 1], labels[labels >= 0] == 1
    area, before = 0.0, 0.0
    for threshold, precision, recall in zip(curve.thresholds, curve.precision, curve.recall, strict=True):
        chosen = score >= threshold
        assert precision == true[chosen].mean()
        assert recall == true[chosen].sum() / true.sum()
        area += precision * (recall - before)
        before = recall
    assert before == 1
    assert (np.diff(curve.thresholds) < 0).all()
    assert curve.thresholds[0] <= score.max() < curve.thresholds[0] + 1 / BINS  # nothing is above the first
    assert curve.share == true.mean()
    assert curve.area == pytest.approx(area, rel=1e-12)


def test_piece_by_piece_is_the_same():
    labels, probabilities = some(5)
    whole, parts = counted(labels, probabilities), Scores(3)
    for start in range(0, 400, 37):
        parts.add(labels[start : start + 37], probabilities[start : start + 37])
    np.testing.assert_array_equal(whole.confusion, parts.confusion)
    np.testing.assert_array_equal(whole.curve(2).precision, parts.curve(2).precision)


def test_certainty_is_a_threshold_too():
    scores = counted([1, 0, 1], np.array([[0.0, 1.0], [1.0, 0.0], [-1e-7, 1 + 1e-7]]))
    curve = scores.curve(1)
    assert curve.thresholds.tolist() == [1, 0]
    assert curve.precision.tolist() == [1, 2 / 3]
    assert curve.area == 1


def test_of_equal_probabilities_the_lower_class_is_said():
    assert counted([0], np.array([[0.5, 0.5]])).confusion.tolist() == [[1, 0], [0, 0]]


def test_guessing_gives_the_share_and_knowing_gives_one():
    rng = np.random.default_rng(0)
    labels = (rng.uniform(size=50_000) < 0.1).astype(int)
    guess = rng.uniform(size=50_000)
    assert counted(labels, np.stack([1 - guess, guess], axis=1)).curve(1).area == pytest.approx(0.1, abs=0.01)
    assert counted(labels, np.stack([1 - labels, labels], axis=1)).curve(1).area == 1


def test_the_picture_is_an_svg_that_shows_the_curve():
    labels, probabilities = some(7, 5000)
    curve = counted(labels, probabilities).curve(1)
    tree = ElementTree.fromstring(picture(curve))
    base, line = (each.get("points", "") for each in tree.iter("{http://www.w3.org/2000/svg}polyline"))
    points = np.array([point.split(",") for point in line.split()], float)
    assert points[0, 0] == 50
    assert points[-1].tolist() == [330, round(330 - 280 * curve.share, 1)]
    assert {point.split(",")[1] for point in base.split()} == {f"{330 - 280 * curve.share:.1f}"}
    assert points.min() >= 50
    assert points.max() <= 330
    assert f"{curve.area:.4f}" in picture(curve)
    assert len(picture(curve)) < 100_000


def test_reliability_and_scores_at_a_threshold_by_counting():
    """Of probabilities at the edges of tenths, too."""
    rng = np.random.default_rng(0)
    told = np.append(rng.random(500), [0.0, 0.3, 1.0])
    labels = np.append(rng.integers(-1, 2, 500), [0, 1, 1])
    scores = Scores(2)
    scores.add(labels, np.stack([1 - told, told], axis=1))
    known = labels >= 0
    found = scores.reliability()
    assert sum(count for _, _, count in found) == known.sum()
    for tenth, (mean, true, count) in enumerate(found):
        here = known & (told >= tenth / 10 - 1e-4) & (told < tenth / 10 + 0.1 + (0.1 if tenth == 9 else -1e-4))
        assert abs(count - here.sum()) <= 2
        assert np.isclose(mean, told[here].mean(), atol=5e-3)
        assert np.isclose(true, (labels[here] == 1).mean(), atol=0.04)
    assert "<svg" in reliability_picture(found)
    said = told[known] >= 0.25
    truth = labels[known] == 1
    for number, score in enumerate(scores.at(0.25)):
        mine, right = said == bool(number), truth == bool(number)
        assert score == Score(
            (mine & right).sum() / mine.sum(),
            (mine & right).sum() / right.sum(),
            2 * (mine & right).sum() / (mine.sum() + right.sum()),
            right.sum(),
        )
