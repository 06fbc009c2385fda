"""Random inputs for any op, made from its Spec alone: a new op is covered by the property tests from its first day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np

from tapeless.ops import OPS
from tapeless.ops.contract import Array, Dims, Spec, away_from_zero

# The most that each letter of the LEGEND becomes. SMALL is for the reference, where shapes matter and sizes do not.
# LARGE is for kernels that cut blocks and use threads from some size on; every limit of theirs is crossed.
SMALL = {"B": 3, "T": 4, "S": 3, "R": 5, "H": 4, "D": 4, "F": 5, "V": 6, "P": 7, "K": 4, "M": 3, "N": 9, "L": 4}
LARGE = {"B": 5, "T": 150, "S": 40, "R": 700, "H": 5, "D": 24, "F": 300, "V": 2500, "P": 20, "K": 300, "M": 20}
LARGE |= {"N": 200_000, "L": 9}
MOST_ELEMENTS = 200_000  # of one argument
# Where kernels have been wrong and random sizes did not show it: a last block of one element or row, which is left out
# where blocks are counted wrongly, a third strip of queries, rows too narrow for several threads, the heads of a
# single query on several threads, and the smallest vocabulary that is held transposed.
EDGES = {
    "elements": {"N": 65537, "R": 145, "H": 1, "D": 113, "F": 113, "V": 1025},  # R·C and R·F are 16385
    "rows": {"R": 17, "F": 65, "V": 65, "T": 129},
    "narrow": {"R": 7001, "H": 1, "D": 10, "F": 3, "V": 20},
    "one query": {"T": 1, "B": 5, "H": 5, "D": 24, "P": 200, "V": 1024},
}

# By name, because integers mean something: a row of a table, a place in a sequence, a count.
INTEGERS = {
    "tokens": lambda dims: (0, dims["V"]),
    "targets": lambda dims: (-1, dims["V"]),
    "step": lambda dims: (0, 50),
    "seed": lambda dims: (0, 1 << 62),
    "draws": lambda dims: (0, 1 << 40),
    "finite": lambda dims: (0, 2),
    "position": lambda dims: (0, dims["P"] - dims["T"] + 1),
    "places": lambda dims: (0, 1000),
    # Where a query's document begins: anywhere up to itself, and now and then after it.
    "starts": lambda dims: (0, np.maximum(1, np.arange(dims["T"]) + dims["S"] - dims["T"] + 2)),
}
POSITIVE = ("rates", "count", "scale", "lr", "limit", "largest", "norm", "v", "class_weights")


@dataclass(frozen=True)
class Inputs:
    """What an op's forward reads (and, where it updates in place, changes), its scalars, and its dimensions."""

    name: str
    dims: Dims
    arrays: Mapping[str, Array]
    scalars: Mapping[str, Any]

    @property
    def spec(self) -> Spec:
        spec: Spec = OPS[self.name].SPEC
        return spec

    def shape(self, argument: str) -> tuple[int, ...]:
        return tuple(int(x) if x.isdigit() else self.dims[x] for x in self.spec.letters(argument))

    def empty(self, argument: str, dtype: Any) -> Array:
        """NaN, or −1: what is read before it is written, or never written, shows."""
        kind = np.dtype(self.spec.dtype(argument, dtype))
        return np.full(self.shape(argument), -1 if kind.kind == "i" else np.nan, kind)

    def replaced(self, **arrays: Array) -> Inputs:
        return Inputs(self.name, self.dims, {**self.arrays, **arrays}, self.scalars)


def random_inputs(
    name: str, rng: np.random.Generator, limits: Mapping[str, int] = SMALL, given: Mapping[str, int] | None = None
) -> Inputs:
    spec = OPS[name].SPEC
    read = {a for s in (spec.forward, spec.backward) if s for a in (*s.reads, *s.updates) if a in spec.shapes}
    for _ in range(1000):
        dims, scalars = _random_dims(rng, limits, given or {}), _random_scalars(rng)
        if name == "rope":  # which takes whole pairs
            dims["C"] = dims["H"] * 2 * dims["A"]
        scalars["decayed"] = _random_spans(rng, dims["N"])
        starts = rng.choice(dims["N"] - 1, dims["L"] - 1, replace=False) + 1
        scalars["sections"] = (0, *sorted(int(start) for start in starts))
        scalars["matrices"] = _random_matrices(rng, dims["N"])
        dims["U"] = dims["N"] - sum(rows * sum(widths) for _, rows, widths in scalars["matrices"])
        inputs = Inputs(name, dims, {}, scalars)
        sizes = [int(np.prod(inputs.shape(argument))) for argument in spec.shapes]
        if spec.refuse(dims, scalars) is None and max(sizes) <= MOST_ELEMENTS:
            break
    else:
        raise AssertionError(f"no inputs of {name} within {limits} and {given} are small enough")
    read -= set(spec.forward.writes) - set(spec.forward.updates)  # what the forward makes, it makes itself
    read -= {argument for argument in spec.forward.optional if rng.integers(2)}
    read.discard("master")  # which is for weights of a narrower type
    arrays = {argument: _random_array(inputs, argument, rng) for argument in sorted(read)}
    return inputs.replaced(**arrays)


