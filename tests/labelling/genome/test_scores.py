"""Exon by exon, against all pairs compared one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tapeless.labelling.genome.intervals import runs
from tapeless.labelling.genome.scores import Matched, base_score, stretch_scores
from tests.random_cases import cases


def intervals(*pairs):
    return np.array(pairs, np.int64).reshape(-1, 2)


def plain(truth, predicted, agree):
    right = sum(any(agree(each, true) for true in truth) for each in predicted)
    found = sum(any(agree(each, true) for each in predicted) for true in truth)
    assert right == found
    return Matched(right, len(predicted), len(truth))


def half(one, other):
    shared = len(set(range(*one)) & set(range(*other)))
    return 2 * shared >= one[1] - one[0] and 2 * shared >= other[1] - other[0]


MASKS = st.lists(st.booleans(), min_size=1, max_size=60).map(np.array)


@given(MASKS, MASKS, MASKS)
@cases(300)
def test_by_the_definition(first, second, third):
    truth = {("a", "+"): runs(first), ("a", "-"): runs(second), ("b", "-"): runs(third)}
    predicted = {("a", "+"): runs(second), ("a", "-"): runs(third), ("c", "-"): runs(first)}
    scores = stretch_scores(truth, predicted)
    lists = [([(key, *pair) for key, each in side.items() for pair in each.tolist()]) for side in (truth, predicted)]
    for strand in ("+", "-", "both"):
        true, found = ([each for each in side if strand in (each[0][1], "both")] for side in lists)
        assert scores[strand].exact == plain(true, found, lambda one, other: one == other)
        assert scores[strand].half == plain(
            true, found, lambda one, other: one[0] == other[0] and half(one[1:], other[1:])
        )


def test_an_example_by_hand():
    truth = {("a", "+"): intervals((0, 100), (200, 300), (400, 500))}
    predicted = {("a", "+"): intervals((0, 100), (210, 290), (390, 420), (600, 700)), ("a", "-"): intervals((0, 100))}
    scores = stretch_scores(truth, predicted)
    assert scores["+"].exact == Matched(1, 4, 3)
    assert scores["+"].half == Matched(2, 4, 3)
    assert scores["-"].exact == Matched(0, 1, 0)
    both = scores["both"].half
    assert both == Matched(2, 5, 3)
    assert (both.precision, both.recall, both.f1) == (2 / 5, 2 / 3, 0.5)


def test_half_is_of_the_longer_one():
    for end, counts in ((50, 1), (49, 0)):
        scores = stretch_scores({("a", "+"): intervals((0, 100))}, {("a", "+"): intervals((0, end))})
        assert scores["both"].half.right == counts
        swapped = stretch_scores({("a", "+"): intervals((0, end))}, {("a", "+"): intervals((0, 100))})
        assert swapped["both"].half.right == counts


def test_nothing_predicted_and_nothing_true():
    for score in (stretch_scores({}, {})["both"].exact, stretch_scores({("a", "+"): intervals()}, {})["+"].half):
        assert (score.precision, score.recall, score.f1) == (0, 0, 0)


def test_per_base():
    score = base_score(np.array([1, 1, 0, 0, 1]), np.array([1, 0, 1, 0, 1]))
    assert score == Matched(2, 3, 3)
    assert score.f1 == 2 / 3
