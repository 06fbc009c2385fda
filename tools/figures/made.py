"""Every figure of the documents, and how it is made. Those for which nothing is run or measured are the same on every
machine, and a test holds the documents to them; of the others it holds what does not depend on the machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
from tests.bugs.catalogue import BUGS
from tests.program.wrong_programs import RULES, WRONG

from tapeless.check.configurations import CONFIGURATIONS, LARGER, Configuration
from tapeless.check.examples import examples_of
from tapeless.check.ops import call_alone, forms_of, long_examples
from tapeless.cli.subject import subject
from tapeless.models import transformer
from tapeless.models.config import Optimizer, Preset
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS
from tapeless.program.call import Program
from tapeless.shown import flops, size
from tapeless.tasks.operations import KIND as OPERATIONS
from tapeless.tasks.operations import TRAINING, WORDS, spell, split
from tools.figures.api import PUBLIC, api_of, api_of_the_given
from tools.figures.places import ROOT


@dataclass(frozen=True)
class Figure:
    make: Callable[[], str]
    run: bool = False  # something is run for it: minutes, or a machine's own numbers
    holds: Callable[[], list[str]] = list  # of one that is run: what must stand in it on every machine


@cache
def tapeless(*arguments: str) -> str:
    """What a command prints, 120 columns wide."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tapeless", *arguments]
        wide = os.environ | {"COLUMNS": "120"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True, env=wide)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def _block(*lines: str) -> str:
    return "\n".join(["", "```", *lines, "```", ""])


# Counts.


def _program(c: Configuration, updated: bool = False) -> Program:
    fields = {name: value for name, value in c.fields.items() if name != "class_weights"}
    preset = (c.preset if isinstance(c.preset, Preset) else PRESETS[c.preset]).override(**fields)
    weighted = "class_weights" in c.fields
    optimizer = Optimizer(preset.optimizer) if updated else None
    return transformer.training(preset, c.batch, c.time, optimizer, weighted=weighted)


@cache
def _gradients() -> tuple[int, int]:
    """Of the small models and of the ops, and their elements."""
    weights = [prod(weight.shape) for c in CONFIGURATIONS for weight in _program(c).trained]
    for name, op in OPS.items():
        if op.SPEC.backward:
            example = op.example(np.random.default_rng(0))
            call, arrays = call_alone(name, "backward", example)
            weights += [arrays[each.name].size for each in call.writes if each.name[1:] in example]
    return len(weights), sum(weights)


def _differentiable() -> int:
    return sum(op.SPEC.backward is not None for op in OPS.values())


def _directions(name: str) -> tuple[str, ...]:
    return ("forward", "backward") if OPS[name].SPEC.backward else ("forward",)


@cache
def _results() -> tuple[int, int]:
    """Of single calls beside the reference, and in how many configurations."""
    models = (*CONFIGURATIONS, *LARGER)
    found = 0
    for c in models:
        calls = _program(c, updated=True).calls
        found += sum(a.name != "logits" for call in calls for a in call.writes)
    for name, op in OPS.items():
        for example in (*examples_of(name), *long_examples(name)):
            for direction in _directions(name):
                signature = op.SPEC.signature(direction)
                for without in forms_of(signature, example):
                    call, _ = call_alone(name, direction, example, without=without)
                    found += (1 + bool(signature.adds)) * sum(a.name != "logits" for a in call.writes)
    return found, len(models) + len(OPS)


def _kernels() -> int:
    return sum(len(_directions(name)) for name in OPS)


# README.


def _bench() -> str:
    """From the last run of `make bench`: the first chapter of its results."""
    _, chapter, *_ = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").split("\n## ")
    processor, text = chapter.split("\n", 1)
    day = re.search(r"^On ([\d-]+): (\d+) threads", text, re.MULTILINE)
    assert day, "a chapter says when it was measured"
    rows = re.findall(r"^\| `tapeless bench (\S+) -B (\d+) -T (\d+) ([^`]*)` \| (.*) \|$", text, re.MULTILINE)
    best = {(name, batch, time, "bfloat16" in how): cells.split(" | ") for name, batch, time, how, cells in rows}
    lines = [
        "| training step | float32 | bfloat16 | step / floor | memory of PyTorch's |",
        "|---|--:|--:|--:|--:|",
    ]
    for (name, batch, time, bfloat16), cells in best.items():
        if bfloat16 or len(cells) < 7:  # adapters and decoding have fewer
            continue
        other = best.get((name, batch, time, True))
        narrow = other[4].strip("*") if other else "–"
        lines.append(f"| {name}, {batch}×{time} | **{cells[2].strip('*')}** | {narrow} | {cells[3]} | {cells[5]} |")
    said = (
        f"How many times as long PyTorch takes, the better of eager and compiled: {day[2]} cores of an "
        f"{processor.replace('(R)', '')}, {day[1]}, `make bench`."
    )
    return "\n".join(["", "", *lines, "", said, ""])