def _random_dims(rng: np.random.Generator, limits: Mapping[str, int], given: Mapping[str, int]) -> Dims:
    """Each near its limit half of the time, else of any order of magnitude below; some are given."""
    dims = {letter: round(exp(rng.uniform(0, log(limit)))) for letter, limit in limits.items()}
    dims |= {letter: int(rng.integers(limit // 2, limit) + 1) for letter, limit in limits.items() if rng.integers(2)}
    if not rng.integers(4):
        dims["T"] = 1  # one query alone: the last position, and every step of decoding
    dims |= given
    dims["C"] = dims["H"] * dims["D"]
    dims["G"] = int(rng.choice([g for g in range(1, dims["H"] + 1) if dims["H"] % g == 0]))  # which divide the heads
    dims["E"], dims["A"] = dims["G"] * dims["D"], max(1, dims["D"] // 2)
    # The queries are the last of the keys, mostly; a cache has a place for every query.
    dims["S"] = max(1, dims["T"] + int(rng.integers(-2, dims["S"] + 1)))
    dims["P"] += dims["T"]
    dims["K"] = min(dims["K"], dims["R"])  # a chunk never has more rows than there are
    dims["L"] = min(dims["L"], dims["N"])
    return dims


def _random_scalars(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "causal": bool(rng.integers(2)),
        "window": int(rng.choice([0, 0, 1, 5, 70])),
        "eps": 10 ** rng.uniform(-5, -1),
        "momentum": rng.uniform(0.1, 0.95),
        "beta1": rng.uniform(0.1, 0.95),
        "beta2": rng.uniform(0.1, 0.99),
        "decay": rng.uniform(0.05, 0.5),
        "scale": rng.uniform(0.3, 3),
        "rate": rng.uniform(0.1, 0.9),
        "site": int(rng.integers(0, 1 << 32)),
    }


def _random_spans(rng: np.random.Generator, size: int) -> tuple[tuple[int, int], ...]:
    edges = np.sort(rng.integers(0, size + 1, 4))
    return tuple((int(a), int(b)) for a, b in edges.reshape(2, 2) if a < b)


def _random_matrices(rng: np.random.Generator, size: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Some side by side, where there is room for them and for more."""
    rows, widths = int(rng.integers(1, 9)), tuple(int(width) for width in rng.integers(1, 9, rng.integers(1, 4)))
    free = size - rows * sum(widths)
    return ((int(rng.integers(0, free)), rows, widths),) if free > 0 else ()


def _random_array(inputs: Inputs, argument: str, rng: np.random.Generator) -> Array:
    shape = inputs.shape(argument)
    if inputs.spec.roles.get(argument) == "index":
        return rng.integers(*INTEGERS[argument](inputs.dims), shape)
    values = away_from_zero(rng, *shape)  # where a ReLU has no derivative
    return np.abs(values) if argument in POSITIVE else values


def forward(inputs: Inputs, dtype: Any = np.float64) -> dict[str, Array]:
    """The outputs of the reference's forward."""
    signature = inputs.spec.forward
    asked = [output for output in signature.writes if output not in signature.optional or output in inputs.arrays]
    outputs = {output: inputs.empty(output, dtype) for output in asked}
    for output in set(signature.updates).intersection(asked):
        outputs[output][...] = inputs.arrays[output]
    reads = [inputs.arrays.get(argument) for argument in signature.reads]
    given = [outputs.get(output) for output in signature.writes]
    OPS[inputs.name].forward(*given, *reads, *(inputs.scalars[scalar] for scalar in signature.scalars))
    return outputs


def backward(
    inputs: Inputs, dys: Mapping[str, Array], into: Mapping[str, Array] | None = None
) -> tuple[dict[str, Array], Array | None]:
    """The gradients by argument, and the loss of an op that yields one. What is in `into` is added to."""
    spec, signature = inputs.spec, inputs.spec.signature("backward")
    made = {**inputs.arrays, **forward(inputs), **{f"d{output}": dy for output, dy in dys.items()}}
    results: dict[str, Array | None] = {output: inputs.empty(output, np.float64) for output in signature.writes}
    for output in results:
        if output[1:] in spec.forward.optional and output[1:] not in inputs.arrays:
            results[output] = None  # of what is not there nobody asks the gradient
    for output, before in (into or {}).items():
        results[output] = before.copy()
    add = {"add": frozenset(into)} if into else {}
    reads = [made.get(argument) for argument in signature.reads]
    scalars = [inputs.scalars[scalar] for scalar in signature.scalars]
    OPS[inputs.name].backward(*results.values(), *reads, *scalars, **add)
    found = {output: array for output, array in results.items() if array is not None}
    return {output: array for output, array in found.items() if output[1:] in spec.forward.reads}, found.get("loss")


def random_dys(inputs: Inputs, rng: np.random.Generator) -> dict[str, Array]:
    """A gradient for every output through which one comes back. A fused loss has none: it takes 1 for granted."""
    backward_signature = inputs.spec.backward
    reads = backward_signature.reads if backward_signature else ()
    return {o: rng.normal(size=inputs.shape(o)) for o in inputs.spec.forward.writes if f"d{o}" in reads}
