"""`tapeless bench`"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Annotated, Any

import typer

from tapeless.backends.backend import backend_named, gemm_library, thread_count
from tapeless.bench.race import Contender, Work, contenders, race
from tapeless.cli.common import Json, PresetName, console, print_json, size, table
from tapeless.cli.fields import Set, model_changes
from tapeless.cli.progress import counted
from tapeless.errors import TapelessError, unknown
from tapeless.inputs import check_shape
from tapeless.kernels import cpu as cpu_kernels
from tapeless.models.config import check_size
from tapeless.models.presets import preset
from tapeless.program.precision import PRECISIONS
from tapeless.train.machine import has_choice

PEERS = ("torch-eager", "torch-compile", "torch-eager-bfloat16", "torch-compile-bfloat16")
PEERS_OF_ADAPTERS = ("peft", "peft-compile")


def bench(
    name: PresetName,
    batch: Annotated[int | None, typer.Option("--batch", "-B", help="Sequences per step.")] = None,
    time: Annotated[int | None, typer.Option("--time", "-T", help="Positions per sequence.")] = None,
    backend: Annotated[str, typer.Option(help="cpu or cuda. With cuda the peers run on the GPU, too.")] = "cpu",
    precision: Annotated[
        str, typer.Option(help="Of our step, float32 or bfloat16. With bfloat16 the peers run in both.")
    ] = "float32",
    peers: Annotated[
        str | None,
        typer.Option(
            help=f"Comma-separated: {', '.join(PEERS)}, or with --set lora=16 {', '.join(PEERS_OF_ADAPTERS)}; "
            "empty for none.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Turns that each contender takes.")] = 7,
    threads: Annotated[int | None, typer.Option(help="Threads of every contender. Default: one per core.")] = None,
    products: Annotated[
        str | None, typer.Option(help="Our GEMM in float32 on the cpu backend: mkl or own. Default: the faster one.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="List the calls by time, beside the machine's ceilings.")
    ] = False,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Compare the time of a training step with PyTorch's, as ratios from one interleaved run.

    The full step (forward, loss, backward, clip, AdamW) of ours and of each peer run in turn, each in a process of its
    own while all others are stopped. The floor is the same matmuls alone, plus one pass over the optimizer's bytes.

    Example: tapeless bench gpt2-4x256 -B 1 -T 1024 --profile
    """
    changes = model_changes(set_)
    wanted = preset(name).override(**changes)
    config = wanted.architecture
    batch = (32 if config.context <= 64 else 1) if batch is None else batch
    time = config.context if time is None else time
    check_shape(config, batch, time)
    check_size("steps", steps)
    if backend == "reference":
        raise TapelessError("the reference is there to be right, not fast: bench the cpu or the cuda backend.")
    kind = backend_named(backend)
    if precision not in kind.traits.precisions:
        raise unknown("precision", precision, kind.traits.precisions)
    if wanted.lora is not None and kind.name == "cuda":
        raise TapelessError("adapters are benched on the cpu backend alone: benchmarks/cuda_peers.py has a GPU's peer.")
    there = PEERS if wanted.lora is None else PEERS_OF_ADAPTERS
    usual = PEERS[:2] if wanted.lora is None and precision != "bfloat16" else there
    chosen = list(usual) if peers is None else [peer.strip() for peer in peers.split(",") if peer.strip()]
    for peer in chosen:
        if peer not in there:
            raise unknown("peer", peer, there)
    work = Work(name, batch, time, cpu_kernels.checked_threads(threads), changes, precision, kind.name)
    if has_choice(kind, precision, "adamw"):
        thread_count(kind, work.threads)
        work = replace(work, products=gemm_library(kind, products or cpu_kernels.faster_gemm().library))
    floor = ["floor"] if kind.name == "cpu" else []
    with contenders(["ours", *chosen, *floor], work) as runners:
        for _ in counted(race(runners, steps), steps, lambda _: "turn", json):
            pass
        result = _result(work, runners)
        calls = runners[0].profile(3) if profile else None
    if json:
        print_json(result | ({"profile": calls} if calls else {}))
        return
    _print(work, runners, result)
    if calls:
        _print_profile(calls)