PLANNED = ("plan", "gpt2-124m", "-T", "256", "--memory", "16GB")


def _plan_answer() -> str:
    return _block(f"$ tapeless {' '.join(PLANNED)}", "…", *tapeless(*PLANNED).splitlines()[-3:])


def _largest_recomputed() -> str:
    return tapeless(*PLANNED, "--set", "recompute=true").split()[-1].rstrip(".")


OWN = """
import numpy as np
from tapeless.check import op

x = np.random.default_rng(0).normal(size=(4, 3))
print(op(lambda x: np.tanh(x), lambda dy, x: dy * (1 - np.tanh(x)), x))
"""


def _own_kernel() -> str:
    """What the README's five lines print."""
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(line in shown for line in OWN.splitlines()), "the README has these lines"
    done = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=True)
    return _block(*done.stdout.rstrip().splitlines())


def _own_everywhere() -> list[str]:
    return [
        "wrong: the backward is not the derivative of the forward.",
        "at (3, 0) the backward says -2.34425891",
        "the complex step -0.34565658",
    ]


def _looks() -> str:
    """What a run that has just learned the operations looks at."""
    with tempfile.TemporaryDirectory() as folder:
        for arguments in (("train", "--json"), ("attend", "runs/ops-102k-001", "Max(1,2,6)", "--layer", "1")):
            command = [sys.executable, "-m", "tapeless", *arguments]
            narrow = os.environ | {"COLUMNS": "80"}
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True, env=narrow)
    lines = [line.rstrip() for line in done.stdout.splitlines() if not line.startswith(("compiling", "compiled"))]
    return _block('$ tapeless attend runs/ops-102k-001 "Max(1,2,6)" --layer 1', *lines)


def _backward_of_a_block() -> str:
    lines = tapeless("explain", "gpt2-4x256", "--layer", "0").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("BACKWARD"))
    first = next(n for n in range(start, len(lines)) if " gelu ↻ " in lines[n])
    shown = [lines[start].partition(")")[0] + ")", lines[start + 1], *lines[first : first + 5]]
    return _block(*shown)


def _check() -> str:
    said = [line for line in tapeless("check").splitlines() if line and "…" not in line]
    start = next(n for n, line in enumerate(said) if line.startswith("wiring")) - 1
    return _block("$ tapeless check", *_joined(said[start:]))


def _joined(lines: list[str]) -> list[str]:
    """Sentences that a terminal has broken are whole again; rows of a table stay."""
    made: list[str] = []
    for line in lines:
        if made and made[-1][0].isupper() and not made[-1].endswith(".") and made[-1][0] != " ":
            made[-1] += " " + line
        else:
            made.append(line)
    return made


def _counts_of_check() -> list[str]:
    gradients, _ = _gradients()
    return [
        f"{len(PRESETS)} presets",
        f"{_differentiable()} ops",
        f"{len(CONFIGURATIONS)} models",
        f"All {gradients:,} gradients hold",
        f"All {len(OPS)} ops",
    ]


def _check_on_cpu() -> str:
    said = tapeless("check", "--backend", "cpu").splitlines()
    start = next(n for n, line in enumerate(said) if line.startswith("The cpu backend"))
    return _block("$ tapeless check --backend cpu", *_joined([line for line in said[start:] if line]))


def _counts_on_cpu() -> list[str]:
    results, places = _results()
    return [
        f"{results:,} results of single calls in {places} configurations",
        f"the {_kernels()} kernels of {len(OPS)}",
    ]


def _training() -> str:
    said = tapeless("train", "--backend", "cpu").splitlines()
    epochs = [line for line in said if line.startswith("epoch")]
    answers = [line for line in said if "✓" in line or "✗" in line]
    return _block("$ tapeless train", "…", epochs[0], "…", epochs[-1], *answers[:2])


def _trained_everywhere() -> list[str]:
    """Steps and answers; the digits of losses are a machine's own."""
    batch, epochs = OPERATIONS.defaults["batch"], OPERATIONS.defaults["epochs"]
    steps = TRAINING // batch
    _, held_out = split(0)
    answers = zip(held_out.tokens[:2], held_out.answers[:2], strict=True)
    return [
        f"epoch 1.00 step {steps:,} loss",
        f"epoch {epochs:.2f} step {round(epochs * steps):,} loss",
        *(f"{spell(tokens)} = {WORDS[answer]} ✓" for tokens, answer in answers),
    ]


