"""python -m tools.elsewhere: runs the tests as other machines would, and writes what came of it to docs/elsewhere.md.

Each environment is this machine made to look like another: other vectors in NumPy, OpenBLAS or Numba, no MKL, one core,
another Python, a locale without UTF-8, a home that cannot be written, a path with spaces, another order of the tests. A
name (or part of one) chooses some of them: `python -m tools.elsewhere OpenBLAS "one core"`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from tools.figures.places import ROOT

_umath: Any = import_module("numpy._core._multiarray_umath")  # as NumPy itself tells which instructions it uses
DISPATCHED: list[str] = _umath.__cpu_dispatch__
FEATURES: dict[str, bool] = _umath.__cpu_features__

PAGE = ROOT / "docs" / "elsewhere.md"
MARKS = ("<!-- figures -->", "<!-- end of figures -->")
HEAD = ("| environment | tests | passed | failed | seconds | date |", "|---|---|--:|---|--:|---|")
KEPT = ROOT / ".elsewhere"  # environments of other Pythons
PYTHONS = ("3.11", "3.12", "3.13")

# What no vector instruction, BLAS or order of a sum reaches, and what no locale, home or path does.
NOT_NUMERIC = ("bench", "cli", "explorer", "files", "pictures")
NOT_OF_PLACES = ("check", "models", "ops", "program", "properties", "tracing")


class NotHereError(Exception):
    """This machine cannot be made to look like that; the sentence says why."""


@dataclass(frozen=True)
class Environment:
    name: str
    variables: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # folders of tests/ that it cannot change
    prepare: Callable[[Prepared], None] = lambda prepared: None


@dataclass
class Prepared:
    """How the tests are started. An environment may change any of it; the folder is removed afterwards."""

    folder: Path
    checkout: Path
    python: Path
    variables: dict[str, str]
    cores: set[int]


def needing(feature: str) -> Callable[[Prepared], None]:
    """Instructions that this processor does not have would end the process."""

    def prepare(prepared: Prepared) -> None:
        if not FEATURES.get(feature):
            raise NotHereError(f"this processor has no {feature}")

    return prepare


def core_type(name: str, feature: str) -> Environment:
    return Environment(f"OpenBLAS as on {name}", {"OPENBLAS_CORETYPE": name}, NOT_NUMERIC, needing(feature))


def numpy_without(title: str, *beginnings: str) -> Environment:
    """NumPy warns of a name that it does not know or that is not there: it is asked what it has."""

    def prepare(prepared: Prepared) -> None:
        named = [name for name in DISPATCHED if name.startswith(beginnings) and FEATURES.get(name)]
        if not named:
            raise NotHereError("NumPy uses none of them on this processor")
        prepared.variables["NPY_DISABLE_CPU_FEATURES"] = " ".join(named)

    return Environment(f"NumPy without {title}", {}, NOT_NUMERIC, prepare)


def numba_for(level: str, feature: str, features: str) -> Environment:
    """If Numba is told a processor's name alone, it goes on using the features of this one."""
    variables = {"NUMBA_CPU_NAME": f"x86-64-{level}", "NUMBA_CPU_FEATURES": features}
    return Environment(f"Numba for x86-64-{level}", variables, NOT_NUMERIC, needing(feature))


# Put before everything in PYTHONPATH, so that processes that a test starts do without MKL as well.
NO_MKL = """
import importlib.util, sys

class WithoutMKL:
    def find_spec(self, name, path, target=None):
        if name != "tapeless.kernels.cpu.dispatch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            module._installed = lambda name: None
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, WithoutMKL())
"""


def without_mkl(prepared: Prepared) -> None:
    if not list((Path(sys.prefix) / "lib").glob("libmkl_rt.so*")):
        raise NotHereError("MKL is not installed, so that every run is without it")
    (prepared.folder / "sitecustomize.py").write_text(NO_MKL)
    prepared.variables["PYTHONPATH"] = f"{prepared.folder}{os.pathsep}{prepared.variables['PYTHONPATH']}"


def one_core(prepared: Prepared) -> None:
    prepared.cores = {min(prepared.cores)}


NOT_COPIED = (".git", ".venv", ".*_cache", ".hypothesis", ".elsewhere", "runs", "build", "dist", "site")


