"""`make bench`: the works we promise figures for, beside their peers, written to docs/benchmarks.md.

Each processor has a chapter: the step beside PyTorch, in float32 and, if this machine has it, in bfloat16, adapters
beside peft, decoding beside Hugging Face's `generate`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from tapeless.kernels.cpu import has_bfloat16

WORKS = (
    ("ops-102k", 32, 8, 25),
    ("gpt2-4x256", 1, 1024, 11),
    ("gpt2-124m", 4, 64, 5),
    ("gpt2-124m", 1, 1024, 5),
    ("smollm2-135m", 1, 512, 3),
)
IN_BFLOAT16 = (
    ("gpt2-4x256", 1, 1024, 5),
    ("gpt2-124m", 4, 64, 5),
    ("gpt2-124m", 1, 1024, 3),
    ("smollm2-135m", 1, 512, 3),
)
ADAPTED = (("smollm2-135m", 1, 512, 3),)
DECODED = ("gpt2-124m", "smollm2-135m")
RANK, TURNS = 16, 5
NARROW = ("--precision", "bfloat16")
WITHOUT_AMX = (
    "On this virtual machine PyTorch's oneDNN dies of AMX, which it takes for usable without being told how the "
    "registers are laid out; so autocast was held to AVX-512, and ours alone used AMX. Where PyTorch can use it, too, "
    "the lead is smaller: docs/decisions/bfloat16.md."
)
INTRODUCTION = """# Step time beside PyTorch

Made by `make bench`, a chapter for each processor that it was run on. The full step: forward, loss, backward, clip, \
AdamW. Each row is one interleaved run, every contender in a process of its own with the others stopped; ratios are \
medians over the turns of peer over ours, so above 1 we are faster. The floor is the step's matmuls alone, on \
the same memory, and one pass of AdamW.

On a machine of two virtual cores the second one is not always its own: the same step can take 1.2 or 2.2 ms from one \
minute to the next, ours and the peers' alike. Only the ratios mean something."""
Result = tuple[str, dict[str, Any]]  # a command, and what it found
RESULTS = Path(__file__).parents[1] / "docs" / "benchmarks.md"
JOURNAL = Path("runs/bench.jsonl")  # rows as they come: half an hour's run that is stopped goes on where it was


def command(name: str, batch: int, time: int, steps: int) -> list[str]:
    return ["bench", name, "-B", str(batch), "-T", str(time), "--steps", str(steps)]


def processor() -> str:
    """Its name; with the family if the name does not tell generations apart, as on a virtual AMD EPYC."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = told.get("model name") or platform.processor() or platform.machine()
    return name if any(map(str.isdigit, name)) or "cpu family" not in told else f"{name} (family {told['cpu family']})"


def machine() -> str:
    """The machine that a figure is of, in words, as "2 cores of an AMD EPYC (family 25)"."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of an {processor()}"


