"""The kernels of the CUDA backend beside the reference, in float32, run by Triton's interpreter on the CPU.

The interpreter must be chosen before Triton is imported, so `test_cuda` runs this in a process of its own:
TRITON_INTERPRET=1 python -m tests.ops.interpreted_cuda PART PARTS
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from math import sqrt
from typing import Any

import numpy as np

from tapeless.check.tolerances import LOCKSTEP
from tapeless.ops import OPS
from tapeless.ops.contract import Array

INTEGERS = ("tokens", "targets", "step", "position")
SCALARS = ("count", "scale", "lr", "limit", "norm")
POSITIVE = ("count", "scale", "lr", "limit", "norm", "v", "class_weights")
# Where kernels cut blocks: one row, one channel, rows and columns just beyond a block, several programs, a vocabulary
# that is odd and large enough to be split.
SHAPES: dict[str, list[dict[str, int]]] = {
    "embedding": [{"R": 7, "C": 3, "V": 4}, {"R": 131, "C": 257, "V": 3}, {"R": 70, "C": 5, "V": 90}],
    "positions": [{"B": 3, "T": 5, "C": 7, "P": 9}, {"B": 1, "T": 1, "C": 1, "P": 1}],
    "positions_at": [{"B": 3, "T": 5, "C": 7, "P": 9}],
    "linear": [{"R": 5, "C": 3, "F": 4}, {"R": 33, "C": 7, "F": 129}, {"R": 1, "C": 40, "F": 1}],
    "layernorm": [{"R": 4, "C": 5}, {"R": 1, "C": 3}, {"R": 1070, "C": 17}],
    "attention": [
        {"B": 2, "T": 3, "S": 5, "H": 2, "D": 3},
        {"B": 1, "T": 65, "S": 65, "H": 1, "D": 16},
        {"B": 1, "T": 33, "S": 70, "H": 2, "D": 5},
        {"B": 2, "T": 64, "S": 96, "H": 1, "D": 20},
        {"B": 1, "T": 1, "S": 40, "H": 3, "D": 8},
    ],
    "remember": [{"B": 2, "T": 4, "H": 3, "D": 5, "P": 9}],
    "cached_attention": [{"B": 2, "T": 4, "H": 3, "D": 5, "P": 40}, {"B": 2, "T": 1, "H": 2, "D": 16, "P": 70}],
    "gelu": [{"R": 4, "F": 5}, {"R": 41, "F": 101}],
    "relu": [{"R": 4, "F": 5}, {"R": 41, "F": 101}],
    "tanh": [{"R": 4, "F": 5}, {"R": 41, "F": 101}],
    "residual": [{"R": 4, "C": 5}, {"R": 41, "C": 101}],
    "last_position": [{"B": 3, "T": 4, "C": 5}, {"B": 2, "T": 1, "C": 3}],
    "classifier": [
        {"R": 7, "C": 3, "V": 5, "K": 3},
        {"R": 9, "C": 6, "V": 1031, "K": 4},
        {"R": 3, "C": 6, "V": 1031, "K": 1},
        {"R": 130, "C": 4, "V": 20, "K": 130},
    ],
    "squared_error": [{"R": 5, "C": 3, "V": 4}, {"R": 40, "C": 33, "V": 7}],
    "unembed": [{"R": 4, "C": 3, "V": 5}, {"R": 3, "C": 6, "V": 1031}],
    "proximity": [{"R": 4, "C": 3, "V": 5}, {"R": 35, "C": 33, "V": 129}],
    "zero": [{"N": 7}],
    "global_norm": [{"N": 9}, {"N": 5000}],
    "clip": [{}],
    "sgd": [{"N": 9}, {"N": 4097}],
    "momentum": [{"N": 9}, {"N": 4097}],
    "adamw": [{"N": 9}, {"N": 6000}],
}
TWICE = {  # the scalars of an op, in every form that it has
    "attention": [{"causal": True}, {"causal": False}],
    "layernorm": [{"eps": 1e-2}],
    "momentum": [{"momentum": 0.9}],
    "adamw": [
        {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.1, "decayed": spans}
        for spans in ((), ((2, 5),), ((0, 9),), ((1, 2), (4, 2047), (2048, 2050), (4000, 6000)))
    ],
}
PARTS = {"q": 3, "k": 4, "v": 5, "dq": 4, "dk": 5, "dv": 3}  # columns of products so many times as wide

Case = tuple[str, str, dict[str, int], dict[str, Any], frozenset[str], frozenset[str]]


def cases() -> Iterator[Case]:
    """(op, direction, dimensions, scalars, what is left out, what is added to): each once, and all at once."""
    for name, op in OPS.items():
        for direction in ("forward", "backward"):
            if getattr(op.SPEC, direction) is None:
                continue
            signature = op.SPEC.signature(direction)
            left_out = [frozenset(), *(frozenset({each}) for each in signature.optional)]
            added = [frozenset(), *([frozenset(signature.adds)] if signature.adds else [])]
            for dims in SHAPES[name]:
                for scalars in TWICE.get(name, [{}]):
                    if name == "attention" and scalars["causal"] and dims["T"] > dims["S"]:
                        continue
                    for out in left_out:
                        for add in added:
                            yield name, direction, dims, scalars, out, add - out


def judge(case: Case) -> str | None:
    """What is wrong with the kernels in this case."""
    import torch

    name, direction, dims, scalars, out, add = case
    op, rng = OPS[name], np.random.default_rng(0)
    dims = {**dims, "C": dims["H"] * dims["D"]} if "H" in dims else dims
    made: dict[str, Array] = {}
    forward, signature = op.SPEC.forward, op.SPEC.signature(direction)
    for argument in (*forward.arguments, *signature.arguments):
        if argument not in made:
            made[argument] = values(op.SPEC, argument, dims, rng)
    if "decayed" in scalars:
        spans = tuple((a, min(b, dims["N"])) for a, b in scalars["decayed"] if a < dims["N"])
        scalars = {**scalars, "decayed": spans}
    if direction == "backward" and not op.SPEC.fused:  # what the forward saved
        saved = {a: made[a].copy() for a in forward.arguments}
        op.forward(*saved.values(), *(scalars[s] for s in forward.scalars))
        made |= {a: saved[a].astype(np.float32) if a not in SCALARS else saved[a] for a in forward.writes}
    arguments = [None if a in out else made[a] for a in signature.arguments]
    true = [None if a is None else a.astype(np.float64 if a.dtype == np.float32 else a.dtype) for a in arguments]
    ours = []
    for argument, array in zip(signature.arguments, arguments, strict=True):
        fresh = argument in signature.writes and argument not in add | set(signature.updates)
        ours.append(None if array is None else tensor(argument, array, op.SPEC.letters(argument), fresh))
    extra = {"add": add} if add else {}
    numbers = [scalars[s] for s in signature.scalars]
    getattr(op, direction)(*true, *numbers, **extra)
    for run in getattr(import_module(f"tapeless.ops.{name}.cuda"), direction)(*ours, *numbers, **extra):
        run()
    for argument, mine, theirs in zip(signature.arguments, ours, true, strict=True):
        if mine is None or argument not in signature.writes or argument == "logits":
            continue
        found = mine.to(torch.float64).numpy()
        error = np.abs(found - theirs).max() / (np.abs(theirs).max() or 1.0)
        allowed = 4 * LOCKSTEP["float32"] * sqrt(max(dims.get(letter, 1) for letter in "RCFSTVBK"))
        if not error <= allowed:
            return f"{name}.{direction} {dims} {scalars} without {set(out)}, adding to {set(add)}: {argument} is off by {error:.1e}, allowed {allowed:.1e}"
    return None


def values(spec, argument, dims, rng) -> Array:
    shape = tuple(int(letter) if letter.isdigit() else dims[letter] for letter in spec.letters(argument))
    limits = {"tokens": (0, dims.get("V", 1)), "targets": (-1, dims.get("V", 1)), "step": (1, 50)}
    limits["position"] = (0, dims.get("P", 1) - dims.get("T", 1) + 1)
    if argument in INTEGERS:
        return rng.integers(*limits[argument], shape)
    array = rng.choice([-1.0, 1.0], shape) * rng.uniform(0.1, 1.5, shape)
    array = np.abs(array) if argument in POSITIVE and spec.letters(argument)[-1] != "C" else array
    return array if argument in SCALARS else array.astype(np.float32)


def tensor(argument, array, letters, fresh):
    """NaN where it is to be written. Queries, keys and values are columns in a wider row with NaN beside them."""
    import torch

    array = np.full_like(array, np.nan) if fresh and array.dtype.kind == "f" else array.copy()
    if argument in PARTS and letters[-1] == "C":
        wide = np.full((*array.shape[:-1], PARTS[argument] * array.shape[-1]), np.nan, array.dtype)
        wide[..., array.shape[-1] : 2 * array.shape[-1]] = array
        return torch.from_numpy(wide)[..., array.shape[-1] : 2 * array.shape[-1]]
    return torch.from_numpy(array)


def main(part: int, parts: int) -> int:
    mine = list(cases())[part::parts]
    wrong = [found for found in map(judge, mine) if found]
    print(*wrong, f"{len(mine)} cases, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