def _result(work: Work, runners: list[Contender]) -> dict[str, Any]:
    """Ratios are medians of the ratios of each turn: what slowed one turn slowed both sides of it."""
    ours, floor = runners[0], next((each for each in runners if each.name == "floor"), None)
    peers = [each for each in runners[1:] if each is not floor]
    ratios = {_key(peer): _ratio(peer, ours) for peer in peers}
    return {
        "preset": work.preset,
        "batch": work.batch,
        "time": work.time,
        "threads": work.threads,
        "precision": work.precision,
        "frozen_precision": work.fields.get("frozen_precision"),
        "backend": work.backend,
        "blas": ours.about["blas"],
        "ours_ms": median(ours.times),
        "peers": {_key(peer): median(peer.times) for peer in peers},
        "ratio": min(ratios.values(), default=None),
        "ratios": ratios,
        "step_over_floor": _ratio(ours, floor) if floor else None,
        "tokens_per_second": 1000 * work.batch * work.time / median(ours.times),
        "arena_bytes": ours.about["arena_bytes"],
        "ours_peak_bytes": ours.peak_bytes(),
        "peers_peak_bytes": {_key(peer): peer.peak_bytes() for peer in peers},
        "without_amx": [_key(peer) for peer in peers if "isa" in peer.about],
    }


def _key(peer: Contender) -> str:
    return peer.name.replace("-", "_")


def _ratio(above: Contender, below: Contender) -> float:
    return median(a / b for a, b in zip(above.times, below.times, strict=True))


def _print(work: Work, runners: list[Contender], result: dict[str, Any]) -> None:
    held = work.fields.get("frozen_precision")
    apart = f" with our frozen matrices in {held}" if held and held != PRECISIONS[work.precision].weight else ""
    console.print(
        f"[bold]{work.preset}[/]  batch {work.batch}, time {work.time}, {work.precision}{apart}, "
        f"{work.threads} threads, {result['blas']}; {len(runners[0].times)} turns each, medians"
    )
    peaks = {"ours": result["ours_peak_bytes"]} | {
        runner.name: result["peers_peak_bytes"].get(_key(runner)) for runner in runners[1:]
    }
    rows = []
    for runner in runners:
        milliseconds, peak = median(runner.times), peaks.get(runner.name)
        rows.append(
            (
                runner.name,
                f"{milliseconds:,.2f}",
                f"{1000 * work.batch * work.time / milliseconds:,.0f}",
                f"{_ratio(runner, runners[0]):.2f}×",
                size(peak) if peak else "",
            )
        )
    console.print(table(("", ">ms a step", ">tokens/s", ">over ours", ">peak memory"), rows))
    held = [runner.name for runner in runners if _key(runner) in result["without_amx"]]
    if held:
        console.print(f"[dim]{', '.join(held)}: without AMX, with which oneDNN dies on this machine[/]")
    if result["ratio"]:
        console.print(f"\nbest peer over ours: [bold]{result['ratio']:.2f}×[/]")
    if result["step_over_floor"]:
        console.print(f"step over floor (matmuls and one pass of AdamW): [bold]{result['step_over_floor']:.2f}[/]")


def _print_profile(calls: dict[str, Any]) -> None:
    console.print(
        f"\n[dim]ceilings in this run: {calls['peak_gflops']:.0f} GFLOP/s of matmuls, "
        f"{calls['peak_gbytes']:.1f} GB/s of copying[/]"
    )
    total = sum(row["ms"] for row in calls["calls"])
    rows = [
        (
            row["call"],
            row["where"],
            str(row["count"]),
            f"{row['ms']:.3f}",
            f"{row['ms'] / total:.1%}",
            f"{row['flops'] / row['ms'] / 1e6:.1f}",
            f"{row['bytes'] / row['ms'] / 1e6:.1f}",
        )
        for row in calls["calls"]
    ]
    console.print(table(("call", "first result", ">count", ">ms", ">share", ">GFLOP/s", ">GB/s"), rows))
