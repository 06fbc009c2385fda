"""The kernels of the CUDA backend on a GPU. Needs torch, triton and NumPy alone.

PYTHONPATH=src python benchmarks/cuda.py ops [OP …]
                                                 every op in both directions beside the float64 reference, in float32
                                                 and in bfloat16; the same bits again, and from a CUDA graph
PYTHONPATH=src python benchmarks/cuda.py time    what each call of a gpt2-124m step at 32×1024 takes, beside what
                                                 its memory traffic or its product takes at least
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from tapeless.kernels.cuda.products import exact
from tapeless.ops import OPS

POSITIVE = ("count", "scale", "lr", "limit", "largest", "norm", "v", "class_weights")
# In bfloat16: statistics, optimizer state and gradients of weights stay float32 in every op, and in these ops also
# what belongs to the residual stream.
WIDE = ("mean", "rstd", "lse", "loss", "class_weights", "dweight", "dbias", "dtable", "cos", "sin")
STREAM = {
    "embedding": ("y", "dy"),
    "positions": ("y", "dy"),
    "layernorm": ("x", "dx"),
    "rmsnorm": ("x", "dx"),
    "residual": ("y", "x"),
    "zero": ("y",),
    "global_norm": ("gradients",),
    "sgd": ("master", "gradients"),
    "momentum": ("master", "m", "gradients"),
    "adamw": ("master", "m", "v", "gradients"),
}
# ‖difference‖ / ‖truth‖ of a result: bfloat16 has 8 bits, and attention rounds its weights on the way.
DECODING = ("cached_attention", "remember", "positions_at")
ALLOWED = {"float32": 1e-5, "bfloat16": 2.0**-8}
DIMS = {"B": 2, "T": 1000, "S": 1000, "R": 2000, "C": 768, "H": 12, "D": 64, "F": 3072, "V": 50257, "P": 1024, "K": 900}
DIMS |= {"N": 5_000_001, "L": 3, "E": 768, "G": 12, "A": 32}
# What an op is tried with besides: other sizes, other scalars, and where documents begin that share a row.
FORMS: dict[str, list[dict[str, Any]]] = {
    "attention": [
        {},
        {"causal": False},
        {"E": 256},
        {"E": 64, "window": 200},
        {"E": 256, "documents": True},
        {"T": 700},
        {"E": 128, "window": 150, "documents": True},
        {"H": 6, "D": 128, "E": 256, "documents": True},
    ],
    "cached_attention": [{}, {"G": 4}, {"G": 2, "window": 7}],
    "rmsnorm": [{}, {"H": 1, "D": 768}],
}
SCALAR_VALUES: dict[str, Any] = {
    "causal": True,
    "window": 0,
    "eps": 1e-5,
    "momentum": 0.9,
    "beta1": 0.9,
    "beta2": 0.999,
}
SCALAR_VALUES |= {
    "beta2": 0.999,
    "rate": 0.1,
    "site": 3,
    "decay": 0.1,
    "decayed": ((0, 3_000_001), (4_000_000, 4_999_999)),
    "sections": (0, 1_000_000, 3_000_001),
}


def shape_of(spec: Any, argument: str, dims: dict[str, int]) -> tuple[int, ...]:
    return tuple(int(letter) if letter.isdigit() else dims[letter] for letter in spec.letters(argument))


def type_of(op: str, argument: str, precision: str) -> torch.dtype:
    fixed = OPS[op].SPEC.dtype(argument, "number")
    if fixed != "number":
        return torch.int64 if fixed == "int64" else torch.float64
    wide = precision == "float32" or argument in WIDE or argument in STREAM.get(op, ())
    return torch.float32 if wide else torch.bfloat16


def values(op: str, argument: str, dims: dict[str, int], precision: str, rng: torch.Generator) -> torch.Tensor:
    shape = shape_of(OPS[op].SPEC, argument, dims)
    limits = {"tokens": (0, dims["V"]), "targets": (-1, dims["V"]), "position": (10, 11), "places": (0, 100_000)}
    if argument == "starts":
        return torch.stack([documents(shape[1], 300 + 7 * row) for row in range(shape[0])])
    if type_of(op, argument, precision) == torch.int64:
        return torch.randint(*limits.get(argument, (1, 2)), shape, device="cuda", generator=rng)
    array = torch.randn(shape, device="cuda", generator=rng)
    if argument in ("weight", "weights", "table") and len(shape) == 2:
        array *= 0.05
    if argument in POSITIVE and len(shape) == 1:
        array = array.abs() + 0.1
    return array.to(type_of(op, argument, precision))


def documents(length: int, first: int) -> torch.Tensor:
    """Where the document of each place begins: one of so many places, one of a single place, and another."""
    at = torch.arange(length, device="cuda")
    return torch.where(at < first, 0, torch.where(at == first, first, first + 1))


def ops(*names: str) -> None:
    print(f"{'op':28}{'precision':11}{'largest error':>14}  same bits again, and from a graph")
    failed = 0
    for name, op in ((name, op) for name, op in OPS.items() if name in names or not names):
        for direction in ("forward", "backward"):
            if getattr(op.SPEC, direction) is None:
                continue
            for precision in ("float32", "bfloat16"):
                for adding in (False, True) if op.SPEC.signature(direction).adds else (False,):
                    for form in FORMS.get(name, [{}]):
                        failed += judge(name, direction, precision, adding, form)
    print("all agree" if not failed else f"{failed} WRONG")
    sys.exit(bool(failed))


def judge(name: str, direction: str, precision: str, adding: bool, form: dict[str, Any]) -> bool:
    op, rng = OPS[name], torch.Generator("cuda").manual_seed(1)
    spec, signature = op.SPEC, op.SPEC.signature(direction)
    dims = DIMS | ({"T": 1} if name in DECODING else {}) | ({"R": 500, "K": 210} if "V" in str(spec.shapes) else {})
    dims |= {key: value for key, value in form.items() if key.isupper()}
    left_out = set() if form.get("documents") else {"starts"}
    made: dict[str, torch.Tensor] = {}
    for argument in (*spec.forward.arguments, *signature.arguments):
        if argument not in made:
            made[argument] = values(name, argument, dims, precision, rng)
    numbers = {s: (SCALAR_VALUES | form)[s] for s in (*spec.forward.scalars, *signature.scalars)}
    if direction == "backward" and not spec.fused:
        saved = {a: None if a in left_out else exactly(made[a]) for a in spec.forward.arguments}
        op.forward(*saved.values(), *(numbers[s] for s in spec.forward.scalars))
        made |= {a: torch.from_numpy(saved[a]).to(made[a]) for a in spec.forward.writes}
    add = frozenset(signature.adds) if adding else frozenset()
    extra = {"add": add} if add else {}
    arguments = [None if a in left_out else made[a] for a in signature.arguments]
    true = [None if a is None else exactly(a) for a in arguments]
    scalars = [numbers[s] for s in signature.scalars]
    getattr(op, direction)(*true, *scalars, **extra)
    before = [None if a is None else a.clone() for a in arguments]
    try:
        runs = getattr(import_module(f"tapeless.ops.{name}.cuda"), direction)(*arguments, *scalars, **extra)

        def again(how: Callable[[], Any]) -> list[Any]:
            for argument, value in zip(arguments, before, strict=True):
                if argument is not None:
                    argument.copy_(value)
            how()
            torch.cuda.synchronize()
            return [None if a is None else a.clone() for a in arguments]

        with exact():
            first = again(lambda: all_of(runs))
            repeated = again(lambda: all_of(runs))
            graph = captured(runs)
            replayed = again(graph.replay)
    except Exception as error:  # the table shows what else works
        print(f"{name + '.' + direction:28}{precision:11} {form or ''} {type(error).__name__}: {str(error)[:150]}")
        return True
    worst, same = 0.0, [True, True]
    for index, argument in enumerate(signature.arguments):
        if argument in signature.writes and argument != "logits":
            size = float(np.linalg.norm(true[index])) or 1.0
            error = float(np.linalg.norm(exactly(first[index]) - true[index])) / size
            worst = max(worst, error) if error == error else float("nan")
            same[0] &= torch.equal(first[index], repeated[index])
            same[1] &= torch.equal(first[index], replayed[index])
    wrong = not worst <= ALLOWED[precision] or not all(same)
    adds, shown = " +=" if adding else "", f"   {form}" if form else ""
    print(
        f"{name + '.' + direction + adds:28}{precision:11}{worst:14.1e}  {same}{shown}{'   WRONG' if wrong else ''}",
        flush=True,
    )
    return wrong


def exactly(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy().copy()


def all_of(runs: list[Callable[[], Any]]) -> None:
    for run in runs:
        run()


def captured(runs: list[Callable[[], Any]], times: int = 1) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            all_of(runs)
    return graph


@dataclass
class Timed:
    what: str
    number: int  # of such calls in a step
    runs: list[Callable[[], Any]]
    traffic: float = 0.0  # bytes that must move
    flops: float = 0.0

    def floor(self) -> float:
        """ms: what an H200 was measured to copy, and to multiply."""
        return max(self.traffic / 4.25e9, self.flops / 700e9)


def milliseconds(runs: list[Callable[[], Any]]) -> float:
    """The median of graph replays, several runs in each so that no launch counts."""
    all_of(runs)
    torch.cuda.synchronize()
    graph, took = captured(runs, 5), []
    for _ in range(12):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        took.append(start.elapsed_time(stop) / 5)
    return statistics.median(took[2:])


def step_calls() -> Iterator[Timed]:
    """The calls of a gpt2-124m step at 32×1024 in bfloat16, with the stream and gradients in float32."""
    B, T, C, H, F, V, L = 32, 1024, 768, 12, 3072, 50257, 12
    R, N = B * T, 124_439_808
    cuda = {name: import_module(f"tapeless.ops.{name}.cuda") for name in OPS}

    def narrow(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda").to(torch.bfloat16) * 0.05

    def wide(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda") * 0.05

    def moved(*tensors: torch.Tensor) -> float:
        return float(sum(t.numel() * t.itemsize for t in tensors))

    x, dx, tokens = wide(R, C), wide(R, C), torch.randint(0, V, (R,), device="cuda")
    weight, dweight = narrow(V, C), wide(V, C)
    yield Timed("embedding", 1, cuda["embedding"].forward(x, tokens, weight), moved(x, narrow(R, C)))
    touched = 8.0 * C * len(tokens.unique())
    into = frozenset({"dweight", "dbias", "dx", "dtable", "y"})
    runs = cuda["embedding"].backward(dweight, dx, tokens, add=frozenset({"dweight"}))
    yield Timed("embedding backward", 1, runs, moved(dx) + touched)
    table, dtable = narrow(T, C), wide(T, C)
    shaped = x.view(B, T, C)
    yield Timed("positions +=", 1, cuda["positions"].forward(shaped, table, add=frozenset({"y"})), 2 * moved(x))
    runs = cuda["positions"].backward(dtable, dx.view(B, T, C), add=frozenset({"dtable"}))
    yield Timed("positions backward", 1, runs, moved(dx))

    h, mean, rstd, dh = narrow(R, C), wide(R), wide(R).abs(), narrow(R, C)
    w, b, dw, db = narrow(C), narrow(C), wide(C), wide(C)
    runs = cuda["layernorm"].forward(h, mean, rstd, x, w, b, 1e-5)
    yield Timed("layernorm", 4 * L + 1, runs, moved(h, x))
    runs = cuda["layernorm"].backward(dx, dw, db, dh, x, w, mean, rstd, add=into)
    yield Timed("layernorm backward +=", 2 * L + 1, runs, moved(dx, dx, dh, x))
    runs = cuda["residual"].forward(x, x, h)
    yield Timed("residual", 2 * L, runs, moved(x, x, h))

    for name, k, n in (("qkv", C, 3 * C), ("proj", C, C), ("up", C, F), ("down", F, C)):
        y, into_x, matrix, bias = narrow(R, n), narrow(R, k), narrow(k, n), narrow(n)
        runs = cuda["linear"].forward(y, into_x, matrix, bias)
        yield Timed(f"linear {name}", L, runs, moved(y, into_x), 2.0 * R * k * n)
        dy = wide(R, n) if name in ("proj", "down") else y
        runs = cuda["linear"].backward(
            narrow(R, k), wide(k, n), wide(n), dy, into_x, matrix, add=frozenset({"dweight", "dbias"})
        )
        yield Timed(f"linear {name} backward +=", L, runs, moved(y, into_x), 4.0 * R * k * n)
    qkv, y, lse, dqkv = narrow(B, T, 3 * C), narrow(B, T, C), wide(B, H, T), narrow(B, T, 3 * C)
    q, k, v = qkv.split(C, 2)
    pairs = 2.0 * B * T * (T + 1) / 2 * C
    yield Timed("attention", L, cuda["attention"].forward(y, lse, q, k, v, None, True, 0), moved(qkv, y), 2 * pairs)
    all_of(cuda["attention"].forward(y, lse, q, k, v, None, True, 0))
    runs = cuda["attention"].backward(*dqkv.split(C, 2), h.view(B, T, C), q, k, v, y, lse, None, True, 0)
    yield Timed("attention backward", L, runs, moved(qkv, dqkv, y, y), 5 * pairs)
    up, act, dact = narrow(R, F), narrow(R, F), narrow(R, F)
    yield Timed("gelu", 2 * L, cuda["gelu"].forward(act, up), moved(act, up))
    yield Timed("gelu backward", L, cuda["gelu"].backward(dact, act, up), moved(dact, act, up))

    logits, loss, count = narrow(8192, V), wide(1), torch.full((1,), float(R), device="cuda", dtype=torch.float64)
    into_dweight = frozenset({"dweight"})
    runs = cuda["classifier"].backward(loss, dh, dweight, logits, h, weight, tokens, count, add=into_dweight)
    yield Timed("classifier", 1, runs, 4.0 * R * V, 6.0 * R * C * V)

    weights, m, v_, gradients, master = narrow(N), wide(N), wide(N).abs(), wide(N), wide(N)
    norm, scale, lr, limit, largest = (torch.ones(1, device="cuda", dtype=torch.float64) for _ in range(5))
    step, finite = (torch.ones(1, device="cuda", dtype=torch.int64) for _ in range(2))
    starts = (0, *range(N // 3 // 128 * 128, N - N // 20, N // 20 // 128 * 128))
    moved_by, norms = (torch.ones(len(starts), device="cuda", dtype=torch.float64) for _ in range(2))
    yield Timed("zero", 1, cuda["zero"].forward(gradients), moved(gradients))
    yield Timed("global norm", 1, cuda["global_norm"].forward(norm, norms, gradients, starts), moved(gradients))
    yield Timed("clip", 1, cuda["clip"].forward(scale, finite, loss, norm, limit, largest))
    written, read = (weights, m, v_, master, step, moved_by, norms), (gradients, scale, finite, lr)
    numbers = (0.9, 0.999, 1e-8, 0.1, ((0, N // 2 // 128 * 128), (N // 2 // 128 * 128 + 1024, N // 64 * 64)), starts)
    runs = cuda["adamw"].forward(*written, *read, *numbers)
    yield Timed("adamw", 1, runs, moved(weights, master, master, m, m, v_, v_, gradients))


def fused_calls() -> Iterator[tuple[Timed, list[str]]]:
    """Calls that could be bound as one, and those of the table that each would replace."""
    R, C, F, L = 32768, 768, 3072, 12
    norm, gelu = (import_module(f"tapeless.ops.{name}.cuda") for name in ("layernorm", "gelu"))

    def make(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return (torch.randn(shape, device="cuda") * 0.05).to(dtype)

    f, n = torch.float32, torch.bfloat16
    x, total, dx, mean, rstd = make(f, R, C), make(f, R, C), make(f, R, C), make(f, R), make(f, R).abs()
    y, branch, w, b, dw, db, below = (
        make(n, R, C),
        make(n, R, C),
        make(n, C),
        make(n, C),
        *(make(f, C) for _ in range(3)),
    )
    runs = norm.forward(y, mean, rstd, x, w, b, 1e-5, total=total, branch=branch)
    yield Timed("residual + layernorm", 2 * L, runs, 12.0 * R * C), ["residual", "layernorm"]
    add = frozenset({"dx", "dweight", "dbias", "dbelow"})
    runs = norm.backward(dx, dw, db, y, x, w, mean, rstd, add=add, copy=branch, dbelow=below)
    traffic = 16.0 * R * C
    yield Timed("layernorm backward + sums and cast", 2 * L, runs, traffic), ["layernorm backward +=", "sums and cast"]
    up, act, dact, dup, dbias = (*(make(n, R, F) for _ in range(4)), make(f, F))
    runs = gelu.backward(dup, dact, up, dbias=dbias, add=frozenset({"dbias"}))
    yield Timed("gelu backward + sums", L, runs, 6.0 * R * F), ["gelu backward", "sums F"]
    runs = gelu.backward(dup, dact, up, y=act, dbias=dbias, add=frozenset({"dbias"}))
    yield Timed("gelu backward + sums + gelu", L, runs, 8.0 * R * F), ["gelu backward", "sums F", "gelu"]


def sums_calls() -> Iterator[Timed]:
    """The column sums inside the backward of linear, which fusions would take elsewhere."""
    from tapeless.kernels.cuda.sums import column_sums

    R, C, F, L = 32768, 768, 3072, 12
    wide, copy = torch.randn(R, C, device="cuda"), torch.empty(R, C, device="cuda", dtype=torch.bfloat16)
    total, narrow = torch.zeros(F, device="cuda"), torch.randn(R, F, device="cuda").to(torch.bfloat16)
    yield Timed("sums and cast", 2 * L, column_sums(total[:C], wide, True, copy=copy), 6.0 * R * C)
    yield Timed("sums C", 2 * L, column_sums(total[:C], copy, True), 2.0 * R * C)
    yield Timed("sums 3C", L, column_sums(total[: 3 * C], narrow[:, : 3 * C].contiguous(), True), 6.0 * R * C)
    yield Timed("sums F", L, column_sums(total, narrow, True), 2.0 * R * F)


def time() -> None:
    print(f"{'call':36}{'ms':>8}{'floor':>8}{'ratio':>7}{'a step':>8}{'ms':>8}{'floor':>8}")
    took: dict[str, float] = {}
    whole = least = 0.0

    def line(each: Timed) -> float:
        ms, floor = milliseconds(each.runs), each.floor()
        took[each.what] = ms
        ratio = f"{ms / floor:7.2f}" if floor else " " * 7
        sums = f"{each.number:8}{ms * each.number:8.2f}{floor * each.number:8.2f}"
        print(f"{each.what:36}{ms:8.3f}{floor:8.3f}{ratio}{sums}", flush=True)
        return ms * each.number

    with exact():
        for each in step_calls():
            whole += line(each)
            least += each.floor() * each.number
        print(f"{'all calls of a step':36}{'':31}{whole:8.2f}{least:8.2f}\n\nwithin linear's backward, and fusions")
        for each in sums_calls():
            line(each)
        for each, parts in fused_calls():
            saved = sum(took[part] for part in parts) * each.number - line(each)
            print(f"{'':36}instead of {' + '.join(parts)}: saves {saved:.2f} ms a step", flush=True)


PARTS: dict[str, Callable[..., None]] = {"ops": ops, "time": time}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: python benchmarks/cuda.py {'|'.join(PARTS)}")
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    PARTS[sys.argv[1]](*sys.argv[2:])
