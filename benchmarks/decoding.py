"""Greedy decoding beside Hugging Face's `generate`, in turns, as ratios: `python benchmarks/decoding.py [--json]`; with
`--precision bfloat16` both in that."""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median
from typing import Any

from decode_contenders import NEW, PROMPT, prepare

from tapeless.bench.race import Work, contenders, race
from tapeless.bench.worker import serve
from tapeless.kernels import cpu as cpu_kernels

CONTENDER = "--contender"
WORKER = (__file__, CONTENDER)  # this file, run for one of them
NAMES = ["decode-ours", "decode-hugging-face", "decode-floor"]


def measured(preset: str, turns: int, threads: int | None, precision: str = "float32") -> dict[str, Any]:
    """Medians over the turns of each; a ratio is the median of the turns' own ratios."""
    work = Work(preset, 1, PROMPT, cpu_kernels.checked_threads(threads), {}, precision)
    with contenders(NAMES, work, WORKER) as runners:
        for _ in race(runners, turns):
            pass
        ours, peer, floor = runners
        calls = ours.profile(20)["calls"]
    read = floor.about["bytes_per_token"]
    return {
        "preset": preset,
        "precision": precision,
        "threads": work.threads,
        "prompt": PROMPT,
        "new": NEW,
        "turns": turns,
        "ratio": median(theirs / mine for theirs, mine in zip(peer.times, ours.times, strict=True)),
        "over_floor": median(mine / least for mine, least in zip(ours.times, floor.times, strict=True)),
        "ms_per_token": {runner.name: median(runner.times) / NEW for runner in runners},
        "bytes_per_token": read,
        "read_gbytes": read / (median(floor.times) / NEW) / 1e6,
        "same_tokens": ours.about["tokens"] == peer.about["tokens"],
        "decoder_bytes": ours.about["arena_bytes"],
        "calls": calls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="gpt2-124m")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, help="for everyone; all cores by default")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measured(options.preset, options.turns, options.threads, options.precision)
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['preset']}, {result['precision']}: {PROMPT} tokens read, {NEW} made, {result['threads']} threads")
    for name, ms in result["ms_per_token"].items():
        print(f"  {name:<22}{ms:8.2f} ms a token")
    print(f"  Hugging Face / ours   {result['ratio']:8.2f}×    the same tokens: {result['same_tokens']}")
    print(
        f"  ours / floor          {result['over_floor']:8.2f}     reading weights at {result['read_gbytes']:.1f} GB/s"
    )
    print("one token, call by call (ms):")
    for row in result["calls"]:
        print(f"  {row['call']:<28}{row['where']:<12}{row['ms']:8.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == [CONTENDER]:
        serve(prepare, *sys.argv[2:])
    else:
        main()
