"""A training that launches the next update before it looks at the last: the same events, the same bits and the same
errors as that of one that waits, and nobody waits for the device but where somebody looks."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.backends import reference
from tapeless.backends.reference import REFERENCE
from tapeless.errors import NonFiniteError, TapelessError
from tapeless.train import checkpoint
from tapeless.train.history.record import FILE as RECORD
from tapeless.train.history.recording import StepRecording
from tapeless.train.history.snapshots import FOLDER as SNAPSHOTS
from tapeless.train.loop import Evaluated, Finished, Logged, SaveDue, Spiked, Step, Trainer, train
from tapeless.train.metrics import read_metrics
from tapeless.train.session import resume, start
from tapeless.train.settings import Request, Settings
from tests.backends.delayed import Delayed, Overflowing
from tests.train.following import follow
from tests.train.test_loop import FIELDS, Given
from tests.train.test_resume import fingerprint

LARGE = 11  # a word whose embedding is so large that a batch which is to predict it has an infinite loss
STEPS = 23
SETTINGS = Settings(
    steps=STEPS, lr=3e-3, schedule="cosine", clip=0.5, log_every=4, eval_every=9, save_every=5, eval_batches=1
)
UPDATES = [pytest.param(number, id=f"update {number}") for number in (1, 2, 3, 4, 7, 12, 22, 23)]


def batches_of(count: int, seed: int = 0) -> list[tuple[Any, Any]]:
    """Of all words but the large one; ignored targets are spread unevenly."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        tokens, targets = rng.integers(0, LARGE, (2, 6)), rng.integers(0, LARGE, (2, 6))
        targets[rng.random((2, 6)) < 0.3] = -1
        targets[:, 0] = 5
        made.append((tokens, targets))
    return made


def trainer_on(backend, settings=SETTINGS, given=None, **fields) -> Trainer:
    """Of a model that drops at random: what it draws must be right too."""
    fields = FIELDS | {"vocab": LARGE + 1, "loss": "squared_error", "dropout": 0.2} | fields
    model = Model("gpt2-4x256", batch=2, time=6, backend=backend, optimizer="adam", seed=4, **fields)
    return Trainer(model, Given(given or batches_of(3 * STEPS), [3.0, 2.0, 4.0, 1.0]), settings)


def enlarge(trainer: Trainer, size: float = 1e200) -> None:
    table = trainer.model.read("tokens.weight").copy()
    table[LARGE] = size
    trainer.model.write("tokens.weight", table)


def told(event: Any) -> Any:
    """Without what a clock says."""
    return replace(event, tokens_per_second=0.0, phases={}) if isinstance(event, Logged) else event


def happened(trainer: Trainer) -> list[Any]:
    """All of it, the error that ended it included."""
    seen: list[Any] = []
    try:
        train(trainer, lambda event: seen.append(told(event)))
    except TapelessError as error:
        seen.append((type(error), str(error)))
    return seen


def events_of(trainer: Trainer) -> tuple[list[Any], str]:
    """What happened, and the state at the end."""
    return happened(trainer), fingerprint(trainer)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_what_happens_is_what_happens_where_it_waits(accumulate):
    settings = replace(SETTINGS, accumulate=accumulate)
    ahead = trainer_on(Delayed(), settings)
    waited, found = events_of(trainer_on("reference", settings)), events_of(ahead)
    assert found == waited
    kinds = {type(event) for event in found[0]}
    assert kinds == {Step, Logged, Evaluated, SaveDue, Finished}


@pytest.mark.parametrize(("backend", "flies"), [("reference", False), ("cpu", False), (Delayed(), True)])
def test_on_host_backends_nothing_is_in_flight(backend, flies):
    trainer = trainer_on(backend)
    flights: list[bool] = []
    train(trainer, stopping=lambda: flights.append(trainer.in_flight))
    assert any(flights) == flies


