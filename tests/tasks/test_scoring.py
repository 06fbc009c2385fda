"""Every token of a text scored once, from what a sliding window shows."""

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.model import Model
from tapeless.tasks.data.tokens import Tokens
from tapeless.tasks.scoring import score_text

WINDOW = 6


@pytest.fixture(scope="module")
def model():
    made = Model(
        "gpt2-4x256", layers=1, channels=8, heads=2, vocab=11, context=8, backend="reference", optimizer=None, seed=3
    )
    rng = np.random.default_rng(0)
    for name, weight in made.params.items():
        made.write(name, rng.normal(0, 0.7, weight.shape))
    return made


def by_hand(model, sequence, window, stride):
    """One token after the other, each in a window of its own: the windows lie `stride` apart and the last one ends with
    the text; a token is scored in the first that holds it as a target."""
    count = len(sequence) - 1
    ends = [*range(window, count, stride), count] if count > window else [count]
    losses, right, contexts = [], 0, []
    for target in range(count):
        end = next(end for end in ends if target < end)
        begin = max(end - window, 0)
        scores = model.logits(sequence[None, begin : target + 1])[0, -1]
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()
        losses.append(-np.log(probabilities[sequence[target + 1]]))
        right += int(scores.argmax() == sequence[target + 1])
        contexts.append(target + 1 - begin)
    return np.mean(losses), right / count, contexts


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 8, 9, 23, 40])
@pytest.mark.parametrize("stride", [1, 2, 3, 5, 6, None])
def test_scores_are_those_of_tokens_one_by_one(model, length, stride):
    ids = np.random.default_rng(length).integers(0, 11, length)
    told: list[int] = []
    found = score_text(model, Tokens([ids]), WINDOW, stride=stride, start=10, told=told.append)
    loss, accuracy, contexts = by_hand(model, np.array([10, *ids]), WINDOW, stride or WINDOW // 2)
    assert found.targets == length
    assert found.cross_entropy == pytest.approx(loss, rel=1e-12)
    assert found.loss == found.cross_entropy
    assert found.accuracy == accuracy
    assert found.perplexity == pytest.approx(np.exp(loss))
    assert told[-1] == length
    beyond = contexts[WINDOW:]
    assert not beyond or min(beyond) >= found.least_context
    assert max(contexts) <= WINDOW


def test_without_a_beginning_the_first_is_only_read(model):
    ids = np.random.default_rng(1).integers(0, 11, 20)
    found = score_text(model, Tokens([ids[:7], ids[7:]]), WINDOW)  # two shards
    loss, accuracy, _ = by_hand(model, ids, WINDOW, WINDOW // 2)
    assert (found.targets, found.accuracy) == (19, accuracy)
    assert found.cross_entropy == pytest.approx(loss, rel=1e-12)


def test_many_windows_at_a_time_are_the_same(model, monkeypatch):
    ids = np.random.default_rng(2).integers(0, 11, 300)
    many = score_text(model, Tokens([ids]), WINDOW, start=10)
    monkeypatch.setattr("tapeless.tasks.scoring.AT_ONCE", 1)
    assert score_text(model, Tokens([ids]), WINDOW, start=10).loss == pytest.approx(many.loss, rel=1e-13)


def test_bits_are_counted_per_byte(model):
    ids = np.random.default_rng(2).integers(0, 11, 30)
    found = score_text(model, Tokens([ids]), WINDOW, start=10)
    assert found.bits_per_byte(120) == pytest.approx(found.cross_entropy * 30 / np.log(2) / 120)


def test_a_squared_error_has_its_loss_and_a_cross_entropy():
    model = Model("cllm", layers=1, channels=8, heads=2, vocab=11, context=8, backend="reference", optimizer=None)
    ids = np.random.default_rng(2).integers(0, 11, 9)
    found = score_text(model, Tokens([ids]), 8, start=0)
    assert found.loss != found.cross_entropy
    scores = model.logits(np.array([0, *ids])[None, :8])[0]
    assert score_text(model, Tokens([ids[:8]]), 8, start=0).loss == pytest.approx(
        np.mean([-row[wanted] / 8 for row, wanted in zip(scores, ids, strict=False)])
    )


def test_what_cannot_be_scored_is_refused(model):
    with pytest.raises(TapelessError, match="there are 1 tokens to score, and none is foretold"):
        score_text(model, Tokens([np.array([3])]), WINDOW)
    with pytest.raises(TapelessError, match="there are 0 tokens"):
        score_text(model, Tokens([]), WINDOW, start=1)
    with pytest.raises(TapelessError, match="stride=7 would leap over tokens"):
        score_text(model, Tokens([np.arange(9)]), WINDOW, stride=7)
    with pytest.raises(TapelessError, match="stride must be"):
        score_text(model, Tokens([np.arange(9)]), WINDOW, stride=0)
