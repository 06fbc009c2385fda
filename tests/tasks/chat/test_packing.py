"""Rows that several conversations share: nothing lost, nobody sees another's, the loss is that of each by itself."""

from typing import Any

import numpy as np
import pytest

from tapeless import Model, Packed
from tapeless.errors import TapelessError
from tapeless.inputs import unpacked
from tapeless.tasks.chat.packing import ChatBatches, PackedRows, every_row
from tapeless.tasks.chat.prepare import Side


def side(lengths, seed=0, vocab=40):
    rng = np.random.default_rng(seed)
    learned = rng.random(sum(lengths)) < 0.4
    learned[np.cumsum(lengths) - 1] = True  # a conversation ends with what is learned
    return Side(rng.integers(0, vocab, sum(lengths)), learned, np.array(lengths))


def alone(given, number, time):
    begin = int(given.lengths[:number].sum())
    ids, learned = (array[begin : begin + given.lengths[number]] for array in (given.ids, given.learned))
    length = min(len(ids) - 1, time)
    return ids[:length], np.where(learned[1 : length + 1], ids[1 : length + 1], -1)


@pytest.mark.parametrize("packed", [True, False])
def test_every_conversation_stands_in_one_row_once(packed):
    given = side([9, 3, 30, 5, 17, 16, 2, 8, 40], seed=1)
    rows = PackedRows(given, 16, packed)
    assert sorted(number for row in rows.rows for number in row) == list(range(9))
    assert len(rows) == (6 if packed else 9)
    assert rows.cut == 2
    for which, numbers in enumerate(rows.rows):
        inputs, targets = rows.make([which], 2)
        tokens, segments = unpacked(inputs)
        place = 0
        for segment, number in enumerate(numbers):
            ids, aims = alone(given, number, 16)
            span = slice(place, place + len(ids))
            assert np.array_equal(tokens[0, span], ids)
            assert np.array_equal(targets[0, span], aims)
            assert segments is None or (segments[0, span] == segment).all()
            place += len(ids)
        assert (targets[0, place:] == -1).all()
        assert (targets[1] == -1).all()


def test_a_packed_batch_has_loss_and_gradients_of_its_conversations_apart():
    """Within 1e-12 in float64: a row's neighbours leave no trace."""
    given = side([9, 3, 12, 5, 7, 6], seed=2)
    rows = PackedRows(given, 12, packed=True)
    how: dict[str, Any] = {
        "layers": 2,
        "channels": 16,
        "heads": 4,
        "kv_heads": 2,
        "hidden": 24,
        "vocab": 40,
        "context": 12,
    }
    how |= {"backend": "reference", "precision": "float64", "optimizer": None, "seed": 3}
    together = Model("llama-4x256", batch=len(rows), time=12, **how)
    inputs, targets = rows.make(range(len(rows)), len(rows))
    assert isinstance(inputs, Packed)
    assert any(len(row) > 1 for row in rows.rows)
    loss = together.forward_backward(inputs, targets)
    count, total = together.weigh(targets), 0.0
    gradients = {name: np.zeros_like(array) for name, array in together.grads.items()}
    for number in range(len(given)):
        ids, aims = alone(given, number, 12)
        model = Model("llama-4x256", batch=1, time=len(ids), **how)
        total += model.forward_backward(ids[None], aims[None], count=count)
        for name, array in model.grads.items():
            gradients[name] += array
    assert abs(loss - total) < 1e-12
    for name, array in together.grads.items():
        assert np.abs(array - gradients[name]).max() < 1e-12, name


def test_where_no_answer_is_reached_nothing_is_left_and_the_length_that_would_do_is_said():
    given = Side(np.arange(20) % 7, np.array([False] * 9 + [True] + [False] * 8 + [True] * 2), np.array([10, 10]))
    rows = PackedRows(given, 8, packed=True)
    assert (rows.lost, rows.cut, rows.longest) == (1, 1, 9)
    with pytest.raises(TapelessError, match="at least --time 8"):
        PackedRows(given, 7, packed=True)
    assert len(PackedRows(given, 9, packed=True)) == 2


def test_epochs_bring_every_row_and_go_on_where_they_stood():
    rows = PackedRows(side([8] * 12, seed=4), 7, packed=True)
    stream = ChatBatches(rows, batch=3, seed=5)
    first = [next(stream) for _ in range(4)]
    seen = np.concatenate([inputs.tokens for inputs, _ in first])
    assert len({row.tobytes() for row in seen}) == 12
    state, after = stream.state(), next(stream)
    again = ChatBatches(rows, batch=3, seed=5)
    again.restore(state)
    assert np.array_equal(next(again)[1], after[1])
    with pytest.raises(TapelessError, match="give --batch 12"):
        ChatBatches(rows, batch=13, seed=5)


def test_an_evaluation_sees_every_row_once_or_some_of_all():
    rows = PackedRows(side([8] * 10, seed=6), 7, packed=True)
    counted = [int((targets != -1).sum()) for _, targets in every_row(rows, 4)]
    assert len(counted) == 3
    assert sum(counted) == int(rows.side.learned.reshape(10, 8)[:, 1:].sum())
    assert len(list(every_row(rows, 4, limit=1))) == 1
