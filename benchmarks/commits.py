"""The step of this checkout beside that of another commit, in one interleaved run: `python benchmarks/commits.py REV`.

Each commit has a process of its own that waits while the other runs. A ratio is the median over the turns of this
checkout's time over the other commit's: below 1 this checkout is faster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
WORKS = (
    ("ops-102k", 32, 8, 200),
    ("gpt2-4x256", 1, 1024, 2),
    ("gpt2-124m", 4, 64, 2),
    ("gpt2-124m", 1, 1024, 1),
    ("smollm2-135m", 1, 512, 1),
)
DTYPES = ("float32", "bfloat16")
# What a process of either commit runs; the names are those of both.
WORKER = """
import sys, time
import numpy as np
import tapeless
name, batch, seq_len, steps, dtype = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
model = tapeless.Model(name, batch=batch, time=seq_len, backend="cpu", precision=dtype, optimizer="adamw")
rng = np.random.default_rng(0)
vocab = model.config.vocab
inputs = rng.integers(0, vocab, (batch, seq_len))
targets = rng.integers(0, vocab, (batch, seq_len) if model.config.readout == "all" else batch)
model.step(inputs, targets, lr=1e-4)
print(model.plan.peak_bytes, flush=True)
for _ in sys.stdin:
    begun = time.perf_counter()
    for _ in range(steps):
        loss = model.step(inputs, targets, lr=1e-4).loss
    print((time.perf_counter() - begun) / steps, flush=True)
"""


def worker(source: Path, work: tuple[str, int, int, int], dtype: str) -> subprocess.Popen[str]:
    name, *sizes = work
    command = [sys.executable, "-c", WORKER, name, *map(str, sizes), dtype]
    environment = os.environ | {"PYTHONPATH": str(source / "src")}
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )


def answer(process: subprocess.Popen[str], ask: bool = True) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    if ask:
        print(file=process.stdin, flush=True)
    return float(process.stdout.readline())


def compare(other: Path, work: tuple[str, int, int, int], dtype: str, turns: int) -> None:
    with worker(ROOT, work, dtype) as new, worker(other, work, dtype) as old:
        memory = answer(new, ask=False) / answer(old, ask=False)
        seconds = [(answer(new), answer(old)) for _ in range(turns)]
        for process in (new, old):
            assert process.stdin is not None
            process.stdin.close()
    name, batch, seq_len, _ = work
    ratio, ours = median(a / b for a, b in seconds), median(a for a, _ in seconds)
    print(f"| {name} {batch}×{seq_len} | {dtype} | {1000 * ours:.2f} ms | {ratio:.3f} | {memory:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--turns", type=int, default=11)
    options = parser.parse_args()
    print("| work | dtype | step | time, this / other | memory, this / other |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "other"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", place, options.commit], cwd=ROOT, check=True)
        try:
            for work in WORKS:
                for dtype in DTYPES if work[0] != "ops-102k" else DTYPES[:1]:
                    compare(place, work, dtype, options.turns)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", place], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