def path_with_spaces(prepared: Prepared) -> None:
    """The checkout with its compiled kernels, and the tests' own folders, below a name with spaces."""
    prepared.checkout = prepared.folder / "a path with spaces" / "tapeless"
    shutil.copytree(ROOT, prepared.checkout, ignore=shutil.ignore_patterns(*NOT_COPIED))
    temporary = prepared.folder / "temporary files"
    temporary.mkdir()
    prepared.variables |= {"PYTHONPATH": str(prepared.checkout / "src"), "TMPDIR": str(temporary)}


def other_packages(name: str, version: str, *pins: str) -> Environment:
    """The tests' packages in an environment of their own, of this Python or another, some of them pinned."""

    def prepare(prepared: Prepared) -> None:
        command = sys.executable if sys.version.startswith(version) else shutil.which(f"python{version}")
        if command is None or subprocess.run([command, "-c", ""], capture_output=True, check=False).returncode:
            raise NotHereError(f"python{version} is not here")
        place = KEPT / name.rpartition(" ")[2]
        if not (place / "ready").exists():
            print(f"  installing what the tests need for {name}: some minutes", flush=True)
            subprocess.run([command, "-m", "venv", "--clear", place], check=True)
            install = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--editable"]
            if subprocess.run([*install, f"{ROOT}[mkl,test]", *pins], check=False).returncode:
                raise NotHereError("what the tests need could not be installed for it")
            (place / "ready").touch()
        prepared.python = place / "bin" / "python"

    return Environment(name, {}, (), prepare)


def other_python(version: str) -> Environment:
    return other_packages(f"Python {version}", version)


def oldest_packages() -> Environment:
    """The oldest Numba and NumPy that pyproject.toml allows; the newest of both are what any other run installs."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    floors = (re.match(r"(numba|numpy)>=([\d.]+)", each) for each in declared)
    found = {floor[1]: floor[2] for floor in floors if floor}
    pins = [f"{name}=={version}" for name, version in found.items()]
    return other_packages(f"NumPy {found['numpy']} and Numba {found['numba']}", PYTHONS[0], *pins)


ENVIRONMENTS = (
    Environment("as it is"),
    core_type("Haswell", "AVX2"),
    core_type("SkylakeX", "AVX512_SKX"),
    core_type("Zen", "AVX2"),
    core_type("Prescott", "SSE3"),
    numpy_without("AVX-512", "AVX512", "X86_V4"),
    numpy_without("AVX2", "AVX512", "X86_V4", "X86_V3", "AVX2", "FMA3"),
    numba_for("v2", "SSE42", "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16"),
    numba_for("v3", "AVX2", "+sse4.2,+popcnt,+cx16,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"),
    Environment("without MKL", {}, (), without_mkl),
    Environment("one core", {}, (), one_core),
    Environment("tests in random order", {"TAPELESS_ORDER": str(date.today().toordinal())}),
    Environment(
        "locale C, another time zone",
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TZ": "Asia/Kathmandu"},
        NOT_OF_PLACES,
    ),
    Environment("a home that cannot be written", {"HOME": "/dev/null/home"}, NOT_OF_PLACES),
    Environment("a path with spaces", {}, NOT_OF_PLACES, path_with_spaces),
    oldest_packages(),
    *(other_python(version) for version in PYTHONS if not sys.version.startswith(version)),
)
# They would say where caches lie, which is what some of the environments are about.
UNSAID = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "NUMBA_CACHE_DIR", "LANG", "LC_CTYPE")


def tests_of(environment: Environment) -> tuple[list[str], str]:
    """What is handed to pytest, and how the table says it."""
    if not environment.without:
        return ["tests"], "all"
    left = [path for path in sorted((ROOT / "tests").iterdir()) if path.name not in environment.without]
    wanted = [path for path in left if any(path.rglob("test_*.py")) or path.match("test_*.py")]
    return [str(path.relative_to(ROOT)) for path in wanted], f"all but {', '.join(environment.without)}"


@dataclass(frozen=True)
class Outcome:
    passed: int
    failed: tuple[str, ...]
    seconds: float


def run(environment: Environment, tests: list[str], workers: int, say: Callable[[str], None]) -> Outcome:
    with TemporaryDirectory(prefix="tapeless-elsewhere-") as name:
        variables = {key: value for key, value in os.environ.items() if key not in UNSAID} | environment.variables
        variables["PYTHONPATH"] = str(ROOT / "src")
        cores = os.sched_getaffinity(0)
        prepared = Prepared(Path(name), ROOT, Path(sys.executable), variables, cores)
        environment.prepare(prepared)
        report = prepared.folder / "report.xml"
        command = [
            str(prepared.python),
            "-m",
            "pytest",
            "-q",
            f"--junitxml={report}",
            "--numprocesses",
            str(workers),
            "--dist",
            "worksteal",
            *tests,
        ]
        os.sched_setaffinity(0, prepared.cores)  # which the process inherits
        started = time.monotonic()
        try:
            with subprocess.Popen(
                command,
                cwd=prepared.checkout,
                env=prepared.variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
            ) as child:
                told = list(_followed(child, say))
        finally:
            os.sched_setaffinity(0, cores)
        if not report.exists():
            raise NotHereError(f"pytest ended with {child.returncode}: {' '.join(told[-3:])[-300:]}")
        return outcome_of(ElementTree.parse(report).getroot(), time.monotonic() - started)


def _followed(child: subprocess.Popen[str], say: Callable[[str], None]) -> Iterator[str]:
    """Its lines; every tenth that it has done is said."""
    assert child.stdout is not None, "it is a pipe"
    tenth = 0
    for line in child.stdout:
        far = re.search(r"\[ *(\d+)%\]$", line.rstrip())
        if far and int(far[1]) // 10 > tenth:
            tenth = int(far[1]) // 10
            say(f"{10 * tenth} %")
        yield line.strip()


def outcome_of(report: ElementTree.Element, seconds: float) -> Outcome:
    """From what pytest's --junitxml has written. A test that passes and whose fixture then fails is there twice."""
    cases: dict[str, list[str]] = {}
    for case in report.iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        cases.setdefault(name, []).extend(child.tag for child in case)
    failed = tuple(name for name, said in cases.items() if {"failure", "error"} & {*said})
    skipped = sum("skipped" in said for name, said in cases.items() if name not in failed)
    return Outcome(len(cases) - len(failed) - skipped, failed, seconds)


