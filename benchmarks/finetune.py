"""`make finetune`: a small Llama learns Python's standard library, and then, by LoRA, to answer questions about it.

The questions are made of docstrings. Modules that are held out are read by neither training. Writes what came of it
into docs/finetune-demo.md, between its markers; all else stays in the folder.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from docstrings import ROOT, Asked, write_chats
from run import machine

DOCS = Path(__file__).parents[1] / "docs" / "finetune-demo.md"
BEGIN, END = "<!-- make finetune: begin -->", "<!-- make finetune: end -->"
SOURCE = "stdlib"
TOLD = 60  # questions that are asked
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Answered:
    prompt: str
    wanted: str
    before: str
    after: str

    @property
    def alike(self) -> float:
        """F1 of the words that the answer has in common with the docstring."""
        said, wanted = (Counter(WORD.findall(text.lower())) for text in (self.after, self.wanted))
        common = sum((said & wanted).values())
        return 2 * common / max(1, sum(said.values()) + sum(wanted.values()))


def commands(folder: str, steps: int, vocab: int, model: Sequence[str], lora: Sequence[str]) -> dict[str, list[str]]:
    """What is run, in this order; the conversations are written after `base`."""
    base, tuned, held_out = (f"{folder}/{name}" for name in ("base", "tuned", "held-out.jsonl"))
    return {
        "tokens": ["tokenize", SOURCE, "--tokenizer", "bpe", "--vocab", str(vocab), "--out", f"{folder}/tokens"],
        "base": ["train", "llama-4x256", "--data", f"{folder}/tokens", "--steps", str(steps), *model, "--out", base],
        "before": ["evaluate", base, "--data", held_out],
        "tuned": ["train", "--init-from", base, "--data", f"{folder}/chats.jsonl", *lora, "--out", tuned],
        "after": ["evaluate", tuned, "--data", held_out],
    }


def tapeless(*words: str, said: str = "") -> str:
    """What it prints where it is asked for JSON; else it is seen while it runs."""
    quiet = "--json" in words
    print("tapeless", shlex.join(words), flush=True)
    ran = subprocess.run(
        [sys.executable, "-m", "tapeless", *words],
        stdout=subprocess.PIPE if quiet else None,
        input=said or None,
        text=True,
        check=False,
    )
    if ran.returncode:
        sys.exit(ran.returncode)  # it has said why
    return ran.stdout or ""


def answers(run: str, questions: Sequence[str], how: Sequence[str]) -> list[dict[str, Any]]:
    """To each by itself, always the likeliest token."""
    said = "\n/reset\n".join(questions) + "\n"
    told = tapeless("chat", run, "--json", "--temperature", "0", "--count", "64", *how, said=said)
    return [json.loads(line) for line in told.splitlines()]


def measured(run: list[str], how: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tapeless(*run, "--json", *how))
    return found


def section(
    lines: list[str],
    counts: dict[str, int],
    found: dict[str, dict[str, Any]],
    ended: dict[str, float],
    told: list[Answered],
    minutes: dict[str, float],
) -> str:
    ranked = sorted(told, key=lambda each: each.alike)
    best, middle = ranked[-1], ranked[len(ranked) // 2]
    before, after = found["before"], found["after"]
    rows = "\n".join(
        f"| {name} | {each['loss']:.3f} | {each['perplexity']:,.1f} | {each['accuracy']:.1%} | {share:.0%} |"
        for name, each, share in (
            ("before, as it comes from the text", before, ended["before"]),
            ("after, with its adapters", after, ended["after"]),
        )
    )
    took = ", ".join(f"{what} {spent:.1f}" for what, spent in minutes.items())
    return f"""{date.today()}, {machine()}, `make finetune`, {sum(minutes.values()):.0f} minutes ({took}):

```
{chr(10).join(lines)}
```

{counts["training conversations"]:,} questions about {counts["training modules"]:,} modules are learned. Those about {counts["validation modules"]:,} modules that neither training has read, {after["targets"]:,} tokens of answers in {after["conversations"]:,} conversations:

