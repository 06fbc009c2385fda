"""`make fuzz`, as processes: one a core, each with a reader at a time; what ends a process is a finding, too."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import secrets
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

from tools.figures.places import machine
from tools.fuzz.hunt import Result, work
from tools.fuzz.readers import READERS, Reader

PIECE = 20_000  # inputs a process is given: what it leaves in memory goes with it
DOCUMENT = Path("docs/fuzzing.md")
MARKS = ("<!-- figures -->", "<!-- end of figures -->")
SHOWN = 3  # findings of one kind that are printed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=sys.modules["tools.fuzz"].__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all (default: a million)")
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed by default")
    parser.add_argument("--reader", help="only readers whose name holds this")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true", help=f"the figures into {DOCUMENT}")
    asked = parser.parse_args()
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    chosen = [reader for reader in READERS if asked.reader is None or asked.reader in reader.name]
    if not chosen:
        parser.error(f"no reader is called {asked.reader}; there are " + ", ".join(reader.name for reader in READERS))
    print(f"seed {seed}: about {asked.inputs:,} inputs for {len(chosen)} readers", flush=True)
    started = time.monotonic()
    hunted = _hunted(chosen, seed, asked.inputs, asked.first, asked.workers)
    minutes = (time.monotonic() - started) / 60
    table = _table(hunted, seed, minutes)
    print("\n" + table)
    if asked.write:
        _write(table)
    sys.exit(1 if any(findings for _, _, findings, _ in hunted.values()) else 0)


Hunted = dict[str, tuple[int, int, list[str], float]]


def _hunted(chosen: list[Reader], seed: int, inputs: int, first: int, workers: int) -> Hunted:
    whole = sum(reader.share for reader in chosen)
    pieces: list[tuple[Reader, range]] = []
    for reader in chosen:
        count = max(1, -(-inputs * reader.share // whole))
        ends = range(first, first + count, PIECE)
        pieces += [(reader, range(start, min(start + PIECE, first + count))) for start in ends]
    hunted: Hunted = {reader.name: (0, 0, [], 0.0) for reader in chosen}
    kinds: Counter[str] = Counter()
    with ThreadPoolExecutor(workers) as pool:
        for reader, result, findings in pool.map(lambda piece: _piece(piece[0], piece[1], seed), pieces):
            tried, refused, before, slowest = hunted[reader.name]
            hunted[reader.name] = (
                tried + result.tried,
                refused + result.refused,
                before + findings,
                max(slowest, result.slowest),
            )
            for finding in findings:
                kind = reader.name + re.sub(r"^input \d+|\d{3,}", "", finding)
                kinds[kind] += 1
                if kinds[kind] <= SHOWN:
                    print(f"FOUND {reader.name}, seed {seed}, {finding}", flush=True)
    return hunted


def _piece(reader: Reader, numbers: range, seed: int) -> tuple[Reader, Result, list[str]]:
    """In a process of its own. One that dies is started again after the input that it died of."""
    tried = refused = 0
    slowest = 0.0
    findings: list[str] = []
    context = multiprocessing.get_context("forkserver")  # everything is imported once, by a process without threads
    context.set_forkserver_preload(["tools.fuzz.hunt"])
    rest = numbers
    while rest:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(sending, reader.name, seed, rest))
        process.start()
        sending.close()
        last = Result(0, 0)
        ended = False
        while not ended:
            try:
                message: Any = receiving.recv()
            except EOFError:
                break
            if message is None:
                ended = True
            else:
                last = message
                if last.finding:
                    findings.append(f"{last.finding}   {last.input[:300]!r}")
        process.join()
        tried, refused, slowest = tried + last.tried, refused + last.refused, max(slowest, last.slowest)
        rest = rest[len(rest) if ended else last.tried :]
        if not ended:
            findings.append(f"input {rest.start if rest else numbers.stop} or soon after: ended the process")
            tried, rest = tried + 500, rest[500:]
    return reader, Result(tried, refused, slowest=slowest), findings


def _table(hunted: Hunted, seed: int, minutes: float) -> str:
    tried = sum(each[0] for each in hunted.values())
    found = sum(len(each[2]) for each in hunted.values())
    lines = [
        f"`make fuzz` on {date.today():%-d %B %Y}, {machine()}, seed {seed}: "
        f"{tried:,} inputs in {minutes:.0f} minutes, {found:,} findings.",
        "",
        "| file | inputs | refused with a sentence | findings | slowest, ms |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, (count, refused, findings, slowest) in hunted.items():
        lines.append(f"| {name} | {count:,} | {refused:,} | {len(findings):,} | {1000 * slowest:.0f} |")
    return "\n".join(lines)


def _write(table: str) -> None:
    before, rest = DOCUMENT.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    DOCUMENT.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
