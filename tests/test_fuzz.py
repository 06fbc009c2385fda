"""A few thousand inputs of `make fuzz`, always the same; and that a finding would be one."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random

import pytest
from tools.fuzz.hunt import hunt
from tools.fuzz.mutate import some_json, some_toml
from tools.fuzz.readers import READERS, Reader, example_of

from tapeless.errors import TapelessError

CLOCK = [0.0]
ROOT = Path(__file__).parents[1]


def test_every_file_that_is_read_is_read_or_refused():
    """In processes of its own, because each bounds its memory."""
    words = [sys.executable, "-m", "tools.fuzz", "--inputs", "4000", "--seed", "0", "--workers", "1"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(READERS)
    # Each is tried, and but for those that fall back on something else, some inputs are refused and some are not.
    for name, tried, refused, _, _ in rows:
        assert 0 < int(tried.replace(",", "")) >= int(refused.replace(",", "")), name


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda: json.loads("{}")["a"], "KeyError"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: warnings.warn("beware", RuntimeWarning, stacklevel=1), "RuntimeWarning"),
        (lambda: _refuse("x" * 10_000), "characters"),
        (lambda: _refuse("a \ud800 b"), "cannot be printed"),
        (lambda: CLOCK.append(CLOCK[-1] + 6), "took 6.0 seconds"),
    ],
)
def test_what_counts_as_a_finding(fault, told, monkeypatch):
    monkeypatch.setattr("tools.fuzz.hunt._limit_memory", lambda: None)
    monkeypatch.setattr("tools.fuzz.hunt.time.perf_counter", lambda: CLOCK[-1])

    def prepare(folder):
        def read(data):
            if json.loads(data) == {"bad": True}:
                fault()

        return [b'{"bad": false}'], read

    reader = Reader("made up", 1, lambda rng, data: b'{"bad": true}' if rng.random() < 0.5 else data, prepare)
    results = list(hunt(reader, 0, range(20)))
    findings = [result.finding for result in results if result.finding]
    assert 4 < len(findings) < 16
    assert all(told in finding for finding in findings)
    assert results[-1].tried == 20


def _refuse(sentence):
    raise TapelessError(sentence)


def test_an_input_is_made_from_seed_name_and_number_alone():
    reader = next(each for each in READERS if each.name == "text")
    made = [example_of(reader, [b"one\ntwo\n"], 5, number) for number in range(9)]
    assert made[4] == example_of(reader, [b"one\ntwo\n"], 5, 4)
    assert len(set(made)) > 3


def test_mutations_reach_what_is_hard_to_reach():
    """Numbers beyond 64 bits, halves of surrogate pairs, deep nesting, NaN, keys given twice."""
    rng = Random(0)
    many = [some_json(rng, b'{"a": {"b": [1, 2, "c"]}, "d": null}') for _ in range(4000)]
    for mark in (b"\\ud800", b"NaN", b"Infinity", b"9" * 4299, b"[" * 1000, str(2**63).encode(), b"1e999"):
        assert any(mark in each for each in many), mark
    assert any(each.count(b'"a"') == 2 for each in many)
    files = [some_toml(rng, b"a = 1\nb = 2\n[model]\nlayers = 2") for _ in range(2000)]
    for mark in (b"[" * 1000, b"9" * 5000, b"nan", b"[[model]]"):
        assert any(mark in each for each in files), mark