| | loss | perplexity | right | answers that end |
|---|--:|--:|--:|--:|
{rows}

Of {len(told)} held-out questions, asked at temperature 0, the answer that has most words in common with its docstring:

{transcript(best)}

And the one in the middle of the {len(told)}, which is what to expect:

{transcript(middle)}

It has learned what an answer looks like: one sentence in the manner of a docstring, and then an end. It has not learned what the functions do. A model of this size that has read some {minutes["text"]:.0f} minutes of source guesses from the name and the arguments, and says it as surely where it is wrong.
"""  # noqa: E501


def transcript(each: Answered) -> str:
    """As `tapeless chat` shows it, beside what is right and what the model said before it was tuned."""
    first = each.before.strip().splitlines()
    return (
        f"```\n> {each.prompt}\n{each.after.strip()}\n```\n\n"
        f"The docstring: *{each.wanted}* Before it was tuned: `{(first or [''])[0][:90]}`"
    )


def write(path: Path, text: str) -> None:
    """Between the markers, whatever stood there."""
    before, found, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        sys.exit(f"{path} has no {BEGIN} … {END}: put both back where the figures belong.")
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="runs/finetune", help="a new one, for tokens, conversations and runs")
    parser.add_argument("--steps", type=int, default=1400, help="updates of the first training")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--model", default="--time 256 --batch 8 --lr 2e-3", help="of the first training")
    parser.add_argument("--lora", default="--lora 16 --lr 2e-3 --batch 8 --epochs 4", help="of the second")
    parser.add_argument("--how", default="", help="for every command that runs a model, such as --backend reference")
    parser.add_argument("--docs", type=Path, default=DOCS)
    asked = parser.parse_args()
    folder, how = Path(asked.folder), shlex.split(asked.how)
    if folder.exists():
        sys.exit(f"{folder} is there already: remove it, or name another with --folder.")
    every = commands(asked.folder, asked.steps, asked.vocab, shlex.split(asked.model), shlex.split(asked.lora))
    folder.mkdir(parents=True)
    clock, minutes = time.monotonic(), {}

    def lap(what: str) -> None:
        nonlocal clock
        minutes[what], clock = (time.monotonic() - clock) / 60, time.monotonic()
        print(f"{what}: {minutes[what]:.1f} minutes", flush=True)

    tapeless(*every["tokens"])
    lap("tokens")
    tapeless(*every["base"], *how)
    lap("text")
    counts = write_chats(folder / "tokens" / "documents.jsonl", ROOT, folder)
    found = {"before": measured(every["before"], how)}
    tapeless(*every["tuned"], *how)
    lap("conversations")
    found["after"] = measured(every["after"], how)
    rows: list[Asked] = [json.loads(line) for line in (folder / "held-out.jsonl").read_text("utf-8").splitlines()]
    chosen = rows[:: max(1, len(rows) // TOLD)][:TOLD]
    questions = [row["prompt"] for row in chosen]
    before, after = (answers(f"{asked.folder}/{run}", questions, how) for run in ("base", "tuned"))
    ended = {
        name: sum(each["ended"] == "it ended its turn" for each in said) / len(said)
        for name, said in (("before", before), ("after", after))
    }
    told = [
        Answered(row["prompt"], row["completion"], one["assistant"], other["assistant"])
        for row, one, other in zip(chosen, before, after, strict=True)
    ]
    lap("answers")
    shown = {name: f"$ tapeless {shlex.join(words)}" for name, words in every.items()}
    script = f"$ python benchmarks/docstrings.py {asked.folder}/tokens {asked.folder}"
    text = section(
        [shown["tokens"], shown["base"], script, *list(shown.values())[2:]], counts, found, ended, told, minutes
    )
    write(asked.docs, text)
    print(f"\n{text}\nwritten to {asked.docs}")


if __name__ == "__main__":
    main()
