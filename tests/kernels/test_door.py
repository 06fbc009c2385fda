"""The CPU kernels have one door: other packages, tests, tools and benchmarks import `tapeless.kernels.cpu` alone."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BOX = ROOT / "src" / "tapeless" / "kernels" / "cpu"
DOOR = "tapeless.kernels.cpu"
BEHIND = {path.stem for path in BOX.glob("*.py")} - {"__init__"}
# What changes a kernel's source, or a setting that is none of a user's, while it measures or plants mutants.
TAKE_IT_APART = {"benchmarks/threads.py", "tools/mutants/inject.py"}


def imported(path):
    """(module, name) of each import, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", each.name) for each in node.names)


def outside():
    folders = [ROOT / name for name in ("src", "tests", "tools", "benchmarks", "examples")]
    inside = (BOX, ROOT / "tests" / "kernels")
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        if not any(path.is_relative_to(folder) for folder in inside):
            yield path.relative_to(ROOT).as_posix(), path


def test_nothing_outside_imports_what_lies_behind_it():
    found = {
        f"{name} imports {module} {taken}"
        for name, path in outside()
        for module, taken in imported(path)
        if module.startswith(f"{DOOR}.") or (module == DOOR and taken in BEHIND)
    }
    assert {each.split()[0] for each in found} == TAKE_IT_APART, sorted(found)


def test_every_name_of_it_is_used():
    used = "\n".join(path.read_text() for _, path in outside())
    listed = [name for _, name in imported(BOX / "language.py")]
    unused = [name for name in listed if name not in used]
    assert listed
    assert unused == []


def test_it_needs_numpy_alone():
    code = f"import sys, {DOOR} as door; door.cores(); print(sorted({{'numba', 'llvmlite'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_name_that_is_not_there():
    code = f"import {DOOR} as door; print(*(hasattr(door, each) for each in ('no_such_kernel', 'tiles', 'exp')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False False True\n", done.stderr
