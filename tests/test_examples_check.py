"""The examples of checking your own run as printed, and exit as they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *options, **environment):
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options], capture_output=True, text=True, env=os.environ | environment
    )


def test_ten_lines():
    done = run("check_your_own.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right: the backward is the derivative of the forward.") == 1
    assert done.stdout.count("wrong: the backward is not the derivative of the forward.") == 1
    assert "dweight: wrong" in done.stdout


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--bug"], 1)])
def test_a_kernel_in_c(options, code):
    done = run("c_kernel/check.py", *options)
    assert done.returncode == code, done.stderr
    assert not done.stderr
    assert done.stdout.startswith("layernorm: holds." if code == 0 else "layernorm: does not hold.")
    assert ("dx (dstream) is" in done.stdout) == bool(code)
    assert "speed: layernorm.backward" in done.stdout
    assert "drift: over 100 training steps" in done.stdout


def test_the_ten_lines_of_the_docs_print_what_the_docs_say():
    text = (EXAMPLES.parent / "docs" / "check-your-own.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)[:2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    without_figures = [re.sub(r"\de-\d\d|\d\.", "", each) for each in (done.stdout, printed)]
    assert without_figures[0] == without_figures[1]


def test_the_kernels_and_functions_of_the_docs_are_right():
    text = (EXAMPLES.parent / "docs" / "check-your-own.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "print(op(" in block]
    assert len(blocks) == 3
    for block in blocks[1:]:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
        assert done.stdout.startswith("right"), done.stdout + done.stderr


def test_the_kernel_of_the_docs_is_wrong():
    text = (EXAMPLES.parent / "docs" / "check-your-kernel.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "print(op(" in block]
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert "the gradient of x is wrong: dx is" in done.stdout, done.stdout + done.stderr
    assert "0.666667 times what it should be" in done.stdout


def test_without_a_compiler_it_says_so():
    done = run("c_kernel/check.py", PATH="/nonexistent")
    assert done.returncode == 1
    assert done.stderr.strip() == "this example needs a C compiler, and there is no cc, gcc or clang: install one."
