"""The package stays within tools/budget.toml, and commands that only look at a program load nothing else."""

import subprocess
import sys

import pytest
from tools import budget

NEITHER = ("numba", "llvmlite", "torch", "tokenizers", "tapeless.train", "tapeless.labelling", "tapeless.tasks.task")


def test_nothing_is_above_the_budget():
    sentences = budget.exceeded(budget.read_budget(), budget.counted())
    assert not sentences, "\n".join(sentences)


def test_what_is_above_its_budget_is_told_in_a_sentence():
    there = {"options": {"train": 43, "plan": 7}, "members": {"Backend": 12}}
    said = budget.exceeded({"options": {"train": 40, "plan": 7, "gone": 3}}, there)
    assert said == [
        "train has 43 options, the budget is 40: lower it, or raise the budget with a decision that says what was "
        "removed instead.",
        "tools/budget.toml has options of gone, which is gone: make budget takes it out.",
        "Backend has 12 members and no budget: write one in tools/budget.toml.",
    ]


def test_a_budget_is_lowered_and_never_raised():
    there = {"options": {"train": 43, "plan": 6, "new": 5}}
    assert budget.lowered({"options": {"train": 40, "plan": 7, "gone": 3}}, there) == {
        "options": {"train": 40, "plan": 6, "new": 5}
    }


def test_the_file_is_what_its_maker_writes():
    assert budget.as_toml(budget.read_budget()) == budget.BUDGET.read_text("utf-8")


@pytest.mark.parametrize(
    "words",
    [
        ("presets", "--json"),
        ("explain", "gpt2-4x256"),
        ("explain", "qwen3-0.6b", "--set", "lora=4"),
        ("plan", "gpt2-4x256", "--memory", "1MB"),
        ("plan", "ops-102k", "--precision", "bfloat16", "--memory", "1MB"),
    ],
    ids=" ".join,
)
def test_looking_at_a_program_needs_numpy_alone(words):
    """Where Numba is not there, and nothing of a training is loaded."""
    code = (
        "import sys\n"
        f"for name in {NEITHER[:4]}: sys.modules[name] = None\n"
        "from tapeless.cli import main\n"
        "sys.argv = ['tapeless', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit as ended:\n"
        f"    found = [name for name in sys.modules if name.startswith({NEITHER[4:]!r})]\n"
        "    sys.exit(f'{ended.code} {found}' if ended.code or found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