def _fine_tuning() -> str:
    """What a step of smollm2-135m takes, by what of it is trained."""
    rows = ["| trained | parameters | memory | work |", "|---|--:|--:|--:|"]
    for said, fields in (
        ("all", dict[str, Any]()),
        ("`--lora 16`", {"lora": 16}),
        ("`--lora 16 --set lora_targets=q,v`", {"lora": 16, "lora_targets": ("q", "v")}),
        ("`--train norms`", {"train": ("norms",)}),
        ("`--train blocks.29,norm`", {"train": ("blocks.29", "norm")}),
    ):
        lean = fields | {"lean": True}  # as `train` and `plan` have it with one batch per step
        made = subject("smollm2-135m", lean, batch=1, time=512, usual=(1, None)).spec.plan()
        trained = sum(weight.elements for weight in made.program.trained)
        rows.append(f"| {said} | {trained:,} | {size(made.peak_bytes)} | {flops(made.flops)} |")
    return "\n".join(["", "", "smollm2-135m, one sequence of 512 positions, float32:", "", *rows, ""])


def _in_one_file() -> str:
    return str(len((ROOT / "examples" / "gpt_in_one_file.py").read_text(encoding="utf-8").splitlines()))


# What is proven.


def _proven() -> str:
    gradients, elements = _gradients()
    worst = re.search(r"gradients hold: (.*)\.$", tapeless("check"), re.MULTILINE)
    assert worst, "check says its worst error"
    return f"{gradients:,} gradients, {elements:,} elements, {worst[1]}"


def _in_lockstep() -> str:
    results, places = _results()
    return f"{results:,} results in {places} configurations"


def _over_the_range() -> str:
    values = re.search(r"bounds: ([\d,]+)\s+values", tapeless("check", "--backend", "cpu"))
    assert values, "check says how many values were tried"
    return f"{values[1]} values"


def _wrong_by_rule() -> str:
    rules = Counter(wrong.rule for wrong in WRONG)
    ways = Counter(wrong.how for wrong in WRONG)
    lines = ["| refused by | programs |", "|---|--:|", *(f"| {rule} | {rules[rule]} |" for rule in RULES)]
    made = ", ".join(f"{count} by *{how}*" for how, count in ways.items())
    return "\n".join(["", "", *lines, "", f"{len(WRONG)} programs, made from right ones: {made}.", ""])


def _caught() -> str:
    """As the last run over the catalogue has it, in docs/bugs.md."""
    page = (ROOT / "docs" / "bugs.md").read_text(encoding="utf-8")
    caught = re.search(r"\| our checkers \| \*\*(\d+)\*\* ", page)
    named = re.search(r"names what has the bug for (\d+) of them", page)
    assert caught and named, "docs/bugs.md has the last run"  # noqa: PT018
    return f"{caught[1]} of {len(BUGS)} caught, {named[1]} by the name of what has them"


def _mutants() -> str:
    page = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    last = re.search(r"(\d+) mutants: (\d+) killed \(([\d.]+)\s?%\), (\d+) survivors", page)
    assert last, "docs/mutants.md has the last run"
    return f"{last[2]} of {last[1]} killed ({last[3]} %); the other {last[4]} compute the same as the original"


def _today() -> str:
    return date.today().isoformat()


FIGURES: dict[str, Figure] = {
    "parameters of ops-102k": Figure(lambda: f"{_program(LARGER[0]).parameters:,}"),
    "bench": Figure(_bench),
    "plan": Figure(_plan_answer),
    "largest batch recomputed": Figure(_largest_recomputed),
    "own kernel": Figure(_own_kernel, run=True, holds=_own_everywhere),
    "fine-tuning": Figure(_fine_tuning),
    "attention": Figure(_looks, run=True),
    "backward of a block": Figure(_backward_of_a_block),
    **{f"api of {module.rpartition('.')[2]}": Figure(partial(api_of, module)) for module in PUBLIC},
    "api of the given": Figure(api_of_the_given),
    "bugs": Figure(lambda: str(len(BUGS))),
    "ops": Figure(lambda: str(len(OPS))),
    "small models": Figure(lambda: str(len(CONFIGURATIONS))),
    "lines of the one file": Figure(_in_one_file),
    "wrong programs": Figure(lambda: str(len(WRONG))),
    "wrong programs by rule": Figure(_wrong_by_rule),
    "bugs caught": Figure(_caught),
    "mutants": Figure(_mutants),
    "lockstep": Figure(_in_lockstep),
    "check": Figure(_check, run=True, holds=_counts_of_check),
    "proven": Figure(_proven, run=True, holds=lambda: ["{:,} gradients, {:,} elements".format(*_gradients())]),
    "check on cpu": Figure(_check_on_cpu, run=True, holds=_counts_on_cpu),
    "range": Figure(_over_the_range, run=True),
    "training": Figure(_training, run=True, holds=_trained_everywhere),
    "date": Figure(_today, run=True),
}
