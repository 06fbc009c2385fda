import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.errors import TapelessError
from tapeless.tasks.data.batches import Batches, evaluation_batches
from tapeless.tasks.data.tokens import Tokens
from tests.random_cases import cases


def counting(length: int) -> Tokens:
    """Each id is its own place, in three shards."""
    places = np.arange(length, dtype="<u4")
    return Tokens([part for part in np.split(places, [length // 3, length // 2]) if len(part)])


def taken(batches: Batches, count: int):
    return [next(batches) for _ in range(count)]


sizes = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 200), st.integers(0, 3))


@given(sizes=sizes)
@cases(100)
def test_in_each_epoch_every_window_comes_exactly_once(sizes):
    batch, time, more, seed = sizes
    length = batch * time + 1 + more
    batches = Batches(counting(length), batch, time, seed)
    orders = []
    for epoch in range(3):
        assert batches.epoch == epoch
        starts = []
        for inputs, targets in taken(batches, batches.steps_per_epoch):
            assert inputs.shape == targets.shape == (batch, time)
            assert inputs.dtype == targets.dtype == np.int64
            assert (targets == inputs + 1).all()
            assert (np.diff(inputs, axis=1) == 1).all()
            starts.extend(inputs[:, 0].tolist())
        assert batches.epoch == epoch + 1
        first = min(starts)
        assert sorted(starts) == list(range(first, first + len(starts) * time, time))
        assert length - 1 - len(starts) * time < batch * time  # what is left out does not fill a batch
        orders.append(starts)


def test_order_and_offset_change_with_epoch_and_seed():
    def starts(seed, epochs):
        batches = Batches(counting(1000), 2, 7, seed)
        everything = [inputs[:, 0].tolist() for inputs, _ in taken(batches, epochs * batches.steps_per_epoch)]
        flat = [start for pair in everything for start in pair]
        return np.array(flat).reshape(epochs, -1)

    first = starts(0, 40)
    assert (first == starts(0, 40)).all()
    assert (first != starts(1, 40)).any()
    assert len({tuple(epoch) for epoch in first}) == 40
    assert len({epoch.min() for epoch in first}) > 3
    assert not any((np.diff(epoch) > 0).all() for epoch in first)
    # Every token is seen in some epoch, those at the edges too.
    assert first.min() == 0
    assert first.max() + 7 == 999


def test_the_order_is_the_one_it_always_was():
    """A checkpoint of yesterday goes on tomorrow, on another machine: these numbers must not change."""
    inputs, _ = next(Batches(counting(100), 4, 5, seed=3))
    assert inputs[:, 0].tolist() == [15, 40, 30, 0]


@given(sizes=sizes, stop=st.integers(0, 60), after=st.integers(1, 30))
@cases(100)
def test_after_restoring_the_sequence_is_the_uninterrupted_one(sizes, stop, after):
    batch, time, more, seed = sizes
    tokens = counting(batch * time + 1 + more)
    straight = Batches(tokens, batch, time, seed)
    taken(straight, stop)
    state = json.loads(json.dumps(straight.state()))
    again = Batches(tokens, batch, time, seed)
    taken(again, after)  # a restored position does not depend on where it was before
    again.restore(state)
    assert again.epoch == straight.epoch
    for (inputs, targets), (other_inputs, other_targets) in zip(
        taken(straight, after), taken(again, after), strict=True
    ):
        assert (inputs == other_inputs).all()
        assert (targets == other_targets).all()
    assert again.state() == straight.state()


@pytest.mark.parametrize("edge", [0, 1, -1])
def test_positions_around_an_epoch_edge_are_restored(edge):
    straight = Batches(counting(500), 3, 8, seed=5)
    taken(straight, 2 * straight.steps_per_epoch + edge)
    again = Batches(counting(500), 3, 8, seed=5)
    again.restore(straight.state())
    for (inputs, _), (other, _) in zip(taken(straight, 50), taken(again, 50), strict=True):
        assert (inputs == other).all()


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 501},
        {"batch": 2},
        {"time": 4},
        {"seed": 6},
        {"seed": None},
        {"epoch": -1},
        {"epoch": "2"},
        {"epoch": 1.0},
        {"position": -1},
        {"position": 10**6},
        {"position": None},
        {"position": True},
    ],
    ids=str,
)
def test_a_position_in_other_data_or_a_damaged_one_is_refused_and_nothing_moves(change):
    batches = Batches(counting(500), 3, 8, seed=5)
    next(batches)
    before = batches.state()
    with pytest.raises(TapelessError, match=next(iter(change))):
        batches.restore({**before, **change})
    assert batches.state() == before


def test_a_state_without_a_field_is_refused():
    batches = Batches(counting(500), 3, 8, seed=5)
    for name in batches.state():
        with pytest.raises(TapelessError, match=name):
            batches.restore({key: value for key, value in batches.state().items() if key != name})


@pytest.mark.parametrize("length", [0, 1, 24])
def test_data_too_short_for_one_batch_is_refused(length):
    with pytest.raises(TapelessError, match=f"needs 25 tokens, and there are {length}"):
        Batches(Tokens([np.zeros(length, "<u2")]), 3, 8, seed=0)


@pytest.mark.parametrize("field", ["batch", "time", "seed"])
@pytest.mark.parametrize("value", [-1, 1.5, "2", True, None])
def test_sizes_that_are_none_are_refused(field, value):
    with pytest.raises(TapelessError, match=field):
        Batches(counting(100), **{"batch": 1, "time": 1, "seed": 0, field: value})


@given(length=st.integers(2, 200), batch=st.integers(1, 5), time=st.integers(1, 9))
@cases(100)
def test_evaluation_sees_every_target_once_in_order(length, batch, time):
    seen = []
    for inputs, targets in evaluation_batches(counting(length), batch, time):
        assert inputs.shape == targets.shape == (batch, time)
        assert inputs.dtype == targets.dtype == np.int64
        counted = targets != -1
        assert counted.any()
        assert (targets[counted] == inputs[counted] + 1).all()
        assert (inputs[~counted] == 0).all()
        seen.extend(targets[counted].tolist())
    assert seen == list(range(1, length))


def test_evaluation_is_the_same_every_time_and_pads_the_last_batch():
    first = [targets for _, targets in evaluation_batches(counting(31), 2, 8)]
    again = [targets for _, targets in evaluation_batches(counting(31), 2, 8)]
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert len(first) == 2
    assert first[1][1].tolist() == [25, 26, 27, 28, 29, 30, -1, -1]


def test_a_limit_spreads_the_windows_over_the_whole():
    limited = list(evaluation_batches(counting(8001), 2, 8, limit=5))
    starts = np.concatenate([inputs[:, 0] for inputs, _ in limited])
    assert starts.tolist() == list(range(0, 8000, 800))
    everything = list(evaluation_batches(counting(100), 2, 8, limit=1000))
    assert len(everything) == len(list(evaluation_batches(counting(100), 2, 8)))


@pytest.mark.parametrize("limit", [0, -1, 1.5])
def test_a_limit_that_is_none_is_refused_at_once(limit):
    with pytest.raises(TapelessError, match="limit"):
        evaluation_batches(counting(100), 2, 8, limit=limit)


def test_nothing_to_evaluate_on_is_refused_at_once():
    with pytest.raises(TapelessError, match="a target needs 2"):
        evaluation_batches(counting(1), 2, 8)