def measured(*words: str) -> Result:
    """What a command says of itself, as JSON; from the journal, where this code was measured already."""
    print(*words, flush=True)
    said, code = " ".join(words), subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True).strip()
    kept = [json.loads(line) for line in JOURNAL.read_text(encoding="utf-8").splitlines()] if JOURNAL.exists() else []
    for row in kept:
        if row["command"] == said and row["code"] == code:
            return said, row["result"]
    program = ["-m", "tapeless", *words[1:]] if words[0] == "tapeless" else words[1:]
    done = subprocess.run([sys.executable, *program, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    result = json.loads(done.stdout)
    JOURNAL.parent.mkdir(exist_ok=True)
    with JOURNAL.open("a", encoding="utf-8") as file:
        print(json.dumps({"command": said, "code": code, "result": result}), file=file)
    return said, result


def main() -> None:
    steps = [measured("tapeless", *command(*work)) for work in WORKS]
    narrow = [measured("tapeless", *command(*work), *NARROW) for work in IN_BFLOAT16 if has_bfloat16()]
    adapted = [measured("tapeless", *command(*work), "--set", f"lora={RANK}") for work in ADAPTED]
    decoding = [("python", "benchmarks/decoding.py", name, "--turns", str(TURNS)) for name in DECODED]
    decoded = [measured(*words, *how) for words in decoding for how in ((), NARROW) if has_bfloat16() or not how]
    before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    RESULTS.write_text(beside(before, report(steps, narrow, adapted, decoded)), encoding="utf-8")
    JOURNAL.unlink(missing_ok=True)
    print(f"written to {RESULTS}")


def beside(before: str, chapter: str) -> str:
    """This processor's chapter in the place of its last one, before those of other processors."""
    _, *others = before.split("\n## ")
    own = chapter.partition("\n")[0]
    kept = [other.strip() for other in others if other.partition("\n")[0] != own]
    return "\n\n## ".join([INTRODUCTION, chapter.strip(), *kept]) + "\n"


def report(results: list[Result], narrow: list[Result], adapted: list[Result], decoded: list[Result]) -> str:
    first = results[0][1]
    lines = [
        processor(),
        "",
        f"On {date.today()}: {first['threads']} threads, in float32 {first['blas']}, Python "
        f"{platform.python_version()}.",
        "",
        "| command | eager / ours | compile / ours | best / ours | step / floor | memory | of eager | of compile |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for words, result in results:
        ratios, peaks = result["ratios"], result["peers_peak_bytes"]
        ours = result["ours_peak_bytes"]
        cells = [
            f"`{words}`",
            f"{ratios['torch_eager']:.2f}×",
            f"{ratios['torch_compile']:.2f}×",
            f"**{result['ratio']:.2f}×**",
            f"{result['step_over_floor']:.2f}",
            f"{ours / 2**20:,.0f} MiB",
            f"{ours / peaks['torch_eager']:.1%}",
            f"{ours / peaks['torch_compile']:.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "### In bfloat16", "", *_in_bfloat16(narrow)] if narrow else []
    lines += ["", "### Adapters beside peft", "", *_adapters(adapted), "", "### Decoding beside `generate`", ""]
    return "\n".join([*lines, *_decoding(decoded), ""])


def _in_bfloat16(results: list[Result]) -> list[str]:
    """Beside PyTorch in both precisions; the ratio is to the best of the four."""
    names = {"torch_eager": "float32, eager", "torch_compile": "compiled"}
    names |= {
        f"{name}_bfloat16": f"autocast, {how}"
        for name, how in (("torch_eager", "eager"), ("torch_compile", "compiled"))
    }
    head = " | ".join(names.values())
    lines = [
        "Ours in bfloat16; PyTorch in float32 and under `torch.autocast` to bfloat16, eager and compiled, over ours.",
        "",
        f"| command | {head} | best / ours | step / floor | memory | of the leanest |",
        "|---|" + "---|" * (len(names) + 4),
    ]
    for words, result in results:
        ratios, ours = result["ratios"], result["ours_peak_bytes"]
        leanest = min(result["peers_peak_bytes"].values())
        lines.append(
            f"| `{words}` | {' | '.join(f'{ratios[name]:.2f}×' for name in names)} | **{result['ratio']:.2f}×** | "
            f"{result['step_over_floor']:.2f} | {ours / 2**20:,.0f} MiB | {ours / leanest:.1%} |"
        )
    if any(result["without_amx"] for _, result in results):
        lines += ["", WITHOUT_AMX]
    return lines


def _adapters(results: list[Result]) -> list[str]:
    """A training of adapters alone, at the same rank on the same projections."""
    lines = [
        "| command | peft / ours | peft compiled / ours | step / floor | memory | of peft | of peft compiled |",
        "|---|---|---|---|---|---|---|",
    ]
    for words, result in results:
        ratios, peaks, ours = result["ratios"], result["peers_peak_bytes"], result["ours_peak_bytes"]
        lines.append(
            f"| `{words}` | {ratios['peft']:.2f}× | {ratios['peft_compile']:.2f}× | {result['step_over_floor']:.2f} | "
            f"{ours / 2**20:,.0f} MiB | {ours / peaks['peft']:.1%} | {ours / peaks['peft_compile']:.1%} |"
        )
    return lines


def _decoding(results: list[Result]) -> list[str]:
    """The floor is one pass over the weights for each token."""
    first = results[0][1]
    lines = [
        f"Greedy, with a cache: {first['prompt']} tokens are read and {first['new']} made. The floor only reads the "
        "weights, once for each token.",
        "",
        "| command | generate / ours | ours / floor | ours, ms a token | the same tokens |",
        "|---|---|---|---|---|",
    ]
    for words, result in results:
        same = "yes" if result["same_tokens"] else "no"
        lines.append(
            f"| `{words}` | {result['ratio']:.2f}× | {result['over_floor']:.2f} | "
            f"{result['ms_per_token']['decode-ours']:.1f} | {same} |"
        )
    return lines


if __name__ == "__main__":
    main()
