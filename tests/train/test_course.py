"""Lines of metrics as columns: what comes out is what the lines say, and long runs cost what they hold."""

import json
import time
import tracemalloc

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.files.plain import parse_json
from tapeless.train.believed import is_line
from tapeless.train.course import Course
from tapeless.train.doctor import diagnose
from tapeless.train.metrics import FILE, each_line, last_step, parsed, read_metrics

STEP = {"kind": "step", "step": 3, "loss": 0.5, "lr": 0.1, "gradient_norm": 1.5, "tokens_per_second": 100.0}
ROWS = [
    json.dumps(STEP),
    json.dumps({**STEP, "phases": {"data": 0.5}, "update_ratios": {"head": None, "blocks.0": 1e-3}}),
    '{"kind": "step"}',
    '{"kind": "step", "step": -1}',
    '{"kind": "step", "step": 1.0}',
    '{"kind": "step", "step": true}',
    '{"kind": "step", "step": 9223372036854775808}',
    '{"kind": "step", "step": 1, "loss": {}}',
    '{"kind": "step", "step": 1, "loss": {"a": 1.0}}',
    '{"kind": "step", "step": 1, "gradient_norms": 1.0}',
    '{"kind": "step", "step": 1, "gradient_norms": {"a": "b"}}',
    '{"kind": "step", "step": 1, "loss": "1"}',
    '{"kind": "step", "step": 1, "loss": NaN}',
    '{"kind": "step", "step": 1, "loss": 7}',
    '{"kind": "step", "step": 1, "other": [1, "\\ud800"]}',
    '{"kind": "step", "step": 1, "other": {"\\ud800": 1.0}}',
    '{"kind": "step", "step": 1} x',
    '\ufeff{"kind": "step", "step": 1}',
    ' {"kind": "step", "step": 1} ',
    "",
    "[]",
    "1",
    '{"kind": "step", "step": 1, "loss": ' + "9" * 5000 + "}",
    "[" * 100_000,
    '{"kind": "step", "step": 1, "x": {"y": {}}}',
    '{"kind": 1, "step": 1}',
    '{"kind": "stop", "step": 1, "reason": 1}',
    '{"kind": "stop", "step": 1, "reason": "é"}',
]


@pytest.mark.parametrize("row", [*(row.encode("utf-8", "surrogatepass") for row in ROWS), b'{"kind": "\xff"}'])
def test_a_row_is_believed_as_the_careful_reader_believes_it(row):
    try:
        careful = parse_json(row)
    except ValueError:
        careful = None
    expected = careful if is_line(careful) else None
    assert repr(parsed(row)) == repr(expected)


def test_columns_are_what_the_lines_say():
    course = Course()
    course.add(
        {**STEP, "gradient_norms": {"blocks.0": 2.0, "blocks.1": 8.0, "head": 99.0}, "update_ratios": {"a": 3.0}}
    )
    course.add({"kind": "step", "step": 4, "loss": None, "lr": 2, "update_ratios": {"a": 1.0, "b": None, "c": 4.0}})
    course.add({"kind": "step", "step": 5, "lr": 1.0, "gradient_norms": {"blocks.0": None, "blocks.1": 4.0}})
    assert course.steps.tolist() == [3, 4, 5]
    expected = [[0.5, 0.1, 1.5, 100.0, 3.0], [np.nan, 2.0, np.nan, np.nan, 2.5], [np.nan, 1.0, np.nan, np.nan, np.nan]]
    assert np.array_equal(course.columns(), expected, equal_nan=True)
    assert np.array_equal(course.columns(1), expected[1:], equal_nan=True)
    assert course.lost().tolist() == [False, True, False]
    assert course.profile(np.ones(3, bool)) == {"blocks.0": 0.25, "blocks.1": 1.0}
    assert course.profile(np.array([False, True, False])) == {}


def test_of_lines_with_other_layers_than_those_before_the_last_count():
    course = Course()
    for count in range(1000):
        course.add({**STEP, "step": count, "gradient_norms": {f"blocks.{count}": 1.0, "head": 2.0}})
    assert course.profile(np.ones(1000, bool)) == {"blocks.999": 1.0}


def test_a_long_run_costs_a_few_bytes_a_line_and_evaluations_cost_no_look_at_all_of_them():
    """A line is some 600 bytes of text. Each evaluation once looked at every update before it."""
    layers = {f"blocks.{number}": 1.0 + number for number in range(8)}
    course, count = Course(), 20_000
    tracemalloc.start()
    for number in range(1, count + 1):
        course.add({**STEP, "step": number, "gradient_norms": dict(layers), "update_ratios": dict(layers)})
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 300 * count
    for number in range(1, 2001):
        course.add({"kind": "evaluation", "step": 10 * number, "loss": 1.0})
    began = time.process_time()
    diagnose(course)
    assert time.process_time() - began < 1


def test_the_first_and_the_last_line_are_found_without_the_others(tmp_path):
    path = tmp_path / FILE
    rows = [b'{"kind": "start", "step": 0}', b'{"kind": "step", "step": 1}', b"damaged", b'{"kind": "step", "step": 7}']
    path.write_bytes(b"\n".join(rows) + b'\n{"kind": "stop", "step": 8}\n{"torn')
    lines = each_line(tmp_path)
    assert [next(lines)["kind"], next(lines)["step"]] == ["start", 1]
    with pytest.raises(TapelessError, match=r"line 3 of .* is not a line of metrics: 'damaged'"):
        next(lines)
    assert last_step(tmp_path) == 7
    path.write_bytes(b"\n".join(rows[:2]))
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1]
    assert last_step(tmp_path) == 1
    path.write_bytes(rows[0])
    assert last_step(tmp_path) is None
