"""What a page is told of an array."""

import json

import numpy as np

from tapeless.explorer.numbers import BINS, spread, told


def test_a_histogram_counts_what_is_finite():
    found = spread(np.array([0.0, 1.0, -2.0, np.nan, np.inf]))
    assert (found["most"], found["zeros"], found["wrong"], sum(found["counts"])) == (2.0, 1, 2, 3)
    assert sum(spread(np.zeros(4))["counts"]) == 4
    assert len(spread(np.empty(0))["counts"]) == BINS


def test_a_corner_is_told_and_only_what_is_written_is_counted():
    values = np.arange(60, dtype=np.float32).reshape(2, 5, 6)
    values[0, 0, 0] = np.nan
    found = told("dx", "add", "dstream", values)
    assert found["corner"][0] == [None, 1.0, 2.0, 3.0, 4.0]
    assert (found["rows"], found["columns"], found["spread"]["wrong"]) == (10, 6, 1)
    assert "spread" not in told("x", "read", "stream", values)
    assert "spread" not in told("tokens", "write", "tokens", np.arange(3))
    json.dumps(found, allow_nan=False)