@pytest.mark.parametrize("accumulate", [1, 3])
def test_nobody_waits_where_nobody_looks(accumulate):
    """The device always has something to do, and it is waited for where a line is due alone."""
    backend = Delayed()
    settings = replace(SETTINGS, steps=40, log_every=10, eval_every=40, save_every=40, accumulate=accumulate)
    trainer = trainer_on(backend, settings)
    stops: dict[int, int] = {}

    def looked() -> None:
        before, stops[trainer.step] = stops.get(trainer.step), backend.stops
        assert before in (None, backend.stops)
        if trainer.step % 10 not in (0, 9) and trainer.step > 1:
            assert backend.queue

    train(trainer, stopping=looked)
    assert len({stops[step] for step in range(11, 19)}) == 1
    assert len({stops[step] for step in range(21, 29)}) == 1
    assert stops[21] > stops[19]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("number", UPDATES)
def test_an_update_that_is_not_finite_is_stopped_as_where_it_waits(number, accumulate):
    """One word of one batch makes it so. The error is the same, with the numbers that the batch's walk has seen; no
    weight has changed, and where the word is mended the training goes on as if nothing had been launched in vain."""
    settings = replace(SETTINGS, accumulate=accumulate)
    given = batches_of(3 * STEPS)
    found = []
    for backend in (REFERENCE, Delayed()):
        at = (number - 1) * accumulate + accumulate // 2
        wrong = [(tokens, targets.copy()) for tokens, targets in given]
        trainer = trainer_on(backend, settings, wrong)
        enlarge(trainer)
        wrong[at][1][1, 4] = LARGE
        first = events_of(trainer)
        assert trainer.model.draws == (number - 1) * accumulate
        enlarge(trainer, 0.1)
        found.append((first, events_of(trainer)))
    assert found[1] == found[0]
    kind, error = found[0][0][0][-1]
    assert kind is NonFiniteError
    assert f"update {number} was stopped: the loss is inf. The first call" in error
    steps = [[event.number for event in events if isinstance(event, Step)] for events, _ in found[0]]
    assert steps == [list(range(1, number)), list(range(number, STEPS + 1))]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("number", UPDATES)
@pytest.mark.parametrize("what", ["norm", "loss"])
def test_either_of_loss_and_norm_stops_what_was_launched_after_it(what, number, accumulate):
    """The other is finite. Of batches that are added up, any but the last has a loss alone."""
    settings = replace(SETTINGS, accumulate=accumulate)
    at = number if what == "norm" else (number - 1) * accumulate + 1
    found = []
    for delayed in (False, True):
        inner = Overflowing(at, what)
        trainer = trainer_on(Delayed(inner) if delayed else inner, settings)
        found.append((events_of(trainer), events_of(trainer)))
    assert found[1] == found[0]
    said = "the gradients have a norm of inf in float64" if what == "norm" else "the loss is inf"
    assert f"update {number} was stopped: {said}" in found[0][0][0][-1][1]


def test_an_update_is_launched_before_the_one_that_is_stopped_is_known():
    """Or the tests above would show nothing."""
    for number, launched in ((7, 8), (12, 12)):  # 12 is one that somebody looks at
        inner = Overflowing(number)
        events_of(trainer_on(Delayed(inner)))
        assert inner.runs == launched


