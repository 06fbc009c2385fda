"""The mutation run's own machinery: that mistakes are made, in the right places, and reach the code that runs."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from tools.mutants.make import LEFT_ALONE, Mutant, mutants_of, shortened
from tools.mutants.report import explanations

import tapeless
from tests.random_cases import some

PACKAGE = Path(tapeless.__file__).parent

SOURCE = '''
SCALE = sqrt(2 / 3)
BLOCK = 64
SPEC = Spec(name="example", shapes={"y": "R C"}, eps=0.5)


def forward(y, x, bias, n):
    """0 + 1 stand in a docstring."""
    y[...] = (x @ bias.T).sum(axis=1) - 2 * x[1:n]
    if bias is not None:
        y += bias
    for i in range(n):
        store(y, x, add=True)
    p.op.forward(y=write(y), x=x, bias=bias)


def flops(dims):
    return 2 * dims["R"]
'''


def made(source: str = SOURCE) -> list[Mutant]:
    return list(mutants_of(source, "ops/example/reference.py"))


@cache
def of_file(file: str) -> list[Mutant]:
    return list(mutants_of((PACKAGE / file).read_text(), file))


def test_the_mistakes_that_are_made():
    after = {(mutant.kind, mutant.after) for mutant in made()}
    for wanted in (
        ("operator", "y[...] = (x @ bias.T).sum(axis=1) + 2 * x[1:n]"),
        ("term", "y[...] = (x @ bias.T).sum(axis=1)"),
        ("sign", "y[...] = -((x @ bias.T).sum(axis=1) - 2 * x[1:n])"),
        ("constant", "y[...] = (x @ bias.T).sum(axis=1) - 3 * x[1:n]"),
        ("axis", "y[...] = (x @ bias.T).sum(axis=0) - 2 * x[1:n]"),
        ("axis", "y[...] = (x @ bias).sum(axis=1) - 2 * x[1:n]"),
        ("index", "y[...] = (x @ bias.T).sum(axis=1) - 2 * x[1:n - 1]"),
        ("arguments", "y[...] = (bias.T @ x).sum(axis=1) - 2 * x[1:n]"),
        ("function", "y[...] = (x @ bias.T).mean(axis=1) - 2 * x[1:n]"),
        ("dropped", "(nothing)"),
        ("comparison", "if bias is None:"),
        ("condition", "if not bias is not None:"),
        ("assignment", "y[...] = bias"),
        ("boundary", "for i in range(n - 1):"),
        ("constant", "store(y, x, add=False)"),
        ("arguments", "store(x, y, add=True)"),
        ("write and add", "p.op.forward(y=add(y), x=x, bias=bias)"),
        ("arguments", "p.op.forward(y=write(y), x=bias, bias=x)"),
        ("operator", "SCALE = sqrt(2 * 3)"),
    ):
        assert wanted in after, wanted


def test_what_is_left_alone():
    mutants = made()
    assert not {"flops"} & {mutant.function for mutant in mutants}
    assert "flops" in LEFT_ALONE
    assert not [m for m in mutants if m.before.startswith(("BLOCK", "SPEC", "'''", '"'))]


def test_mutants_differ_compile_and_have_names_of_their_own():
    for file in ("ops/layernorm/reference.py", "ops/linear/cpu.py"):
        mutants = of_file(file)
        assert len({mutant.name for mutant in mutants}) == len(mutants) > 80
        codes = {compile(mutant.tree, file, "exec").co_consts for mutant in mutants}
        assert len(codes) > 80


def test_a_line_more_changes_no_name():
    moved = SOURCE.replace("def forward", "ANOTHER = 3\n\n\ndef forward")
    assert [mutant.name for mutant in made(moved)] == [mutant.name for mutant in made()]


def test_a_long_statement_is_cut_down_to_the_difference():
    before, after = shortened(
        "f(" + "a, " * 40 + "x + 1" + ", b" * 40 + ")", "f(" + "a, " * 40 + "x - 1" + ", b" * 40 + ")"
    )
    assert "x + 1" in before
    assert "x - 1" in after
    assert len(before) < 80


def test_every_explained_survivor_is_still_made():
    """A statement that has changed takes its explanation with it: run the mutants again."""
    by_file: dict[str, set[str]] = {}
    for name in explanations():
        by_file.setdefault(name.split(" ")[0], set()).add(name)
    for file in some(sorted(by_file), 4):
        assert not by_file[file] - {mutant.name for mutant in of_file(file)}, file


def test_a_mutant_reaches_the_code_that_runs():
    """In the op's module, and where its functions were imported by name."""
    code = (
        "import numpy as np, tapeless.model\n"
        "from tapeless.ops import OPS\n"
        "from tools.mutants.inject import inject\n"
        "from tests.properties.test_mutants import of_file\n"
        "for file, after in (('ops/tanh/reference.py', 'y[...] = -np.tanh(x)'),\n"
        "                    ('ops/positions/reference.py', 'table[:, 1::2] = np.sin(angles)[:, :channels // 2]')):\n"
        "    inject(next(mutant for mutant in of_file(file) if mutant.after == after))\n"
        "y = np.empty((1, 2))\n"
        "OPS['tanh'].forward(y, np.array([[0.0, np.inf]]))\n"
        "print(y.tolist(), tapeless.model.sinusoid(1, 2).tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parents[1])
    assert done.stdout == "[[-0.0, -1.0]] [[0.0, 0.0]]\n", done.stderr