def row(name: str, tests: str, found: Outcome | NotHereError) -> str:
    if isinstance(found, NotHereError):
        cells = [name, "", "", f"not run: {found}", ""]
    else:
        failed = ", ".join(f"`{test}`" for test in found.failed) or "none"
        cells = [name, tests, f"{found.passed:,}", failed, f"{found.seconds:.0f}"]
    return "| " + " | ".join((*(cell.replace("|", "\\|") for cell in cells), date.today().isoformat())) + " |"


def merged(page: str, name: str, made: str) -> str:
    """The page with this row, instead of the one that it has for the same environment."""
    before, _, rest = page.partition(MARKS[0])
    table, _, after = rest.partition(MARKS[1])
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines() if line.startswith("| ")}
    rows |= {name: made}
    known = [environment.name for environment in ENVIRONMENTS]
    text = "\n".join((MARKS[0], "", *HEAD, *(rows[each] for each in known if each in rows), "", MARKS[1]))
    return f"{before}{text}{after}"


def _say(far: str) -> None:
    print(f"  {far}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.elsewhere", description=__doc__)
    parser.add_argument("names", nargs="*", help="environments, by a part of their names; without any, all of them")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="only these tests; nothing is written")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run the tests (2)")
    options = parser.parse_args()
    parts = [name.lower() for name in options.names]
    chosen = [each for each in ENVIRONMENTS if not parts or any(part in each.name.lower() for part in parts)]
    if not chosen:
        print(f"no environment is named so: there are {', '.join(e.name for e in ENVIRONMENTS)}.", file=sys.stderr)
        return 2
    red = False
    for number, environment in enumerate(chosen, 1):
        title = f"{environment.name} ({number} of {len(chosen)})"
        tests, said = (options.tests, "chosen") if options.tests else tests_of(environment)
        print(title, flush=True)
        found: Outcome | NotHereError
        try:
            found = run(environment, tests, options.workers, _say)
        except NotHereError as absent:
            found = absent
        made = row(environment.name, said, found)
        print(made, flush=True)
        red |= isinstance(found, Outcome) and bool(found.failed)
        if not options.tests:  # after each, so that what is stopped has its rows
            PAGE.write_text(merged(PAGE.read_text("utf-8"), environment.name, made), "utf-8")
    return int(red)


if __name__ == "__main__":
    sys.exit(main())