def test_a_spike_is_told_with_the_norms_of_its_update():
    settings = replace(SETTINGS, steps=70, log_every=10, eval_every=70, save_every=70)
    found = []
    for backend in (REFERENCE, Delayed()):
        given = batches_of(70)
        trainer = trainer_on(backend, settings, given)
        enlarge(trainer, 30.0)
        given[60][1][1, 4] = LARGE
        found.append([event for event in events_of(trainer)[0] if isinstance(event, Spiked)])
    assert found[1] == found[0]
    assert [spike.step for spike in found[0]] == [61]
    assert "usually" in found[0][0].message


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("number", [2, 3, 7])
def test_a_batch_that_is_refused_is_told_of_after_what_was_launched_before_it(number, accumulate):
    settings = replace(SETTINGS, accumulate=accumulate)
    found = []
    for backend in (REFERENCE, Delayed()):
        given = batches_of(3 * STEPS)
        given[(number - 1) * accumulate + accumulate // 2][0][0, 2] = LARGE + 1  # no word of it
        trainer = trainer_on(backend, settings, given)
        found.append(happened(trainer))
    assert found[1] == found[0]
    *seen, (kind, error) = found[0]
    assert kind is TapelessError
    assert error.startswith("tokens hold 12 at (0, 2)")
    assert [event.number for event in seen if isinstance(event, Step)] == list(range(1, number))


def test_of_an_update_with_both_the_first_is_told():
    """A batch that is not finite, and then one that is refused."""
    given = batches_of(3 * STEPS)
    trainer = trainer_on(Delayed(), replace(SETTINGS, accumulate=3), given)
    enlarge(trainer)
    given[18][1][1, 4] = LARGE
    given[19][0][0, 2] = LARGE + 1
    kind, error = events_of(trainer)[0][-1]
    assert kind is NonFiniteError
    assert "update 7 was stopped" in error


def stopped(pauses: Iterator[int], most: int) -> str | None:
    return "enough" if next(pauses) >= most else None


@pytest.mark.parametrize("accumulate", [1, 3])
def test_left_anywhere_it_goes_on_bit_for_bit(tmp_path, accumulate):
    settings = replace(SETTINGS, accumulate=accumulate)
    waited, states = events_of(trainer_on("reference", settings)), {}
    trainer = trainer_on("reference", settings)
    train(trainer, stopping=lambda: states.update({(trainer.step, trainer.added): fingerprint(trainer)}))
    kept = []
    for cut in range(1, accumulate * STEPS, 2 * accumulate - 1):
        first, pauses = trainer_on(Delayed(), settings), count(1)
        *seen, finished = follow(first, partial(stopped, pauses, cut))
        assert finished == Finished("enough")
        events = [told(event) for event in seen]
        assert fingerprint(first) == states[first.step, first.added]
        kept.append(first.added)
        checkpoint.save(tmp_path / str(cut), first.step, first.tensors(), first.state())
        second = trainer_on(Delayed(), settings)
        second.task = first.task  # with what it has still to measure
        found, _ = checkpoint.newest(tmp_path / str(cut))
        assert found is not None
        second.restore(found)
        rest, end = events_of(second)
        assert ([*events, *rest], end) == waited
    assert len(set(kept)) == accumulate  # some in the middle of an update


@pytest.mark.parametrize("delayed", [False, True])
def test_of_an_update_that_was_resumed_in_its_middle_the_right_batch_is_walked(tmp_path, delayed):
    settings, errors = replace(SETTINGS, accumulate=3), []
    for cut in (None, 19):
        given = batches_of(3 * STEPS)
        trainer = trainer_on(Delayed() if delayed else "reference", settings, given)
        enlarge(trainer)
        given[20][1][1, 4] = LARGE
        if cut is not None:
            for _ in range(cut):
                trainer.batch()
            checkpoint.save(tmp_path, trainer.step, trainer.tensors(), trainer.state())
            trainer = trainer_on(Delayed() if delayed else "reference", settings, given)
            found, _ = checkpoint.newest(tmp_path)
            assert found is not None
            trainer.restore(found)
            assert trainer.added == 1
        errors.append(happened(trainer)[-1])
    assert errors[0] == errors[1]
    assert "update 7 was stopped: the loss is inf" in errors[0][1]


def test_nothing_is_kept_of_what_is_in_flight():
    trainer = trainer_on(Delayed())

    def ask() -> str | None:
        if not trainer.in_flight:
            return None
        with pytest.raises(TapelessError, match="in flight"):
            trainer.state()
        return "enough"

    train(trainer, stopping=ask)  # what was in flight is taken in
    assert trainer.state()["step"] == trainer.model.steps == 2


def test_no_time_is_counted_twice(tmp_path, monkeypatch):
    """An update is launched while the one before it runs; what it takes begins where that ends."""
    trainer = trainer_on(Delayed(), replace(SETTINGS, log_every=STEPS, eval_every=STEPS, save_every=STEPS))
    trainer.recording = StepRecording(tmp_path, trainer.model, STEPS)
    took: list[float] = []
    monkeypatch.setattr(trainer.recording, "took", took.append)
    begun = time.perf_counter()
    happened(trainer)
    assert len(took) == STEPS
    assert 0 < sum(took) <= time.perf_counter() - begun


def test_patience_that_is_over_ends_it_with_nothing_in_flight():
    """As where a run is resumed with less of it."""
    trainer = trainer_on(Delayed(), replace(SETTINGS, patience=2))
    for _ in range(6):
        trainer.batch()
    trainer.without_better = 2
    assert isinstance(follow(trainer)[-1], Finished)
    assert trainer.state()["step"] == trainer.model.steps == 6


def request(**changes):
    settings = Settings(
        data="operations",
        backend="reference",
        batch=400,
        steps=16,
        lr=1e-3,
        log_every=4,
        eval_every=10,
        save_every=7,
        **changes,
    )
    return Request("ops-102k", {"layers": 1, "channels": 8, "heads": 2, "dropout": 0.1}, settings)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stop", [None, 3, 6, 9, 11])
def test_a_run_is_the_same_in_every_file(tmp_path, monkeypatch, stop, accumulate):
    """Stopped in the middle and resumed, or not: metrics, recorded updates, snapshots and weights."""
    asked = request(record=5, accumulate=accumulate)
    whole = start(asked, tmp_path / "whole")
    saved = kept(follow(whole))
    monkeypatch.setattr(reference, "REFERENCE", Delayed())
    ahead = start(asked, tmp_path / "ahead")
    events = follow(ahead, lambda: None if ahead.trainer.step != stop else "enough")
    if stop is not None:
        assert events[-1] == Finished("enough")
        assert ahead.last_saved == ahead.trainer.step
        # Update 7 or 12, or its first batch, was in flight; of update 10, which is recorded, only its first may be.
        expected = {3: (3, 0), 6: (7, 0), 9: (9, 0), 11: (12, 0)} if accumulate == 1 else {3: (3, 0)}
        assert (ahead.trainer.step, ahead.trainer.added) == expected.get(stop, (stop, 1))
        del events[-1:]
        ahead = resume(tmp_path / "ahead", {}, {})
        events += follow(ahead)
    assert kept(events) == saved
    assert fingerprint(ahead.trainer) == fingerprint(whole.trainer)
    snapshots = [path.name for path in (tmp_path / "whole" / SNAPSHOTS).iterdir()]
    assert len(snapshots) > 3
    for name in (RECORD, *(f"{SNAPSHOTS}/{each}" for each in snapshots)):
        assert (tmp_path / "ahead" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    lines = [[untimed(line) for line in read_metrics(tmp_path / name)] for name in ("ahead", "whole")]
    lines[0] = [line for line in lines[0] if line.get("reason") != "enough"]
    assert lines[0] == lines[1]
    assert [line["step"] for line in lines[1] if line["kind"] == "step"][:3] == [1, 4, 8]


def kept(events: Iterable[Any]) -> list[tuple[int, bool]]:
    """The checkpoints, and whether each was the best so far."""
    return [(event.step, event.best) for event in events if isinstance(event, SaveDue)]


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("tokens_per_second", "phases")}


def test_a_run_that_is_stopped_by_what_is_not_finite_keeps_the_update_before_it(tmp_path, monkeypatch):
    found = []
    for delayed in (False, True):
        inner = Overflowing(6)
        monkeypatch.setattr(reference, "REFERENCE", Delayed(inner) if delayed else inner)
        session = start(request(record=0), tmp_path / str(delayed))
        with pytest.raises(NonFiniteError, match="update 6 was stopped"):
            session.train()
        assert inner.runs == 6 + delayed
        assert session.last_saved == 5
        found.append((fingerprint(session.trainer), [untimed(line) for line in read_metrics(session.run.folder)]))
    assert found[0] == found[1]
    assert found[0][1][-1]["kind"] == "stop"
