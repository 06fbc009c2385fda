"""Runs of the tests in other environments: what is told of them, and that an environment is what it is called."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from tools import elsewhere
from tools.elsewhere import ENVIRONMENTS, MARKS, PAGE, NotHereError, Outcome, Prepared, merged, outcome_of, row
from tools.figures.places import ROOT

from tests import conftest

REPORT = """<testsuites><testsuite>
<testcase classname="tests.ops.test_ops" name="test_a[x|y]"><failure message="m">text</failure></testcase>
<testcase classname="tests.ops.test_ops" name="test_b"></testcase>
<testcase classname="tests.ops.test_ops" name="test_b"><error message="its fixture">text</error></testcase>
<testcase classname="tests.ops.test_ops" name="test_c"><skipped>why</skipped></testcase>
<testcase classname="tests.test_api" name="test_d"/>
</testsuite></testsuites>"""


def named(name):
    return next(each for each in ENVIRONMENTS if each.name == name)


def prepared(environment, folder):
    found = Prepared(folder, ROOT, Path(sys.executable), {**os.environ, "PYTHONPATH": str(ROOT / "src")}, {0})
    environment.prepare(found)
    return found


def test_what_failed_is_named():
    found = outcome_of(ElementTree.fromstring(REPORT), 61.4)
    assert found == Outcome(1, ("ops.test_ops::test_a[x|y]", "ops.test_ops::test_b"), 61.4)


def test_a_row_takes_the_place_of_the_one_before():
    page = f"before\n{MARKS[0]}\n{MARKS[1]}\nafter"
    rows = {
        "one core": row("one core", "all", Outcome(1234, ("a::b[x|y]",), 61.4)),
        "as it is": row("as it is", "all", Outcome(2, (), 3)),
    }
    for name, made in rows.items():
        page = merged(page, name, made)
    assert page.startswith("before\n")
    assert page.endswith("\nafter")
    assert [line[:11] for line in page.splitlines() if line.startswith("| ")] == [
        "| environme",
        "| as it is ",
        "| one core ",
    ]
    assert "| 1,234 | `a::b[x\\|y]` | 61 |" in page
    again = merged(page, "one core", row("one core", "all", NotHereError("there is one")))
    assert again.count("one core") == 1
    assert "not run: there is one" in again


def test_the_page_and_the_workflow_have_every_environment():
    page = PAGE.read_text("utf-8")
    assert merged(page, "", "") == page, "the rows stand in order, each of an environment that there is"
    workflow = (ROOT / ".github" / "workflows" / "elsewhere.yml").read_text("utf-8")
    chosen = [line.strip(" -").lower() for line in workflow.splitlines() if line.startswith(" " * 10 + "- ")]
    for environment in ENVIRONMENTS:
        if environment.name != "as it is" and not environment.name.startswith("Python"):
            assert any(part in environment.name.lower() for part in chosen), environment.name
    for part in chosen:
        assert part.startswith("python") or any(part in environment.name.lower() for environment in ENVIRONMENTS), part


def test_folders_that_are_left_out_are_there():
    for environment in ENVIRONMENTS:
        tests, said = elsewhere.tests_of(environment)
        assert all((ROOT / path).exists() for path in tests)
        assert all((ROOT / "tests" / folder).is_dir() for folder in environment.without)
        assert (tests == ["tests"]) == (said == "all") == (not environment.without)
        assert not {f"tests/{folder}" for folder in environment.without} & {*tests}


def test_a_processor_without_the_instructions_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(elsewhere, "FEATURES", {})
    for name in ("OpenBLAS as on SkylakeX", "NumPy without AVX2", "Numba for x86-64-v3"):
        with pytest.raises(NotHereError, match=r"this processor"):
            prepared(named(name), tmp_path)


def test_without_mkl_there_is_none_in_any_process(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "prefix", str(tmp_path))
        with pytest.raises(NotHereError, match="MKL is not installed"):
            prepared(named("without MKL"), tmp_path)
        (tmp_path / "lib" / "libmkl_rt.so.2").touch()
        found = prepared(named("without MKL"), tmp_path)
    code = (
        "from tapeless.kernels.cpu import dispatch\n"
        "print(dispatch._installed('libmkl_rt'), dispatch.mkl(), dispatch.gemm_library())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=found.variables, capture_output=True, text=True)
    assert done.stdout == "None None own\n", done.stderr


def test_files_and_their_tests_are_shuffled_the_same_way_everywhere(monkeypatch):
    items: list[Any] = [SimpleNamespace(path=file, name=f"{file}{test}") for file in "abcdef" for test in range(9)]

    def order(word):
        monkeypatch.setenv("TAPELESS_ORDER", word)
        shuffled = list(items)
        conftest.pytest_collection_modifyitems(shuffled)
        return [item.name for item in shuffled]

    assert order("7") == order("7") != order("8")
    assert sorted(order("7")) == [item.name for item in items]
    files = [name[0] for name in order("7")]
    assert files != sorted(files)
    assert sum(one != other for one, other in pairwise(files)) == 5, "a file's tests stay together"
    monkeypatch.delenv("TAPELESS_ORDER")
    whole = list(items)
    conftest.pytest_collection_modifyitems(whole)
    assert whole == items


def test_an_environment_that_is_not_red_is_green(monkeypatch, capsys):
    asked = named("one core")
    monkeypatch.setattr(sys, "argv", ["elsewhere", "one core", "--tests", "tests/test_rooms.py"])
    monkeypatch.setattr(
        elsewhere, "run", lambda environment, *rest: Outcome(2, ("x::y",) * (environment != asked), 1.0)
    )
    assert elsewhere.main() == 0
    assert "| one core | chosen | 2 | none | 1 |" in capsys.readouterr().out
    monkeypatch.setattr(elsewhere, "run", lambda *rest: Outcome(2, ("x::y",), 1.0))
    assert elsewhere.main() == 1
    monkeypatch.setattr(sys, "argv", ["elsewhere", "the moon"])
    assert elsewhere.main() == 2
    assert "no environment is named so: there are as it is, " in capsys.readouterr().err
