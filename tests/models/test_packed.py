"""Documents that share a row: the loss and the gradients are those of the same documents, each in a row of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.check.complex_step import relative_error
from tapeless.check.tolerances import TOLERANCES
from tapeless.inputs import Packed, documents

SMALL: dict[str, Any] = {
    "layers": 2,
    "channels": 8,
    "heads": 4,
    "kv_heads": 2,
    "hidden": 10,
    "vocab": 13,
    "context": 40,
    "optimizer": None,
}
LENGTHS = ((9, 1, 14, 8), (3, 29), (32,))  # of the documents of each row
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama-4x256", {}),
    "a window": ("llama-4x256", {"window": 5, "kv_heads": 1, "tied": False}),
    "norms of queries and keys": ("qwen3-0.6b", {"head_width": 6, "recompute": True}),
    "llama3 scaling": ("llama-3.2-1b", {"rope_old_context": 20, "rope_base": 100.0}),
}


def made(name: str, batch: int, time: int, backend: str = "reference") -> Model:
    preset, fields = MODELS[name]
    model = Model(preset, batch=batch, time=time, backend=backend, **(SMALL | fields))
    rng = np.random.default_rng(0)
    for each in model.params:
        model.write(each, rng.normal(0.3, 0.4, model.params[each].shape))
    return model


def rows(rng: np.random.Generator) -> tuple[Packed, Any]:
    shape = (len(LENGTHS), sum(LENGTHS[0]))
    tokens, targets = rng.integers(0, 13, (2, *shape))
    targets[rng.random(shape) < 0.3] = -1
    segments = np.array([np.repeat(rng.permutation(90)[: len(row)], row) for row in LENGTHS])
    return Packed(tokens, segments), targets


@pytest.mark.parametrize("name", MODELS)
def test_a_packed_row_is_its_documents_apart(name: str) -> None:
    packed, targets = rows(np.random.default_rng(1))
    together = made(name, *targets.shape)
    loss, scores = together.forward_backward(packed, targets), together.logits(packed)
    assert together.loss(packed, targets) == loss
    count, total = float((targets >= 0).sum()), 0.0
    sums = {each: np.zeros(gradient.shape) for each, gradient in together.grads.items()}
    for row, lengths in enumerate(LENGTHS):
        ends = np.cumsum(lengths)
        for start, end in zip(ends - lengths, ends, strict=True):
            alone = made(name, 1, end - start)
            part = slice(row, row + 1), slice(start, end)
            total += alone.forward_backward(packed.tokens[part], targets[part], count=count)
            assert relative_error(scores[part], alone.logits(packed.tokens[part])) <= TOLERANCES["complex step"]
            for each, gradient in alone.grads.items():
                sums[each] += gradient
    assert abs(loss - total) <= TOLERANCES["complex step"] * abs(total)
    for each, gradient in together.grads.items():
        assert relative_error(gradient, sums[each]) <= TOLERANCES["complex step"], each


def test_without_segments_a_row_is_one_document_again() -> None:
    """What a packed batch left behind is not taken for the next."""
    packed, targets = rows(np.random.default_rng(1))
    model, other = made("llama", *targets.shape), made("llama", *targets.shape)
    packed_loss, plain = model.loss(packed, targets), other.loss(packed.tokens, targets)
    assert model.loss(packed.tokens, targets) == plain != packed_loss
    assert model.loss(Packed(packed.tokens, np.zeros_like(targets)), targets) == plain


def test_a_later_document_knows_nothing_of_the_earlier() -> None:
    packed, _ = rows(np.random.default_rng(1))
    model = made("llama", 3, 32, backend="cpu")
    before = model.logits(packed)
    changed = packed.tokens.copy()
    changed[0, :9] = (changed[0, :9] + 1) % 13
    after = model.logits(Packed(changed, packed.segments))
    assert np.array_equal(before[0, 9:], after[0, 9:])
    assert not np.array_equal(before[0, :9], after[0, :9])


def test_where_documents_begin() -> None:
    config = made("llama", 1, 5).config
    found = documents(config, [[7, 7, 2, 2, 2], [1, 4, 4, 0, 0]], (2, 5))
    assert found["starts"].tolist() == [[0, 0, 2, 2, 2], [0, 1, 1, 3, 3]]
    assert found["places"].tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 0, 1]]


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ([[0, 1, 0]], "segment 0 begins twice in a row: a document lies in one piece"),
        ([[0, 1]], "segments must be integers of shape (1, 3), not int64 of (1, 2)"),
        ([[0.0, 1.0, 1.0]], "segments must be integers of shape (1, 3), not float64 of (1, 3)"),
    ],
)
def test_bad_segments_are_one_sentence(segments: Any, said: str) -> None:
    model = made("llama", 1, 3)
    with pytest.raises(TapelessError) as caught:
        model.loss(Packed([[1, 2, 3]], segments), [[1, 2, 3]])
    assert str(caught.value) == f"{said}."


def test_models_with_a_table_of_positions_take_no_documents() -> None:
    model = Model("gpt2-4x256", time=3, backend="reference", layers=1, channels=4, heads=2, vocab=5)
    with pytest.raises(TapelessError, match="documents cannot share rows of this model"):
        model.logits(Packed([[1, 2, 3]], [[0, 0, 1]]))
