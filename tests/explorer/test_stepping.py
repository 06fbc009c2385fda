"""A step walked again for a page: numbers of the engine, and nothing is left different by the look."""

import json

import numpy as np
import pytest

from tapeless import TapelessError
from tapeless.backends import backend
from tapeless.check import lockstep
from tapeless.explorer.stepping import of_calls, of_one
from tapeless.explorer.tracing import Tracer
from tapeless.train.history.record import read_record
from tests.explorer.serving import trained


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def traced(run):
    return Tracer(run)._at(8)


def test_every_call_is_held_to_the_reference_and_named_where_it_is_off(traced, monkeypatch):
    found = of_calls(traced, "error")
    assert all(each["ok"] for each in found["calls"])
    assert len(found["calls"]) == len([c for c in traced.model.program.calls if c.phase not in ("clip", "update")])
    json.dumps(found, allow_nan=False)
    calls = traced.model.program.calls
    number = next(n for n, call in enumerate(calls) if call.title == "linear.backward")
    plain = backend.run_call

    def planted(wanted, arrays, where):
        plain(wanted, arrays, where)
        if wanted is calls[number] and where is traced.model.engine.backend:
            arrays["dx"][3, 1] += 0.5

    monkeypatch.setattr(lockstep, "run_call", planted)
    wrong = [each for each in of_calls(traced, "error")["calls"] if not each["ok"]]
    assert [each["call"] for each in wrong] == [number]
    assert wrong[0]["position"] == [3, 1]


def test_looking_changes_nothing(traced):
    before = {name: traced.model.read(name).copy() for name in traced.model.params}
    first = traced.element(3, 1, 2)
    for what in ("error", "time"):
        of_calls(traced, what)
    of_one(traced, 20)
    assert all(np.array_equal(traced.model.read(name), array) for name, array in before.items())
    assert traced.element(3, 1, 2) == first
    found = traced.digits(3, 1, 2)  # in which a table of positions that float32 has rounded would show
    assert float(found["backward"]) == pytest.approx(float(found["complex_step"]), rel=1e-12)


def test_a_calls_numbers_are_those_that_the_record_has_measured(run, traced):
    """Update 9 is recorded, and it is the one that is made again from the checkpoint of step 8."""
    record = read_record(run / "record.jsonl")
    header = record.header
    row = record.rows[record.steps.tolist().index(9)]
    for result, (number, index) in list(enumerate(header.results))[::7]:
        found = of_one(traced, number)
        assert found["listing"] == header.listing
        written = [each for each in found["arguments"] if each["mode"] != "read"][index]
        assert written["buffer"] == header.calls[number]["results"][index]["buffer"]
        assert written["spread"]["most"] == pytest.approx(row[header.column(result, "largest")], rel=1e-4)


def test_times_are_shares_of_a_ceiling(traced):
    found = of_calls(traced, "time")["calls"]
    assert all(0 < each["share"] <= 1 and each["ms"] > 0 for each in found)


def test_there_is_no_such_call(traced):
    with pytest.raises(TapelessError, match="no call 9999"):
        of_one(traced, 9999)
    with pytest.raises(TapelessError, match="Trace a weight"):
        of_one(traced, len(traced.model.program.calls) - 1)
