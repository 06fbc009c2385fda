"""The step, its calls and the matmuls alone on 1, 2, 4, … threads up to the cores there are, beside PyTorch.

Writes a Markdown chapter after every row, and the rows as JSON beside it. A later run with the same FILE measures what
is missing. The parts:

    gemm    ours beside torch.mm, at the models' shapes and of squares
    steps   the full step, ours, its floor and the peers
    calls   the most expensive calls of ours, and how well each uses its threads
    grain   ops-102k, where a further thread is woken for more work or for less (`dispatch.GRAIN`)
    layers  where Intel's OpenMP is, our own threads beside its own (docs/decisions/threads.md)

    python benchmarks/threads.py [--quick] [--only gemm,steps,calls,grain] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tapeless.bench.environment import environment
from tapeless.bench.race import Contender, Work
from tapeless.errors import TapelessError
from tapeless.models.presets import preset

WORKS = {
    "ops-102k": ("ops-102k", 32, 8),
    "gpt2-4x256": ("gpt2-4x256", 1, 1024),
    "gpt2-124m": ("gpt2-124m", 4, 64),
    "gpt2-124m-long": ("gpt2-124m", 1, 1024),
}
USUAL = ("ops-102k", "gpt2-4x256", "gpt2-124m")
PRECISIONS = ("float32", "bfloat16")
PEERS = ("torch-eager", "torch-compile", "torch-eager-bfloat16", "torch-compile-bfloat16")
OURS = tuple(f"{kind}-{precision}" for precision in PRECISIONS for kind in ("ours", "floor"))
SQUARES = (1024, 2048, 4096)
PARTS = ("gemm", "steps", "calls", "grain", "layers")
GRAINS = (1e-9, 0.25, 0.5, 1, 2, 4, 8, 16)  # the first: every loop that is threaded wakes all
MOST_CALLS = 10
MOST_LOGITS = {True: 512, False: 256}  # rows of a chunk of logits, for a narrow model and a wide one
RANDOM = np.random.default_rng(0)
SETTLE = 0.25  # seconds: OpenMP's threads look out for work for a fifth of one, and would be in the next one's way


class Effort(NamedTuple):
    turns: int
    turn: float  # seconds of a contender's turn, which has one step at least
    row: float  # seconds after which a row of steps takes no further turn, once it has two
    gemm: float  # seconds of a turn of a matmul


FULL, QUICK = Effort(5, 0.3, 60.0, 0.03), Effort(2, 0.05, 10.0, 0.005)


class Worker(Contender):
    """A contender that is asked for one number of threads after the other; between questions it is stopped."""

    def _start(self, work: Work, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", self.name, json.dumps(asdict(work))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Compiled once, for all numbers of threads.
            env=environment | {"TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1"},
        )

    def ask(self, **question: Any) -> Any:
        return self._ask(question)["answer"]


# In the worker's process


def serve(name: str, work: Work) -> None:
    answers = {"gemm-ours": GemmOurs, "gemm-torch": GemmTorch}.get(name, Steps)(name, work)
    print(json.dumps({"answer": answers.about()}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"answer": getattr(answers, question.pop("do"))(**question)}
        except TapelessError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


class Steps:
    """The step of ours, of the floor, or of a peer."""

    def __init__(self, name: str, work: Work) -> None:
        self._torch = name.startswith("torch")
        kind, _, precision = name.partition("-")
        self._name, self._work = (name, work) if self._torch else (kind, replace(work, precision=precision))
        self._step: Callable[[], Any] | None = None
        self._profile: Any = None

    def about(self) -> dict[str, Any]:
        if self._torch and self._name.endswith("bfloat16"):
            import torch

            a = torch.ones(256, 256, dtype=torch.bfloat16)
            torch.mm(a, a)  # where oneDNN dies of AMX, it does so now
        return {}

    def threads(self, count: int) -> dict[str, Any]:
        """Ours are bound anew; a peer is built once."""
        if self._torch:
            import torch

            from tapeless.bench import torch_peer

            if self._step is None:
                self._step, _, _ = torch_peer.prepare(self._name, self._work)
            torch.set_num_threads(count)
        else:
            from tapeless.bench import floor, ours

            self._step = self._profile = None  # whose memory comes free first
            prepare: Any = (ours if self._name == "ours" else floor).prepare
            self._step, _, self._profile = prepare(self._name, replace(self._work, threads=count))
        begun = time.perf_counter()
        for number in range(4):  # by then a list of small calls is one
            self._step()
            if number and time.perf_counter() - begun > 1:
                break
        return {}

    def times(self, count: int) -> list[float]:
        step = self._step
        assert step is not None
        return [_milliseconds(step) for _ in range(count)]

    def calls(self, steps: int) -> Any:
        return self._profile(steps)["calls"]


class GemmOurs:
    """c = a @ b, of which a or b may be stored transposed; all of them in one precision."""

    def __init__(self, name: str, work: Work) -> None:
        self._run: Any = None

    def about(self) -> dict[str, Any]:
        from tapeless.kernels.cpu import gemm_bfloat16

        return {"bfloat16": gemm_bfloat16.HAS_BFLOAT16, "amx": gemm_bfloat16.AMX}

    def times(self, m: int, n: int, k: int, turned: list[bool], precision: str, threads: int, count: int) -> Any:
        from tapeless.kernels import cpu as cpu_kernels
        from tapeless.program.precision import numpy_type

        if count == 1:  # the first time
            cpu_kernels.set_threads(threads)
            cpu_kernels.set_gemm_library("own")
            kind = numpy_type(precision)
            c, a, b = (RANDOM.standard_normal(shape, np.float32).astype(kind) for shape in _shapes(m, n, k, turned))
            self._run = cpu_kernels.gemm(c, a, b, *turned)
        return [_milliseconds(self._run) for _ in range(count)]


class GemmTorch:
    def __init__(self, name: str, work: Work) -> None:
        self._run: Any = None

    def about(self) -> dict[str, Any]:
        import torch

        a = torch.ones(256, 256, dtype=torch.bfloat16)
        torch.mm(a, a)
        return {}

    def times(self, m: int, n: int, k: int, turned: list[bool], precision: str, threads: int, count: int) -> Any:
        import torch

        if count == 1:
            torch.set_num_threads(threads)
            kind = getattr(torch, precision)
            c, a, b = (torch.randn(shape).to(kind) for shape in _shapes(m, n, k, turned))
            a, b = (x.T if turn else x for x, turn in zip((a, b), turned, strict=True))
            self._run = lambda: torch.mm(a, b, out=c)
        return [_milliseconds(self._run) for _ in range(count)]


def _shapes(m: int, n: int, k: int, turned: list[bool]) -> tuple[tuple[int, int], ...]:
    turn_a, turn_b = turned
    return (m, n), (k, m) if turn_a else (m, k), (n, k) if turn_b else (k, n)


def _milliseconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - begun)


# What is measured


class Rows:
    """What has been measured, by key; kept in FILE.json, and written as a chapter, after every row."""

    def __init__(self, out: Path, minutes: float) -> None:
        self.out, self.kept = out, out.with_suffix(".json")
        self._until = time.monotonic() + 60 * minutes
        self.found: dict[str, Any] = json.loads(self.kept.read_text(encoding="utf-8")) if self.kept.exists() else {}
        self.about: dict[str, Any] = self.found.setdefault("about", {})
        self.about.update(machine())

    def wanted(self, *keys: str) -> bool:
        """Whether one of them is to be measured now."""
        missing = [key for key in keys if key not in self.found]
        if missing and time.monotonic() >= self._until:
            print(f"left out, as the time is over: {', '.join(missing)}", flush=True)
        return bool(missing) and time.monotonic() < self._until

    def add(self, key: str, row: Any, said: str) -> None:
        self.found[key] = row
        self.write()
        print(f"{time.strftime('%H:%M:%S')} {key}: {said}", flush=True)

    def write(self) -> None:
        self.kept.write_text(json.dumps(self.found, indent=1), encoding="utf-8")
        self.out.write_text(chapter(self.found), encoding="utf-8")

    def of(self, part: str) -> dict[str, Any]:
        return {key: row for key, row in self.found.items() if key.startswith(f"{part} ")}


def machine() -> dict[str, Any]:
    found = environment()
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    return {
        "processor": found["processor"],
        "cores": found["cores"],
        "system": found["system"],
        "date": str(date.today()),
        "python": found["python"],
        "amx_in_cpuinfo": "amx_bf16" in cpu,
        "packages": {name: found["packages"][name] for name in ("numpy", "numba", "torch", "mkl")},
    }


def numbers_of_threads(cores: int) -> list[int]:
    """One and all first: what a run that is cut off should have."""
    between = [1 << power for power in range(1, cores.bit_length()) if 1 << power < cores]
    return list(dict.fromkeys([1, cores, *between]))


def gemm(rows: Rows, effort: Effort, threads: list[int], works: list[str]) -> None:
    said = mm_of_torch()
    rows.about["torch_mm"] = said or "not told"
    most = Work("", 0, 0, max(threads), {})
    runners = started(["gemm-ours", "gemm-torch"], most, rows)
    if not runners or runners[0].name != "gemm-ours":
        return
    about = runners[0].about["answer"]
    rows.about["amx"] = about["amx"]
    try:
        for count in threads:
            for name, m, n, k, turned in matmuls(works):
                key = f"gemm {count} {name} {m}x{n}x{k}"
                if rows.wanted(key):
                    row = {
                        precision: gemm_row(runners, effort, m, n, k, turned, precision, count)
                        for precision in PRECISIONS
                        if precision == "float32" or about["bfloat16"]
                    }
                    rows.add(key, row, ", ".join(f"{p} {_rates(m, n, k, found)}" for p, found in row.items()))
    finally:
        for runner in runners:
            runner.close()


def gemm_row(
    runners: list[Worker], effort: Effort, m: int, n: int, k: int, turned: list[bool], precision: str, threads: int
) -> dict[str, float]:
    """Milliseconds, medians of turns."""
    asked = {"do": "times", "m": m, "n": n, "k": k, "turned": turned, "precision": precision, "threads": threads}
    counts, times = {}, {}
    for runner in runners:
        runner.ask(**asked, count=1)
        once = min(runner.ask(**asked, count=2))
        counts[runner.name], times[runner.name] = max(1, round(1000 * effort.gemm / once)), []
    for _ in range(min(3, effort.turns)):
        for runner in runners:
            times[runner.name].append(median(runner.ask(**asked, count=counts[runner.name])))
    return {name.removeprefix("gemm-"): median(each) for name, each in times.items()}


def matmuls(works: list[str]) -> Iterator[tuple[str, int, int, int, list[bool]]]:
    """Name, m, n, k and which factor is stored transposed: y = x·W, dx = dy·Wᵀ and dW = xᵀ·dy of every linear layer,
    and those of the classifier on a chunk of rows, whose weight is by rows of the vocabulary."""
    for size in SQUARES:
        yield f"{size}³", size, size, size, [False, False]
    for work in works:
        name, batch, length = WORKS[work]
        c = preset(name).architecture
        positions = batch * length
        last = batch if c.readout == "last" else positions
        layers = {"qkv": (c.channels, 3 * c.channels), "proj": (c.channels, c.channels)}
        layers |= {"up": (c.channels, c.width), "down": (c.width, c.channels)}
        for layer, (inner, outer) in layers.items():
            said = f"{work} {layer}"
            yield f"{said} y", positions, outer, inner, [False, False]
            yield f"{said} dx", positions, inner, outer, [False, True]
            yield f"{said} dW", inner, outer, positions, [True, False]
        chunk = min(last, MOST_LOGITS[c.channels <= 256])
        yield f"{work} vocabulary scores", c.vocab, chunk, c.channels, [False, True]
        yield f"{work} vocabulary dx", chunk, c.channels, c.vocab, [True, False]
        yield f"{work} vocabulary dW", c.vocab, c.channels, chunk, [False, False]


def mm_of_torch() -> str:
    """What oneDNN says of the kernel that torch.mm takes in bfloat16."""
    code = "import torch; a = torch.ones(1024, 1024, dtype=torch.bfloat16); torch.mm(a, a)"
    told = os.environ | {"ONEDNN_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=told)
    kernels = re.findall(r"exec,cpu,matmul,([^,]+)", done.stdout)
    return kernels[-1] if kernels else f"ended with {done.returncode}" if done.returncode else ""


def steps(rows: Rows, effort: Effort, threads: list[int], works: list[str], peers: list[str]) -> None:
    for work in works:
        keys = {count: f"steps {count} {work}" for count in threads}
        if not rows.wanted(*keys.values()):
            continue
        runners = started([*OURS, *peers], Work(*WORKS[work], max(threads), {}, products="own"), rows)
        try:
            for count in threads:
                if rows.wanted(keys[count]):
                    row = steps_row(runners, effort, count, rows)
                    rows.add(keys[count], row, ", ".join(f"{name} {median(each):.2f} ms" for name, each in row.items()))
        finally:
            for runner in runners:
                runner.close()


def steps_row(runners: list[Worker], effort: Effort, threads: int, rows: Rows) -> dict[str, list[float]]:
    """The milliseconds of a step, a median for each turn."""
    counts, times = {}, {}
    for runner in list(runners):
        print(f"  {runner.name} on {threads} threads", flush=True)
        try:
            runner.ask(do="threads", count=threads)
            once = min(runner.ask(do="times", count=2))
        except TapelessError as error:
            _missing(rows, runner.name, error)
            runner.close()
            runners.remove(runner)
            continue
        counts[runner.name], times[runner.name] = max(1, round(1000 * effort.turn / once)), []
    begun = time.monotonic()
    for turn in range(effort.turns):
        if turn >= 2 and time.monotonic() - begun > effort.row:
            break
        for runner in runners:
            times[runner.name].append(median(runner.ask(do="times", count=counts[runner.name])))
    return times


def calls(rows: Rows, effort: Effort, threads: list[int], works: list[str]) -> None:
    for work in works:
        for precision in PRECISIONS:
            keys = {count: f"calls {count} {work} {precision}" for count in threads}
            if not rows.wanted(*keys.values()):
                continue
            runners = started([f"ours-{precision}"], Work(*WORKS[work], max(threads), {}, products="own"), rows)
            try:
                for runner in runners:
                    for count in threads:
                        if rows.wanted(keys[count]):
                            runner.ask(do="threads", count=count)
                            found = runner.ask(do="calls", steps=effort.turns)
                            row = {f"{each['call']} {each['where']} ×{each['count']}": each["ms"] for each in found}
                            first = ", ".join(f"{name} {ms:.2f} ms" for name, ms in list(row.items())[:3])
                            rows.add(keys[count], row, first)
            except TapelessError as error:
                _missing(rows, f"calls of {work} in {precision}", error)
            finally:
                for runner in runners:
                    runner.close()


def grain(rows: Rows, effort: Effort, threads: list[int]) -> None:
    """Steps of ops-102k in turn, each bound with another `dispatch.GRAIN`."""
    from tapeless.bench.ours import prepare
    from tapeless.kernels.cpu import dispatch

    usual = dispatch.GRAIN
    for count in threads:
        key = f"grain {count} ops-102k"
        if count == 1 or not rows.wanted(key):
            continue
        steps: dict[str, Callable[[], Any]] = {}
        for each in GRAINS:
            dispatch.GRAIN = each
            name = "all" if each < 0.1 else f"{each:g}"
            steps[name], _, _ = prepare("ours", Work(*WORKS["ops-102k"], count, {}, products="own"))
            for _ in range(4):
                steps[name]()
        dispatch.GRAIN = usual
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(4 * effort.turns):
            for name, step in steps.items():
                times[name].append(median(_milliseconds(step) for _ in range(50)))
        row = {name: median(each) for name, each in times.items()}
        rows.add(key, row, ", ".join(f"{name} {ms:.3f} ms" for name, ms in row.items()))


def started(names: list[str], work: Work, rows: Rows) -> list[Worker]:
    """Those that can run here."""
    found = []
    for name in names:
        try:
            found.append(Worker(name, work))
        except TapelessError as error:
            _missing(rows, name, error)
        else:
            if "isa" in found[-1].about:
                rows.about.setdefault("without_amx", {})[name] = found[-1].about["isa"]
    return found


def _missing(rows: Rows, name: str, error: TapelessError) -> None:
    rows.about.setdefault("missing", {})[name] = str(error)
    print(f"  {name}: {error}", flush=True)


# The chapter


def chapter(found: dict[str, Any]) -> str:
    about = found["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items() if version)
    lines = [
        f"## Threads: {about['processor']}, {about['cores']} cores",
        "",
        f"On {about['date']}, {about['system']}, {about['python']}, {versions}: `python benchmarks/threads.py`. "
        f"Matmuls are our own; times are medians of turns, every contender in a process of its own with the others "
        f"stopped. The peers' compiled models were compiled once, for all numbers of threads.",
        "",
        f"AMX in the processor: {_yes(about['amx_in_cpuinfo'])}; used by our bfloat16 matmuls, all of them: "
        f"{_yes(about.get('amx'))}; torch.mm in bfloat16: {about.get('torch_mm', 'not asked')}.",
    ]
    for what, why in {**about.get("missing", {}), **about.get("without_amx", {})}.items():
        lines.append(f"\n{what}: {why}")
    parts = (("gemm", gemm_tables), ("steps", steps_tables), ("calls", calls_tables), ("grain", grain_tables))
    for part, tables in parts:
        rows = {tuple(key.split(" ", 2)[1:]): row for key, row in found.items() if key.startswith(f"{part} ")}
        if rows:
            lines += ["", *tables(rows, sorted({int(count) for count, _ in rows}))]
    return "\n".join([*lines, ""])


def _yes(value: bool | None) -> str:
    return "not asked" if value is None else "yes" if value else "no"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def gemm_tables(rows: dict[tuple[str, ...], Any], threads: list[int]) -> list[str]:
    lines = [
        "### The matmuls alone",
        "",
        "TFLOP/s of ours / of torch.mm, on so many threads; **bold**: ours is more than 10 % behind.",
    ]
    names = list(dict.fromkeys(name for _, name in rows))
    for precision in PRECISIONS:
        table = []
        for name in names:
            m, n, k = map(int, name.rsplit(" ", 1)[1].split("x"))
            cells = [_rates(m, n, k, rows.get((str(count), name), {}).get(precision)) for count in threads]
            table.append([*name.rsplit(" ", 1), *cells])
        lines += ["", f"In {precision}:", "", *_table(["matmul", "m×n×k", *_on(threads)], table)]
    return lines


def _on(threads: list[int]) -> list[str]:
    return [f"{count} threads" if count > 1 else "1 thread" for count in threads]


def _rates(m: int, n: int, k: int, found: dict[str, float] | None) -> str:
    if not found:
        return "–"
    rates = {name: 2 * m * n * k / ms / 1e9 for name, ms in found.items()}
    said = " / ".join(f"{rate:.3f}" if rate < 1 else f"{rate:.2f}" for rate in rates.values())
    return f"**{said}**" if rates["ours"] < 0.9 * rates.get("torch", 0) else said


def steps_tables(rows: dict[tuple[str, ...], Any], threads: list[int]) -> list[str]:
    lines = ["### The step", "", "Milliseconds, and in brackets how many times faster than on one thread."]
    for work in dict.fromkeys(work for _, work in rows):
        by_count = {count: rows.get((str(count), work), {}) for count in threads}
        names = list(dict.fromkeys(name for found in by_count.values() for name in found))
        table = []
        for name in names:
            times = {count: median(found[name]) for count, found in by_count.items() if found.get(name)}
            ones = [
                f"{times[count]:,.2f} ({times[1] / times[count]:.1f}×)"
                if count in times and 1 in times
                else f"{times[count]:,.2f}"
                if count in times
                else "–"
                for count in threads
            ]
            table.append([name, *ones])
        for precision in PRECISIONS:
            ours = f"ours-{precision}"
            over = [_median_ratio(found, ours, f"floor-{precision}") for found in by_count.values()]
            table.append([f"{ours} over its floor", *over])
            peers = [peer for peer in PEERS if precision == "bfloat16" or not peer.endswith("bfloat16")]
            best = [
                min((_median_ratio(found, peer, ours) for peer in peers if found.get(peer)), key=float, default="–")
                for found in by_count.values()
            ]
            table.append([f"best peer over {ours}", *best])
        name, batch, length = WORKS[work]
        lines += ["", f"{name}, {batch}×{length}:", "", *_table(["", *_on(threads)], table)]
    return lines


def _median_ratio(found: dict[str, list[float]], above: str, below: str) -> str:
    """Of turns: what slowed one slowed both sides of it."""
    if not found.get(above) or not found.get(below):
        return "nan"
    return f"{median(a / b for a, b in zip(found[above], found[below], strict=True)):.2f}"


def calls_tables(rows: dict[tuple[str, ...], Any], threads: list[int]) -> list[str]:
    lines = [
        f"### The {MOST_CALLS} most expensive calls",
        "",
        "Milliseconds of all calls of a kind, and in brackets "
        "the efficiency: the time on one thread over n times that on n.",
    ]
    for work in dict.fromkeys(work for _, work in rows):
        by_count = {count: rows.get((str(count), work), {}) for count in threads}
        most = max(count for count, found in by_count.items() if found)
        one, table = by_count.get(1, {}), []
        for name in sorted(by_count[most], key=lambda name: -by_count[most][name])[:MOST_CALLS]:
            cells = []
            for count, found in by_count.items():
                said = f"{found[name]:.2f}" if name in found else "–"
                both = name in found and name in one
                cells.append(f"{said} ({one[name] / count / found[name]:.0%})" if both else said)
            table.append([name, *cells])
        totals = [f"{sum(found.values()):.1f}" if found else "–" for found in by_count.values()]
        table.append(["all", *totals])
        lines += ["", f"{work}:", "", *_table(["call, first result", *_on(threads)], table)]
    return lines


def grain_tables(rows: dict[tuple[str, ...], Any], threads: list[int]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = [[name, *(f"{rows[str(count), 'ops-102k'][name]:.3f}" for count in threads)] for name in names]
    return [
        "### How many threads a small loop wakes",
        "",
        "Milliseconds of a step of ops-102k, by `dispatch.GRAIN`: a "
        "further thread for so large a part of the work from which there are two.",
        "",
        *_table(["GRAIN", *_on(threads)], table),
    ]


# Our own threads beside Numba's layers


def layers(turns: int) -> None:
    """A step on our own threads beside the same step on MKL's OpenMP, in turn in one process."""
    from tapeless.bench.ours import prepare
    from tapeless.kernels.cpu import dispatch, pool

    threads = dispatch.set_threads(None)
    ways = {"ours": None, "OpenMP": dispatch._openmp()}
    print(f"a step's time over that on our own threads, {threads} threads, medians of {turns} turns")
    for work in USUAL:
        for precision in PRECISIONS if work == "gpt2-4x256" else ("bfloat16" if work == "gpt2-124m" else "float32",):
            step, _, _ = prepare("ours", Work(*WORKS[work], threads, {}, precision, "cpu", "own"))
            for _ in range(4):  # by then a list of small calls is one
                step()
            count = max(3, round(400 / _milliseconds(step)))
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(turns):
                for way, library in ways.items():
                    pool.use_openmp(library)
                    time.sleep(SETTLE)
                    step()
                    times[way].append(median(_milliseconds(step) for _ in range(count)))
            pool.use_openmp(None)
            ratios = {way: median(a / b for a, b in zip(times[way], times["ours"], strict=True)) for way in ways}
            said = ", ".join(f"{way} {ratio:.2f}" for way, ratio in ratios.items() if way != "ours")
            print(f"{work} {precision}: {said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short turns: to see that it works")
    parser.add_argument("--only", default="gemm,steps,calls,grain", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("threads.md"), help="the chapter; its rows go to .json")
    parser.add_argument("--threads", help="1,2,4 and so on; from one to all cores by default")
    parser.add_argument("--works", default=",".join(USUAL), help=f"of {', '.join(WORKS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help="beside whom the steps are taken; empty for none")
    parser.add_argument("--minutes", type=float, default=8, help="after which no row is begun")
    parser.add_argument("--turns", type=int, default=7, help="of the part `layers`")
    asked = parser.parse_args()
    parts, works, peers = (list(filter(None, each.split(","))) for each in (asked.only, asked.works, asked.peers))
    for given, there in ((parts, PARTS), (works, WORKS), (peers, PEERS)):
        for each in given:
            if each not in there:
                parser.error(f"{each!r} is none of {', '.join(there)}")
    if "layers" in parts:
        layers(asked.turns)
        return
    rows, effort = Rows(asked.out, asked.minutes), QUICK if asked.quick else FULL
    threads = [int(each) for each in asked.threads.split(",")] if asked.threads else None
    threads = threads or numbers_of_threads(rows.about["cores"])
    if "gemm" in parts:
        gemm(rows, effort, threads, works)
    if "steps" in parts:
        steps(rows, effort, threads, works, peers)
    if "calls" in parts:
        calls(rows, effort, threads, works)
    if "grain" in parts:
        grain(rows, effort, threads)
    rows.write()
    print(f"written to {asked.out} and {rows.kept}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(sys.argv[2], Work(**json.loads(sys.argv[3])))
    else:
        main()
