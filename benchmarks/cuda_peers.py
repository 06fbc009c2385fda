"""The CUDA backend beside PyTorch, in one process and in turn, on a GPU. Needs torch, triton and NumPy.

PYTHONPATH=src python benchmarks/cuda_peers.py step gpt2-124m 32 default,max-autotune    time and memory of a step
PYTHONPATH=src python benchmarks/cuda_peers.py step gpt2-1558m 8 default|none [recompute] [chunk=N]
PYTHONPATH=src python benchmarks/cuda_peers.py step llama-3.2-1b 8 default chunk=2048
PYTHONPATH=src python benchmarks/cuda_peers.py step gpt2-1558m 8 blocks    each block compiled, not the whole: quicker
PYTHONPATH=src python benchmarks/cuda_peers.py step llama-3.2-1b 8 default,narrow chunk=2048 lora=16    adapters
PYTHONPATH=src python benchmarks/cuda_peers.py kernels gpt2-124m 32    the kernels of a captured step by their time
PYTHONPATH=src python benchmarks/cuda_peers.py small       ops-102k, from a batch in NumPy to the next
PYTHONPATH=src python benchmarks/cuda_peers.py gradients [PRESET]   gpt2-124m, 2×1024: errors beside autocast's
PYTHONPATH=src python benchmarks/cuda_peers.py training    gpt2-124m, 8×1024, 300 steps, beside two runs of PyTorch
PYTHONPATH=src python benchmarks/cuda_peers.py same        the same 100 steps in two processes

The peer: the model in plain PyTorch with torch.compile, bf16 autocast, scaled_dot_product_attention as it chooses
(cuDNN's, on an H200), fused AdamW and clipping at 1.0; with adapters its frozen weights are float32, under `narrow`
bfloat16, as a model is that was loaded so. Text is Python's own standard library, two bytes a token.
"""

from __future__ import annotations

import gc
import hashlib
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tapeless.bench.torch_peer import transformer
from tapeless.model import Model
from tapeless.program.call import gradient_name

LR = 3e-4
TRIED = 6  # batches on which gradients are compared
MODES, HOW = ("reduce-overhead", "default", "eager", "max-autotune"), ("float32", "autocast")
Step = Callable[[Any, Any], Any]


