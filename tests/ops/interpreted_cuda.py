"""The kernels of the CUDA backend beside the reference, in float32, run by Triton's interpreter on the CPU.

The interpreter must be chosen before Triton is imported, so `test_cuda` runs this in a process of its own:
TRITON_INTERPRET=1 python -m tests.ops.interpreted_cuda [PART PARTS]
Without a part, it takes the fewest cases that have everything once, and says which blocks of a kernel have not run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import groupby
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch

from tapeless.check.tolerances import LOCKSTEP
from tapeless.kernels.cuda import sections, sums
from tapeless.kernels.cuda.scratch import handed, recorded
from tapeless.ops import OPS
from tapeless.ops.attention import cuda_backward
from tapeless.ops.contract import NONE, Array, Spec
from tests.ops.kernel_blocks import all_blocks, noted

CUDA = {name: import_module(f"tapeless.ops.{name}.cuda") for name in OPS}
# Small blocks, so that small shapes are cut into several.
for module, constants in (
    (sums, {"PROGRAMS": 4, "ROWS": 8, "COLUMNS": 32, "PARTS": 2}),
    (sections, {"BLOCK": 512, "PIECES": 4}),
    (CUDA["layernorm"], {"PROGRAMS": 3}),
    (CUDA["rmsnorm"], {"PROGRAMS": 3}),
    (CUDA["embedding"], {"ROWS": 8, "COLUMNS": 128}),
    (CUDA["classifier"], {"WORDS": 128, "LOSSES": 4, "PROGRAMS": 2}),
    (CUDA["gelu"], {"PROGRAMS": 4, "ROWS": 8, "COLUMNS": 32}),
    (CUDA["unembed"], {"HELD": 3000}),
    (CUDA["adapt"], {"TYPES": (torch.float32,), "LEAST": 2, "ROWS": 16, "COLUMNS": 32, "PROGRAMS": 12, "ADDED": 64}),
    (CUDA["attention"], {"TOGETHER": 4}),
    (CUDA["muon"], {"ELEMENTS": 64, "PARTS": 2, "BLOCK": 64}),
    (cuda_backward, {"PROGRAMS": 6, "PLACES": 32}),
):
    for constant, value in constants.items():
        assert hasattr(module, constant)
        setattr(module, constant, value)

# Where kernels cut blocks: one row, rows and columns just beyond a block, a token that goes on through several
# programs, a vocabulary that is odd and large enough to be split, and one row of it.
SHAPES: dict[str, list[dict[str, int]]] = {
    "embedding": [{"R": 7, "C": 3, "V": 4}, {"R": 67, "C": 130, "V": 3}, {"R": 70, "C": 5, "V": 90}],
    "positions": [{"B": 3, "T": 5, "C": 7, "P": 9}, {"B": 1, "T": 1, "C": 1, "P": 1}],
    "positions_at": [{"B": 3, "T": 5, "C": 7, "P": 9}],
    "linear": [{"R": 5, "C": 3, "F": 4}, {"R": 33, "C": 7, "F": 129}, {"R": 1, "C": 40, "F": 1}],
    "layernorm": [{"R": 4, "C": 5}, {"R": 1, "C": 3}, {"R": 10, "C": 17}],
    "attention": [
        {"B": 2, "T": 3, "S": 5, "H": 2, "D": 3},
        {"B": 1, "T": 65, "S": 65, "H": 1, "D": 16},
        {"B": 1, "T": 33, "S": 70, "H": 2, "D": 5},
        {"B": 2, "T": 64, "S": 96, "H": 1, "D": 20},
        {"B": 1, "T": 1, "S": 40, "H": 3, "D": 8},
        {"B": 1, "T": 40, "S": 33, "H": 1, "D": 16},
        {"B": 1, "T": 40, "S": 40, "H": 3, "D": 4},
        {"B": 2, "T": 40, "S": 70, "H": 4, "D": 4, "G": 2},
        {"B": 1, "T": 70, "S": 70, "H": 3, "D": 3, "G": 1},
    ],
    "rmsnorm": [{"R": 4, "H": 1, "D": 5}, {"R": 1, "H": 3, "D": 3}, {"R": 10, "H": 2, "D": 17}],
    "angles": [{"B": 2, "S": 5, "A": 3}, {"B": 1, "S": 1, "A": 8}],
    "rope": [{"B": 2, "T": 3, "S": 5, "H": 2, "A": 3, "D": 6}, {"B": 1, "T": 4, "S": 4, "H": 1, "A": 8, "D": 16}],
    "remember": [{"B": 2, "T": 4, "H": 3, "D": 5, "P": 9}],
    "cached_attention": [{"B": 2, "T": 4, "H": 3, "D": 5, "P": 40}, {"B": 2, "T": 1, "H": 4, "D": 16, "P": 70, "G": 2}],
    "gelu": [{"R": 4, "F": 5}, {"R": 41, "F": 101}],
    "adapt": [
        {"R": 5, "M": 2, "F": 4},
        {"R": 70, "M": 3, "F": 129},
        {"R": 1, "M": 17, "F": 1},
        {"R": 3, "M": 65, "F": 4},
    ],
    "swiglu": [{"R": 4, "F": 5}, {"R": 41, "F": 101}],
    "relu": [{"R": 4, "F": 5}, {"R": 41, "F": 101}],
    "tanh": [{"R": 4, "F": 5}, {"R": 41, "F": 101}],
    "residual": [{"R": 4, "C": 5}, {"R": 41, "C": 101}],
    "count_draws": [{}],
    "dropout": [{"R": 4, "C": 5}, {"R": 41, "C": 101}],
    "last_position": [{"B": 3, "T": 4, "C": 5}, {"B": 2, "T": 1, "C": 3}],
    "classifier": [
        {"R": 7, "C": 3, "V": 5, "K": 3},
        {"R": 9, "C": 6, "V": 1031, "K": 4},
        {"R": 3, "C": 6, "V": 1031, "K": 1},
        {"R": 30, "C": 4, "V": 300, "K": 30},
    ],
    "squared_error": [{"R": 5, "C": 3, "V": 4}, {"R": 40, "C": 33, "V": 7}],
    "unembed": [{"R": 4, "C": 3, "V": 5}, {"R": 3, "C": 6, "V": 1031}],
    "proximity": [{"R": 4, "C": 3, "V": 5}, {"R": 35, "C": 33, "V": 129}],
    "zero": [{"N": 7}],
    "global_norm": [{"N": 9, "L": 3}, {"N": 2600, "L": 3}, {"N": 4096, "L": 3}],
    "clip": [{}],
    "sgd": [{"N": 9, "L": 3}, {"N": 1025, "L": 3}],
    "momentum": [{"N": 9, "L": 3}, {"N": 1025, "L": 3}],
    "adamw": [{"N": 9, "L": 3}, {"N": 2600, "L": 3}, {"N": 4096, "L": 3}],
    "muon": [
        {"N": 34, "U": 7, "L": 3},
        {"N": 700, "U": 208, "L": 4},
        {"N": 12, "U": 1, "L": 1},
        {"N": 70, "U": 70, "L": 2},
    ],
}
# Where matrices lie in Muon's memory. Side by side, and taller than wide; longer than a program's columns and with more
# rows than programs whose sums are added at once, beside one that is narrower; nothing left to AdamW; and no matrix.
MATRICES: dict[int, dict[str, Any]] = {
    34: {"matrices": ((2, 3, (2, 4)), (22, 3, (1,)), (25, 3, (2,))), "decayed": ((1, 20),), "sections": (0, 2, 22)},
    700: {
        "matrices": ((31, 2, (70, 3)), (240, 60, (5,)), (617, 1, (1,)), (631, 5, (9,))),
        "decayed": ((31, 177), (240, 617), (620, 630)),
        "sections": (0, 31, 177, 617),
    },
    12: {"matrices": ((0, 3, (4,)),), "decayed": (), "sections": (0,)},
    70: {"matrices": (), "decayed": ((0, 66),), "sections": (0, 5)},
}
FORMS: dict[str, list[dict[str, Any]]] = {  # the scalars of an op, and the inputs that decide something
    "attention": [
        {"causal": causal, "window": window} for causal, window in ((True, 0), (False, 0), (True, 2), (True, 37))
    ],
    "cached_attention": [{"window": 0}, {"window": 33}],
    "adapt": [{"scale": 0.7}],
    "layernorm": [{"eps": 1e-2}],
    "dropout": [
        {"rate": 0.4, "site": 1, "seed": (7 << 32) + 3, "draws": (2 << 32) + 5},
        {"rate": 0.9, "site": 1 << 31, "seed": (1 << 63) - 1, "draws": 1 << 31},
        {"rate": 0.0, "site": 0, "seed": 0, "draws": 1},
    ],
    "rmsnorm": [{"eps": 1e-2}],
    "clip": [{"limit": 0.2}, {"limit": np.inf}, {"norm": np.nan}, {"loss": np.inf}, {"largest": 0.1}],
    "sgd": [{"finite": 1}, {"finite": 0}],
    "momentum": [{"momentum": 0.9, "finite": 1}, {"momentum": 0.9, "finite": 0}],
    "adamw": [
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.1, "decayed": spans, "finite": finite, "step": step}
        for spans, finite, step in (((), 1, 0), (((1, 2), (4, 511), (512, 2050)), 1, 7), (((0, 4096),), 0, 0))
    ],
    "muon": [
        {"momentum": 0.9, "beta1": 0.8, "beta2": 0.99, "eps": 1e-8, "decay": 0.1, **arrays}
        for arrays in ({"finite": 1, "step": 7}, {"finite": 0, "step": 0}, {"finite": 1, "m": 0, "gradients": 0})
    ],
}
POSITIVE = ("count", "scale", "lr", "limit", "largest", "norm", "v", "class_weights")
PARTS = {
    "gate": 3,
    "up": 4,
    "dgate": 3,
    "dup": 4,
    "q": 3,
    "k": 4,
    "v": 5,
    "dq": 4,
    "dk": 5,
    "dv": 3,
}  # columns of products so many times as wide


class Case(NamedTuple):
    op: str
    direction: str
    dims: dict[str, int]
    form: dict[str, Any]
    left_out: frozenset[str]
    add: frozenset[str]


def cases() -> Iterator[Case]:
    """Each op in each direction and form, with nothing left out and with each thing that may be, writing and adding."""
    for name, op in OPS.items():
        for direction in ("forward", "backward"):
            if getattr(op.SPEC, direction) is None:
                continue
            signature = op.SPEC.signature(direction)
            left_out = [NONE, *(frozenset({each, *signature.needed_by.get(each, ())}) for each in signature.optional)]
            for dims in SHAPES[name]:
                if "H" in dims:
                    groups = dims.get("G", dims["H"])
                    dims = {**dims, "C": dims["H"] * dims["D"], "E": groups * dims["D"], "G": groups}
                for form in FORMS.get(name, [{}]):
                    if form.get("causal") and dims["T"] > dims["S"]:
                        continue
                    for out in left_out:
                        if name == "attention" and limited(form, out) != (dims["G"] < dims["H"]):
                            continue  # the one shapes are tried with every limit, the others without: it takes long
                        for add in {NONE, frozenset(signature.adds) - out}:
                            yield Case(name, direction, dims, form, out, add)


def limited(form: dict[str, Any], left_out: frozenset[str]) -> bool:
    """Whether a window or the beginning of a document hides keys from a query."""
    return form["window"] > 0 or "starts" not in left_out


def judge(case: Case) -> Iterator[str]:
    """What is wrong with the kernels in this case."""
    spec, rng = OPS[case.op].SPEC, np.random.default_rng(0)
    signature, (arrays, scalars) = spec.signature(case.direction), inputs(case, rng)
    arguments = {name: None if name in case.left_out else arrays[name] for name in signature.arguments}
    kept = case.add | {*signature.updates} | {*signature.reads}
    true = {name: None if array is None else precise(array) for name, array in arguments.items()}
    ours = {
        name: None if array is None else tensor(spec, name, array if name in kept else unset(array))
        for name, array in arguments.items()
    }
    options: dict[str, Any] = {"add": case.add} if case.add else {}
    getattr(OPS[case.op], case.direction)(*true.values(), *scalars, **options)
    run_all(bound(getattr(CUDA[case.op], case.direction), list(ours.values()), scalars, options))
    for name in signature.writes:
        if name != "logits" and name not in case.left_out:
            yield from difference(f"{case}: {name}", ours[name], true[name], case.dims)


def inputs(case: Case, rng: np.random.Generator) -> tuple[dict[str, Array], list[Any]]:
    """Every argument by name, what the forward saved among them, and the scalars."""
    op, dims, scalars = OPS[case.op], case.dims, dict(case.form)
    spec, signature = op.SPEC, op.SPEC.signature(case.direction)
    if case.op == "muon":
        scalars |= MATRICES[dims["N"]]
    elif "L" in dims:
        scalars["sections"] = (0, dims["N"] // 3 // 16 * 16 or 2, dims["N"] // 2 // 16 * 16 or 6)
    if case.op == "adamw":
        size = dims["N"]
        scalars["decayed"] = tuple((a, min(b, size)) for a, b in scalars["decayed"] if a < size)
    arrays: dict[str, Array] = {}
    for name in (*spec.forward.arguments, *signature.arguments):
        if name not in arrays:
            arrays[name] = values(spec, name, dims, rng)
            if name in case.form:
                arrays[name][...] = case.form[name]
    if case.direction == "backward" and not spec.fused:
        saved = {name: precise(arrays[name]) for name in spec.forward.arguments}
        op.forward(*saved.values(), *(scalars[s] for s in spec.forward.scalars))
        arrays |= {name: saved[name].astype(arrays[name].dtype) for name in spec.forward.writes}
    return arrays, [scalars[s] for s in signature.scalars]


def values(spec: Spec, name: str, dims: dict[str, int], rng: np.random.Generator) -> Array:
    shape = tuple(int(letter) if letter.isdigit() else dims[letter] for letter in spec.letters(name))
    dtype = spec.dtype(name, "float32")
    if dtype == "int64":
        words, free = dims.get("V", 1), dims.get("P", 1) - dims.get("T", 1) + 1
        low, high = {"tokens": (0, words), "targets": (-1, words), "position": (0, free)}.get(name, (1, 50))
        if name == "starts":  # of three documents in the first row, and anything in the others
            starts = rng.integers(0, dims["S"] + 9, shape)
            places, middle, end = np.arange(dims["T"]) + dims["S"] - dims["T"], dims["S"] // 2, dims["S"] - 9
            starts[0] = np.where(places < middle, 0, np.where(places < end, middle, end))
            return starts
        return rng.integers(low, high, shape)
    array = rng.choice([-1.0, 1.0], shape) * rng.uniform(0.1, 1.5, shape)
    return (np.abs(array) if name in POSITIVE and array.ndim == 1 else array).astype(dtype)


def unset(array: Array) -> Array:
    """What is read before it is written, or never written, shows."""
    return np.full_like(array, np.nan if array.dtype.kind == "f" else -99)


def precise(array: Array) -> Array:
    return array.astype(np.float64 if array.dtype.kind == "f" else array.dtype)


def tensor(spec: Spec, name: str, array: Array) -> torch.Tensor:
    """Queries, keys and values are columns in a wider row, with NaN beside them."""
    if name not in PARTS or spec.letters(name)[-1] not in ("C", "E", "F"):
        return torch.from_numpy(array.copy())
    width = array.shape[-1]
    wide = np.full((*array.shape[:-1], PARTS[name] * width), np.nan, array.dtype)
    wide[..., width : 2 * width] = array
    return torch.from_numpy(wide)[..., width : 2 * width]


def bound(
    binder: Callable[..., list[Callable[[], object]]], tensors: list[Any], scalars: list[Any], options: dict[str, Any]
) -> list[Callable[[], object]]:
    """As an engine binds: first without memory, to learn how much scratch is needed, then with it. It holds NaN."""
    without = [
        None if t is None else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors
    ]
    with recorded() as asked:
        binder(*without, *scalars, **options)
    arrays = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in asked]
    for array in arrays:
        array.view(torch.uint8).fill_(255)
    with handed(arrays):
        return binder(*tensors, *scalars, **options)


def run_all(runs: Iterable[Callable[[], object]]) -> None:
    for run in runs:
        run()


def difference(what: str, found: Any, true: Any, dims: dict[str, int]) -> Iterator[str]:
    error = np.abs(found.to(torch.float64).numpy() - true).max() / (np.abs(true).max() or 1.0)
    allowed = 4 * LOCKSTEP["float32"] * sqrt(max(dims.get(letter, 1) for letter in "RCFSTVBK"))
    if not error <= allowed:
        yield f"{what} is off by {error:.1e}, allowed {allowed:.1e}"


def fusions() -> Iterator[str]:
    """What a kernel also does for a neighbour, beside the calls it stands for."""
    rng, f = np.random.default_rng(0), np.float32

    def random(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(f))

    def same(what: str, *pairs: tuple[torch.Tensor, Any]) -> Iterator[str]:
        for found, true in pairs:
            yield from difference(what, found, true.numpy().astype(np.float64), {"R": 11})

    norm, gelu = CUDA["layernorm"], CUDA["gelu"]
    x, branch, w, b, dy, dx, dw, db = (
        *(random(11, 5) for _ in range(2)),
        *(random(5) for _ in range(2)),
        *(random(*shape) for shape in ((11, 5), (11, 5), (5,), (5,))),
    )
    made, alone = ([random(11, 5), random(11), random(11)] for _ in range(2))
    total = random(11, 5)
    run_all(norm.forward(*made, x, w, b, 1e-5, total=total, branch=branch))
    run_all(norm.forward(*alone, x + branch, w, b, 1e-5))
    yield from same("residual and norm", (total, x + branch), *zip(made, alone, strict=True))
    below, copy, before = random(5), random(11, 5), dx.clone()
    start = below.clone()
    add = frozenset({"dx", "dbelow"})
    run_all(norm.backward(dx, dw, db, dy, total, w, *made[1:], add=add, copy=copy, dbelow=below))
    results = [before, dw.clone(), db.clone()]
    run_all(norm.backward(*results, dy, total, w, *made[1:], add=frozenset({"dx"})))
    pairs = zip((dx, dw, db), results, strict=True)
    yield from same("norm and sums", *pairs, (copy, dx), (below, start + dx.sum(0)))
    norm = CUDA["rmsnorm"]
    made, alone = ([random(11, 5), random(11, 1)] for _ in range(2))
    run_all(norm.forward(*made, x, w, 1e-5, total=total, branch=branch))
    run_all(norm.forward(*alone, x + branch, w, 1e-5))
    yield from same("residual and RMSNorm", (total, x + branch), *zip(made, alone, strict=True))
    before, start = dx.clone(), below.clone()
    run_all(norm.backward(dx, dw, dy, total, w, made[1], add=add, copy=copy, dbelow=below))
    results = [before, dw.clone()]
    run_all(norm.backward(*results, dy, total, w, made[1], add=frozenset({"dx"})))
    yield from same("RMSNorm and sums", (dx, results[0]), (dw, results[1]), (copy, dx), (below, start + dx.sum(0)))
    y, gate, up, slopes, plain = random(11, 5), x, branch, [random(11, 5) for _ in range(4)], random(11, 5)
    run_all(CUDA["swiglu"].backward(*slopes[:2], dy, gate, up, y=y))
    run_all([*CUDA["swiglu"].backward(*slopes[2:], dy, gate, up), *CUDA["swiglu"].forward(plain, gate, up)])
    yield from same("swiglu and again", (slopes[0], slopes[2]), (slopes[1], slopes[3]), (y, plain))
    y, dbias, plain = random(11, 5), random(5), [random(11, 5), random(11, 5)]
    run_all(gelu.backward(dx, dy, x, y=y, dbias=dbias))
    run_all([*gelu.backward(plain[0], dy, x), *gelu.forward(plain[1], x)])
    yield from same("gelu and sums", (dx, plain[0]), (y, plain[1]), (dbias, plain[0].sum(0)))
    run_all([*gelu.backward(dx, dy, x, y=y), *gelu.backward(slopes[0], dy, x, dbias=dbias)])
    yield from same("gelu again", (dx, plain[0]), (slopes[0], plain[0]), (y, plain[1]), (dbias, plain[0].sum(0)))
    rope, cos, sin = CUDA["rope"], random(1, 3, 2), random(1, 3, 2)
    for turn in (rope.forward, rope.backward):
        q, k, *made = (random(1, 3, width) for width in (8, 4, 8, 4, 8, 4))
        run_all(turn(made[0], q, cos, sin, other=(made[1], k)))
        run_all([*turn(made[2], q, cos, sin), *turn(made[3], k, cos, sin)])
        yield from same("queries and keys turned", (made[0], made[2]), (made[1], made[3]))


def far_from_zero() -> Iterator[str]:
    """Rows whose mean is a thousand times their spread: its rounding must not show."""
    rng, norm = np.random.default_rng(0), OPS["layernorm"]
    x, dy = (1000 + rng.normal(size=(9, 17))).astype(np.float32), rng.normal(size=(9, 17)).astype(np.float32)
    w, b = (rng.normal(size=17).astype(np.float32) for _ in range(2))
    true, found = [np.empty((9, 17)), np.empty(9), np.empty(9)], [torch.empty(9, 17), torch.empty(9), torch.empty(9)]
    norm.forward(*true, *(precise(array) for array in (x, w, b)), 1e-5)
    run_all(CUDA["layernorm"].forward(*found, *map(torch.from_numpy, (x, w, b)), 1e-5))
    yield from difference("norm far from zero", found[0], true[0], {"C": 17})
    statistics = [array.astype(np.float32) for array in true[1:]]
    slopes = [np.empty((9, 17)), np.empty(17), np.empty(17)]
    norm.backward(*slopes, *map(precise, (dy, x, w)), *true[1:])
    found = [torch.empty(9, 17), torch.empty(17), torch.empty(17)]
    run_all(CUDA["layernorm"].backward(*found, *map(torch.from_numpy, (dy, x, w, *statistics))))
    for mine, theirs in zip(found, slopes, strict=True):
        yield from difference("norm's backward far from zero", mine, theirs, {"C": 17})


def narrow() -> Iterator[str]:
    """What only a model in bfloat16 runs. Attention here in float16: the interpreter multiplies the bits of bfloat16 as
    if they were whole numbers."""
    rng, bfloat16 = np.random.default_rng(0), torch.bfloat16
    allowed = LOCKSTEP["bfloat16"] / 8  # as float16 has three digits more

    def random(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape)).to(torch.float16)

    def near(what: str, found: torch.Tensor, true: Array) -> Iterator[str]:
        error = np.abs(found.to(torch.float64).numpy() - true).max() / np.abs(true).max()
        if not error <= allowed:
            yield f"{what} in float16 is off by {error:.1e}, allowed {allowed:.1e}"

    attention = CUDA["attention"]
    for causal, share in ((True, 1), (False, 2)):
        q, dy, y, dq = (random(1, 40, 8) for _ in range(4))
        k, v, dk, dv = (random(1, 40, 8 // share) for _ in range(4))
        lse, options = torch.empty(1, 2, 40), (None, causal, 0)
        run_all(bound(attention.forward, [y, lse, q, k, v], list(options), {}))
        inputs = [each.to(torch.float64).numpy() for each in (q, k, v)]
        true = [np.empty((1, 40, 8)), np.empty((1, 2, 40))]
        OPS["attention"].forward(*true, *inputs, *options)
        yield from near("attention", y, true[0])
        run_all(bound(attention.backward, [dq, dk, dv, dy, q, k, v, y, lse], list(options), {}))
        slopes = [np.empty(each.shape) for each in (dq, dk, dv)]
        OPS["attention"].backward(*slopes, dy.to(torch.float64).numpy(), *inputs, *true, *options)
        for name, found, slope in zip(("dq", "dk", "dv"), (dq, dk, dv), slopes, strict=True):
            yield from near(f"attention's {name}", found, slope)
    x, weight, bias, y = (random(*shape).float() for shape in ((5, 6), (6, 7), (7,), (5, 7)))
    bias = bias.to(bfloat16)
    run_all(CUDA["linear"].forward(y, x, weight, bias))
    yield from difference("a bias in bfloat16", y, precise((x @ weight + bias.float()).numpy()), {"C": 6})
    total, copy = torch.empty(6), torch.empty(5, 6, dtype=bfloat16)
    run_all(sums.column_sums(total, x, False, copy))
    yield from difference("sums beside a copy", total, precise(x.sum(0).numpy()), {"R": 5})
    same = torch.allclose(copy.float(), x, rtol=2.0**-7, atol=0)  # the interpreter does not round to the nearest
    yield from [] if same else ["the copy in bfloat16 is another"]


def few(given: Iterable[Case]) -> Iterator[Case]:
    """Of each op and direction: each shape, each form, each thing left out and each way to add, once at least; of an
    update each shape in each form."""
    for _, group in groupby(given, key=lambda case: (case.op, case.direction)):
        waiting = [(case, _values(case)) for case in group]
        left = set().union(*(values for _, values in waiting))
        while left:
            case, values = max(waiting, key=lambda pair: len(pair[1] & left))
            left -= values
            yield case


def _values(case: Case) -> set[tuple[str, str]]:
    varied: dict[str, Any] = {"left out": sorted(case.left_out), "add": sorted(case.add)}
    # An update that changes nothing would hide what is wrong with a shape.
    varied |= {"both": (case.dims, case.form)} if "L" in case.dims else {"dims": case.dims, "form": case.form}
    return {(name, str(value)) for name, value in varied.items()}


def main(part: int = 0, parts: int = 0) -> int:
    ran = noted()
    if parts:  # by turns within an op and a direction, so that every part has some of each
        turns = groupby(cases(), key=lambda case: (case.op, case.direction))
        mine = [case for _, group in turns for case in list(group)[part::parts]]
    else:
        mine = list(few(cases()))
    with np.errstate(all="ignore"):  # the interpreter computes what a mask then hides
        wrong = [found for case in mine for found in judge(case)]
        wrong += [*fusions(), *far_from_zero(), *narrow()] if part == 0 else []
    wrong += [] if parts else [f"never ran: {block}" for block in sorted(all_blocks() - ran)]
    print(*wrong, f"{len(mine)} cases, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
