"""Remember: the keys and values of the newest T positions go to their places in the cache.

(1)  keys[b, h, position + t] = k[b, t, h],   values[b, h, position + t] = v[b, t, h]

k and v hold the heads side by side in their channels; the cache holds each head by itself, so that attention reads
one head's past from end to end. What lies in the cache elsewhere stays as it is. Forward only.
"""

from typing import Any

import numpy as np

from tapeless.ops.contract import Array, Dims, Scalars, Signature, Spec


def _refuse(dims: Dims, scalars: Scalars) -> str | None:
    if dims["C"] != dims["H"] * dims["D"]:
        return f"C={dims['C']} channels are not H={dims['H']} heads of D={dims['D']}"
    if dims["T"] > dims["P"]:
        return f"T={dims['T']} new positions do not fit into a cache of P={dims['P']}"
    return None


SPEC = Spec(
    name="remember",
    shapes={"keys": "B H P D", "values": "B H P D", "k": "B T C", "v": "B T C", "position": "1"},
    roles={"position": "index"},
    meanings={"keys": "cached keys", "values": "cached values", "position": "cached length"},
    forward=Signature(
        writes={"keys": "k at position … position + T − 1", "values": "v at position … position + T − 1"},
        reads=("k", "v", "position"),
        updates=("keys", "values"),
    ),
    refuse=_refuse,
)


def forward(keys: Array, values: Array, k: Array, v: Array, position: Array) -> None:
    batch, heads, _, width = keys.shape
    start, time = int(position[0]), k.shape[1]
    for cache, new in ((keys, k), (values, v)):
        cache[:, :, start : start + time] = new.reshape(batch, time, heads, width).swapaxes(1, 2)  # (1)


def flops(direction: str, dims: Dims, writes: frozenset[str], scalars: Scalars) -> int:
    return 0


def example(rng: np.random.Generator) -> dict[str, Any]:
    batch, heads, held, width, time = 2, 3, 7, 2, 4
    return {
        "keys": rng.normal(size=(batch, heads, held, width)),
        "values": rng.normal(size=(batch, heads, held, width)),
        "k": rng.normal(size=(batch, time, heads * width)),
        "v": rng.normal(size=(batch, time, heads * width)),
        "position": np.array([2]),
    }