def text(batches: int, batch: int, length: int) -> list[tuple[Any, Any]]:
    """Batches of (tokens, the tokens that follow)."""
    needed, data = batches * batch * (length + 1) * 2, b""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        data += path.read_bytes()
    pairs = np.frombuffer((data * (1 + needed // len(data)))[:needed], np.uint8).astype(np.int64).reshape(-1, 2)
    tokens = ((256 * pairs[:, 0] + pairs[:, 1]) % 50257).reshape(batches, batch, length + 1)
    order = np.random.default_rng(0).permutation(batches)
    return [(tokens[n, :, :-1], tokens[n, :, 1:]) for n in order]


def ours(name: str, batch: int, length: int, precision: str = "bfloat16", **fields: Any) -> Model:
    return Model(name, batch=batch, time=length, backend="cuda", precision=precision, **fields)


def fields_of(words: tuple[str, ...]) -> dict[str, Any]:
    """`recompute`, `chunk=2048`: fields of the preset."""
    pairs = (word.partition("=") for word in words)
    return {name: int(value) if value else True for name, _, value in pairs}


def theirs(model: Model, dtype: torch.dtype = torch.float32) -> Any:
    """The peer, with the weights of ours."""
    with torch.device("cuda"):
        peer = transformer(model.config).to(dtype)
    mine = {"tokens.weight": "tokens.weight", "positions": "positions.weight", "head.weight": "head.weight"}
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            values = model.read(_our_name(name, mine, model.config.gated))
            values = values.T if values.ndim == 2 and name not in mine else values
            weight.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    return peer


class Adapted(torch.nn.Module):
    """A frozen linear, and beside it a narrow way around: one for each part of what is packed, as ours and peft's."""

    def __init__(self, base: Any, rank: int, parts: list[int]) -> None:
        super().__init__()
        self.base, self.rank = base, rank
        self.down = torch.nn.Parameter(torch.randn(rank * len(parts), base.in_features) / base.in_features)
        self.ups = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(part, rank)) for part in parts)

    def forward(self, x: Any) -> Any:
        low = torch.nn.functional.linear(x, self.down).split(self.rank, dim=-1)
        around = [torch.nn.functional.linear(*pair) for pair in zip(low, self.ups, strict=True)]
        return self.base(x) + torch.cat(around, dim=-1)


def adapt(peer: Any, model: Model, narrow: bool) -> None:
    c = model.config
    heads = [number * c.head_channels for number in (c.heads, c.key_heads, c.key_heads)]
    peer.requires_grad_(False)
    if narrow:
        peer.to(torch.bfloat16)
    for block in peer.blocks:
        for name, parts in (("qkv", heads), ("proj", [c.channels]), ("up", [c.width] * 2), ("down", [c.channels])):
            with torch.device("cuda"):
                setattr(block, name, Adapted(getattr(block, name), model.preset.lora, parts))


def _our_name(name: str, mine: dict[str, str], gated: bool) -> str:
    if name in mine:
        return mine[name]
    for part in ("qkv", "proj", "q_norm", "k_norm"):
        name = name.replace(f".{part}.", f".attn.{part}.")
    return name.replace(".up.", ".mlp.gate_up." if gated else ".mlp.up.").replace(".down.", ".mlp.down.")


def peer_step(peer: Any, mode: str, autocast: bool = True) -> Step:
    run = peer
    if mode == "blocks":
        peer.end = torch.compile(peer.end)
        for block in peer.blocks:
            block.compile()
    elif mode != "eager":
        run = torch.compile(peer, mode=None if mode in ("default", "narrow") else mode)
    optimizer = torch.optim.AdamW(_groups(peer), lr=LR, fused=True)
    trained = [weight for weight in peer.parameters() if weight.requires_grad]

    def step(inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = run(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        return loss.detach()

    return step


def _groups(peer: Any) -> list[dict[str, Any]]:
    """As ours: matrices decay, positions do not."""
    trained = [(name, weight) for name, weight in peer.named_parameters() if weight.requires_grad]
    decays = [weight for name, weight in trained if weight.ndim == 2 and name != "positions"]
    kept = [weight for name, weight in trained if weight.ndim != 2 or name == "positions"]
    return [{"params": decays, "weight_decay": 0.01}, {"params": kept, "weight_decay": 0.0}]


def milliseconds(run: Callable[[], Any], times: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / times


def step(name: str, batch: str, modes: str = "default", *fields: str) -> None:
    rows = int(batch)
    ((inputs, targets),) = text(1, rows, 1024)
    started = time.perf_counter()
    model = ours(name, rows, 1024, **fields_of(fields))
    losses = [model.step(inputs, targets, lr=LR, clip=1.0).loss for _ in range(3)]
    planned, held = model.plan.peak_bytes / 2**30, torch.cuda.max_memory_allocated() / 2**30
    print(f"{name} {rows}×1024 {' '.join(fields)}: ready in {time.perf_counter() - started:.0f} s, losses {losses}")
    print(f"  ours: {held:.2f} GiB, of which the plan said {planned:.2f}", flush=True)
    on_device = [torch.from_numpy(each.copy()).cuda() for each in (inputs, targets)]
    (graph,) = (natives for (phases, _), natives in model.engine._captured.items() if "update" in phases)
    alone = [milliseconds(lambda: [native() for native in graph], 12) for _ in range(4)]
    print(f"  ours alone: {statistics.median(alone[1:]):.2f} ms", flush=True)
    for mode in modes.split(",") if modes != "none" else ():
        gc.collect()
        torch.cuda.empty_cache()
        before, started = torch.cuda.memory_allocated(), time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        torch.compiler.reset()
        peer = theirs(model)
        if model.preset.lora:
            adapt(peer, model, narrow=mode == "narrow")
        run = peer_step(peer, mode)
        losses = [float(run(*on_device)) for _ in range(5)]
        first, ready = (torch.cuda.max_memory_allocated() - before) / 2**30, time.perf_counter() - started
        gc.collect()
        torch.cuda.reset_peak_memory_stats()  # compiling may have taken more than a step takes
        run(*on_device)
        memory = (torch.cuda.max_memory_allocated() - before) / 2**30
        reserved = (torch.cuda.memory_reserved() - before) / 2**30
        mine, other = [], []
        for _ in range(6):  # in turn: a GPU under load grows slower
            mine.append(milliseconds(lambda: [native() for native in graph], 12))
            other.append(milliseconds(lambda run=run: run(*on_device), 12))
        found, peers = statistics.median(mine[1:]), statistics.median(other[1:])
        print(f"  {mode}: ready in {ready:.0f} s, losses {[round(each, 4) for each in losses]}")
        print(f"    ours {found:.2f} ms ({min(mine):.2f}-{max(mine):.2f}), theirs {peers:.2f} ms ", end="")
        print(f"({min(other):.2f}-{max(other):.2f}), {memory:.2f} GiB: {peers / found:.3f}×, ", end="")
        print(f"memory {held / memory:.0%}")
        print(f"    their first steps, with compiling, took {first:.2f} GiB; torch holds {reserved:.2f}", flush=True)
        del peer, run


def small() -> None:
    rng = np.random.default_rng(0)
    model = Model("ops-102k", batch=32, backend="cuda", precision="float32")
    inputs = rng.integers(0, model.config.vocab, (32, model.time))
    targets = rng.integers(0, model.config.vocab, 32 if model.config.readout == "last" else inputs.shape)
    mixed = Model("ops-102k", batch=32, backend="cuda", precision="bfloat16")

    def wall(run: Step, times: int = 200) -> float:
        for _ in range(20):
            run(inputs, targets)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            run(inputs, targets)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - started) / times

    def fed(run: Step) -> Step:
        def step(inputs: Any, targets: Any) -> Any:
            moved = (torch.from_numpy(each).pin_memory().cuda(non_blocking=True) for each in (inputs, targets))
            return run(*moved)

        return step

    runs: dict[str, Step] = {
        "ours, float32": lambda x, y: model.step(x, y, lr=LR, clip=1.0),
        "ours, bfloat16": lambda x, y: mixed.step(x, y, lr=LR, clip=1.0),
    }
    took = {}
    for name in ("ours, float32", "ours, bfloat16", *(f"{mode}, {how}" for mode in MODES for how in HOW)):
        mode, _, how = name.partition(", ")
        torch.compiler.reset()
        run = runs.get(name) or fed(peer_step(transformer(model.config).cuda(), mode, how == "autocast"))
        took[name] = wall(run)
        best = min(took[each] for each in took if each in runs)
        print(f"  ops-102k {name:28} {took[name]:7.3f} ms a step, {took[name] / best:5.1f}×", flush=True)


def gradients_of(run: Any, peer: Any, inputs: Any, targets: Any, dtype: torch.dtype | None = None) -> dict[str, Any]:
    peer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype is not None):
        loss = run(*(torch.from_numpy(each.copy()).cuda() for each in (inputs, targets)))
    loss.backward()
    return {name: weight.grad.double().clone() for name, weight in peer.named_parameters()}


def gradients(name: str = "gpt2-124m") -> None:
    """‖difference‖ / ‖truth‖ by tensor against float64, at the first weights and after 30 steps, on several batches:
    of one alone, and of all together (the root of the sum of squares)."""
    batches = text(30 + TRIED, 2, 1024)
    model = ours(name, 2, 1024, chunk=2056)
    for steps in (0, 30):
        for number in range(steps):
            model.step(*batches[number], lr=LR, clip=1.0)
        tried = batches[-TRIED:]
        exact = theirs(model, torch.float64)
        true = [gradients_of(exact, exact, *batch) for batch in tried]
        del exact
        peer = theirs(model)
        found = {"ours, bfloat16": [_ours(model, batch) for batch in tried]}
        single = ours(name, 2, 1024, "float32", chunk=2056)
        for weight in model.params:
            single.write(weight, model.read(weight))
        found["ours, float32"] = [_ours(single, batch) for batch in tried]
        del single
        torch.compiler.reset()
        for how, run in (("eager", peer), ("compiled", torch.compile(peer))):
            found[f"autocast, {how}"] = [gradients_of(run, peer, *batch, dtype=torch.bfloat16) for batch in tried]
        print(f"{name}, 2×1024, after {steps} steps, {TRIED} batches")
        errors: dict[str, Any] = {}  # by how: of each batch, and of all together, by tensor
        for how, each in found.items():
            pairs = list(zip(each, true, strict=True))
            errors[how] = [{weight: _off([pair], weight) for weight in true[0]} for pair in pairs]
            errors[how].append({weight: _off(pairs, weight) for weight in true[0]})
            off = errors[how][-1].values()
            print(f"  {how:20} errors: median {statistics.median(off):.2e}, largest {max(off):.2e}")
        for how in ("autocast, eager", "autocast, compiled"):
            print(f"  ours by {how}")
            for number, (ours_off, theirs_off) in enumerate(zip(errors["ours, bfloat16"], errors[how], strict=True)):
                _ratios("all" if number == TRIED else f"batch {number}", ours_off, theirs_off)


def _ratios(title: str, one: dict[str, float], other: dict[str, float]) -> None:
    ratios = sorted((one[name] / other[name], name) for name in one)
    above = [f"{name} {ratio:.2f}" for ratio, name in ratios if ratio > 1.1]
    middle = statistics.median(ratio for ratio, _ in ratios)
    print(f"    {title:8} median {middle:.3f}, largest {ratios[-1][0]:.3f}, ", end="")
    print(f"{len(above)} of {len(ratios)} above 1.1: {', '.join(above[-8:])}", flush=True)


def _ours(model: Model, batch: tuple[Any, Any]) -> dict[str, Any]:
    model.forward_backward(*batch)
    mine = {"tokens.weight": "tokens.weight", "positions": "positions.weight", "head.weight": "head.weight"}
    found = {}
    with torch.device("meta"):
        names = [name for name, _ in transformer(model.config).named_parameters()]
    for name in names:
        read = model.read(gradient_name(_our_name(name, mine, model.config.gated)))
        values = torch.from_numpy(np.array(read)).cuda().double()
        found[name] = values.T if values.ndim == 2 and name not in mine else values
    return found


def _off(pairs: list[tuple[dict[str, Any], dict[str, Any]]], name: str) -> float:
    off = size = 0.0
    for found, true in ((found[name], true[name]) for found, true in pairs):
        if name.endswith("qkv.bias"):  # a key's has no gradient but roundings
            third = len(true) // 3
            found, true = (torch.cat([side[:third], side[2 * third :]]) for side in (found, true))
        off += float((found - true).norm()) ** 2
        size += float(true.norm()) ** 2
    return (off / size) ** 0.5


def training() -> None:
    batches = text(300, 8, 1024)
    model = ours("gpt2-124m", 8, 1024)
    start = model.weights()
    start = {name: values.copy() for name, values in start.items()}
    losses: dict[str, list[float]] = {}
    for run in ("PyTorch", "PyTorch again"):
        torch.compiler.reset()
        peer = theirs(model)
        stepped = peer_step(peer, "default")
        made = [stepped(*(torch.from_numpy(each.copy()).cuda() for each in batch)) for batch in batches]
        losses[run] = torch.stack(made).tolist()
        del peer, stepped
    losses["ours"] = [model.step(*batch, lr=LR, clip=1.0).loss for batch in batches]
    one, two, mine = (np.array(losses[run]) for run in ("PyTorch", "PyTorch again", "ours"))
    print("gpt2-124m, 8×1024, 300 steps of AdamW; loss")
    for run, values in losses.items():
        shown = ", ".join(f"{values[n]:.4f}" for n in (0, 1, 10, 50, 100, 200, 299))
        print(f"  {run:14} at 0, 1, 10, 50, 100, 200, 299: {shown}; mean of the last 20 {np.mean(values[-20:]):.4f}")
    print(f"  largest difference: PyTorch's two runs {abs(one - two).max():.4f}, ours and the nearer of them ", end="")
    print(f"{np.minimum(abs(mine - one), abs(mine - two)).max():.4f}; mean difference of the last 20: ", end="")
    print(f"theirs {(one - two)[-20:].mean():+.4f}, ours {(mine - (one + two) / 2)[-20:].mean():+.4f}", flush=True)


def same() -> None:
    """Each process chooses its products' algorithms for itself."""
    made = [subprocess.run([sys.executable, __file__, "hash"], capture_output=True, text=True) for _ in range(2)]
    lines = [each.stdout.strip().splitlines()[-1] if each.stdout else each.stderr[-500:] for each in made]
    print(*lines, "the same bits" if lines[0] == lines[1] else "DIFFERENT", sep="\n", flush=True)


def hash_of_training() -> None:
    model, digest = ours("gpt2-124m", 8, 1024), hashlib.sha256()
    for batch in text(100, 8, 1024):
        last = model.step(*batch, lr=LR, clip=1.0)
    loss = last.loss
    for name in (*model.params, *model.state):
        digest.update(model.read(name).tobytes())
    print(f"gpt2-124m, 8×1024, 100 steps: loss {loss!r}, weights and moments {digest.hexdigest()}")


def kernels(name: str, batch: str, *fields: str) -> None:
    """The longest kernels of one captured step, those of a name together."""
    model = ours(name, int(batch), 1024, **fields_of(fields))
    ((inputs, targets),) = text(1, int(batch), 1024)
    for _ in range(12):
        loss = model.step(inputs, targets, lr=LR, clip=1.0).loss
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            loss = model.step(inputs, targets, lr=LR, clip=1.0).loss
    found = sorted(profile.key_averages(), key=lambda each: -each.device_time_total)
    whole = sum(each.device_time_total for each in found) / 3e3
    print(f"{name} {batch}×1024 {' '.join(fields)}: {whole:.2f} ms of kernels a step, loss {loss:.4f}")
    for each in found[:45]:
        took, count = each.device_time_total / 3e3, each.count / 3
        print(f"  {took:8.3f} ms {count:6.1f} times {1e3 * took / count:8.1f} µs  {each.key[:100]}", flush=True)


PARTS: dict[str, Callable[..., None]] = {
    "step": step,
    "small": small,
    "gradients": gradients,
    "training": training,
    "same": same,
    "hash": hash_of_training,
    "kernels": kernels,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: python benchmarks/cuda_peers.py {'|'.join(PARTS)}")
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    PARTS[sys.argv[1]](*sys.argv[2:])
