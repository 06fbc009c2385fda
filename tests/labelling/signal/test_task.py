"""Labelled signals as a trainer sees them: windows, order, evaluation, weights, and that something is learned."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless import Model
from tapeless.errors import TapelessError
from tapeless.labelling.signal import Features, Labelled, Recording, class_weights, features, hold_out
from tapeless.labelling.signal.store import Store, make_store
from tapeless.labelling.signal.task import cut, spans
from tapeless.models.presets import preset
from tapeless.train.loop import Evaluated, Step, Trainer
from tapeless.train.settings import Settings
from tests.labelling.signal.made import bursts, noise
from tests.random_cases import cases
from tests.train.following import follow

SCALES = (3.0, 10.0)
WAVELETS = Features(scales=SCALES)
SMALL: dict[str, Any] = {"layers": 1, "channels": 16, "heads": 2, "features": 4, "context": 32}


def small_model(**more: Any) -> Model:
    return Model("sunfish", batch=4, time=32, **(SMALL | {"backend": "reference"} | more))


def task(training, validation, **more: Any) -> Labelled:
    config = preset("sunfish").override(**SMALL).architecture
    return Labelled(config, training, validation, time=32, features=WAVELETS, **({"seed": 0} | more))


@st.composite
def stores(draw) -> Store:
    """Several recordings, most labels known; features that name their position."""
    lengths = draw(st.lists(st.integers(1, 70), min_size=1, max_size=4))
    bounds = tuple(np.cumsum([0, *lengths]).tolist())
    labels = np.random.default_rng(draw(st.integers(0, 100))).integers(-1, 2, bounds[-1]).astype(np.int16)
    labels[0] = 0
    return Store(np.arange(2.0 * bounds[-1], dtype=np.float32).reshape(-1, 2), labels, bounds)


@cases(60)
@given(stores(), st.integers(1, 20), st.data())
def test_windows_stay_inside_their_recording_and_leave_no_label_out(store, window, data):
    step = data.draw(st.integers(1, window))
    rows = spans(store, window, step)
    covered = np.zeros(len(store.labels), bool)
    for start, stop, first in rows.tolist():
        assert first == start
        assert any(begin <= start < stop <= end for begin, end in pairwise(store.bounds))
        assert (store.labels[start:stop] >= 0).any()
        covered[start:stop] = True
    assert covered[store.labels >= 0].all()


@cases(60)
@given(stores(), st.integers(1, 20))
def test_an_evaluation_counts_every_label_once(store, window):
    rows = spans(store, window, window, once=True)
    inputs, targets = cut(store, rows, len(rows) + 1, window)
    known = targets >= 0
    positions = (inputs[known][:, 0] / 2).astype(int)
    assert sorted(positions) == np.flatnonzero(store.labels >= 0).tolist()
    np.testing.assert_array_equal(targets[known], store.labels[positions])
    assert not known[-1].any()


def test_a_recording_shorter_than_a_window_is_masked_and_not_made_up():
    short, long = Recording(noise(5), [1, 0, 1, -1, 0]), Recording(noise(40, 1), np.ones(40, int))
    store = make_store([short, long], WAVELETS, 2)
    inputs, targets = cut(store, spans(store, 32, 32), 3, 32)
    np.testing.assert_array_equal(inputs[0, :5], features(short.signal, SCALES))
    assert not inputs[0, 5:].any()
    assert targets[0].tolist() == [1, 0, 1, -1, 0] + 27 * [-1]
    np.testing.assert_array_equal(inputs[2], features(long.signal, SCALES)[8:])


def test_features_of_one_recording_know_nothing_of_another():
    recordings = [bursts(300, 0), bursts(7, 1), bursts(90, 2)]
    store = make_store(recordings, WAVELETS, 2)
    for recording, (begin, end) in zip(recordings, pairwise(store.bounds), strict=True):
        np.testing.assert_array_equal(store.features[begin:end], features(recording.signal, SCALES))
        np.testing.assert_array_equal(store.labels[begin:end], recording.labels)


def test_what_does_not_fit_the_budget_lies_in_a_file_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    recordings = [bursts(40_000, 0), bursts(30, 1)]
    size = 40_030 * 4 * 4
    held = make_store(recordings, WAVELETS, 2, budget=size)
    mapped = make_store(recordings, WAVELETS, 2, budget=size - 1)
    assert not isinstance(held.features, np.memmap)
    assert isinstance(mapped.features, np.memmap)
    np.testing.assert_array_equal(mapped.features, held.features)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1000})())
    monkeypatch.setattr("tapeless.labelling.signal.wavelet._feature_blocks", lambda *given: pytest.fail("computed"))
    with pytest.raises(TapelessError, match=r"features take 4,800 bytes, and .* has 1,000 left"):
        make_store([bursts(300, 0)], WAVELETS, 2, budget=0)


def test_a_disk_that_fills_up_is_told(monkeypatch):
    def fail(**given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(TapelessError, match=r"could not be written to .*: No space left on device"):
        make_store([bursts(300, 0)], WAVELETS, 2, budget=0)


def test_an_epoch_holds_every_window_once_in_an_order_of_its_own():
    labelled = task([bursts(500, 0), bursts(100, 1)], [bursts(50, 2)])
    batches = labelled.batches(3)
    windows = len(spans(labelled.training, 32, 16))
    assert batches.steps_per_epoch == windows // 3
    epochs = []
    for number in (0, 1):
        assert batches.epoch == number
        drawn = np.concatenate([next(batches)[0] for _ in range(batches.steps_per_epoch)])
        epochs.append([each.tobytes() for each in drawn])
        assert len(set(epochs[-1])) == 3 * (windows // 3)
    assert epochs[0] != epochs[1]
    other = task([bursts(500, 0), bursts(100, 1)], [bursts(50, 2)], seed=1).batches(3)
    assert next(other)[0].tobytes() != b"".join(epochs[0][:3])


def test_batches_go_on_bit_for_bit():
    labelled = task([bursts(500, 0)], [bursts(50, 1)])
    batches = labelled.batches(4)
    for _ in range(batches.steps_per_epoch + 2):
        next(batches)
    state = batches.state()
    again = labelled.batches(4)
    again.restore(state)
    for _ in range(2 * batches.steps_per_epoch):
        for mine, theirs in zip(next(batches), next(again), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert batches.state() == again.state()
    assert all(type(value) is int for value in state.values())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": 5}, "batch=5"),
        ({"seed": 9}, "seed=9"),
        ({"samples": 1}, "samples=1"),
        ({"step": None}, "step=None"),
        ({"position": -1}, "damaged: position is -1"),
        ({"position": 10**6}, "damaged: position is 1000000"),
        ({"epoch": True}, "damaged: epoch is True"),
    ],
)
def test_a_position_in_other_data_is_refused_and_nothing_moves(change, says):
    batches = task([bursts(500, 0)], [bursts(50, 1)]).batches(4)
    before = batches.state()
    with pytest.raises(TapelessError, match=says):
        batches.restore(before | change)
    assert batches.state() == before


@pytest.mark.parametrize("batches", [1, 100])
def test_an_evaluation_is_the_mean_over_held_out_positions(batches):
    validation = [bursts(170, 1), bursts(20, 2)]
    validation[0].labels[40:60] = -1
    labelled, model = task([bursts(300, 0)], validation), small_model()
    store = labelled.validation
    rows = spans(store, 32, 32, once=True)
    rows = rows if batches == 100 else rows[[0, 1, 3, 5]]  # 4 of 7, spread evenly
    losses, hits = [], []
    for start, stop, first in rows.tolist():
        inputs = np.zeros((1, 32, 4))
        inputs[0, : stop - start] = store.features[start:stop]
        scores = model.logits(inputs)[0, first - start : stop - start]
        labels = store.labels[first:stop]
        for row, label in zip(scores, labels, strict=True):
            if label >= 0:
                losses.append(np.log(np.exp(row).sum()) - row[label])
                hits.append(row.argmax() == label)
    measured = labelled.evaluate(model, batches)
    assert measured.loss == pytest.approx(np.mean(losses), rel=1e-10)
    assert measured.accuracy == np.mean(hits)


def test_what_is_held_out_is_never_seen():
    whole = bursts(1000, 0)
    changed = Recording(whole.signal.copy(), whole.labels)
    changed.signal[800:] = 1e6
    (kept,), (held,) = hold_out([whole], 0.2)
    assert (len(kept.signal), len(held.signal)) == (800, 200)
    np.testing.assert_array_equal(np.concatenate([kept.labels, held.labels]), whole.labels)
    np.testing.assert_array_equal(np.concatenate([kept.signal, held.signal]), whole.signal)
    (other,), _ = hold_out([changed], 0.2)
    np.testing.assert_array_equal(make_store([kept], WAVELETS, 2).features, make_store([other], WAVELETS, 2).features)


@cases(60)
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=300), st.booleans())
def test_class_weights_are_inverse_frequencies_with_a_mean_of_one(labels, as_list):
    labels[0] = max(labels[0], 0)
    weights = class_weights(labels if as_list else np.array(labels))
    known = [label for label in labels if label >= 0]
    assert len(weights) == max(known) + 1
    assert np.mean([weights[label] for label in known]) == pytest.approx(1, rel=1e-12)
    assert max(weights) <= 100 * min(weights) * (1 + 1e-12)
    present = sorted(set(known))
    counted = [weights[label] * known.count(label) for label in present]
    if max(map(known.count, present)) <= 100 * min(map(known.count, present)):
        np.testing.assert_allclose(counted, counted[0], rtol=1e-12)  # every class counts the same


def test_class_weights_by_hand():
    assert class_weights([0, 0, 0, 1]) == pytest.approx((2 / 3, 2.0))
    assert class_weights(np.array([False, False, True, True, False, False])) == pytest.approx((0.75, 1.5))
    rare = class_weights(np.arange(1_000_000) == 5)
    assert rare[1] / rare[0] == pytest.approx(100)
    assert class_weights([0, 0], classes=3) == pytest.approx((1, 100, 100))


def trainer(**more: Any) -> Trainer:
    training, validation = hold_out([bursts(4000, 0), bursts(2000, 1)], 0.2)
    settings = Settings(data="signal", steps=60, lr=3e-3, seed=0, eval_every=30)
    return Trainer(small_model(**more), task(training, validation), settings)


def test_a_trainer_learns_where_the_period_is():
    """Majority is about a half."""
    measured = [event.measured for event in follow(trainer()) if isinstance(event, Evaluated)]
    assert measured[-1].accuracy is not None
    assert measured[-1].accuracy > 0.9
    assert measured[-1].loss < measured[0].loss


def test_training_is_the_same_for_the_same_seed():
    def losses() -> list[float]:
        made = trainer()
        seen = follow(made, lambda: "enough" if made.step == 5 else None)
        return [event.loss for event in seen if isinstance(event, Step)]

    assert losses() == losses()
