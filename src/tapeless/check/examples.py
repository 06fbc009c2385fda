"""Arguments on which an op is checked alone: its own example, and those at which mistakes have hidden.

Lengths that differ, rows that are all ignored, scores that overflow an exp, chunks that do not divide the rows, nearly
constant rows, the first step of an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.ops import OPS
from tapeless.ops.contract import Dims, Spec

Example = dict[str, Any]


def examples_of(name: str) -> list[Example]:
    rng = np.random.default_rng(0)
    own = OPS[name].example(rng)
    if own is None:
        raise TapelessError(f"example in ops/{name}/reference.py returned None: is there a `return` at its end?")
    further: Callable[[Example, np.random.Generator], list[Example]] = FURTHER.get(name, lambda own, rng: [])
    return [own, *further(own, rng)]


def dims_of(name: str, example: Example) -> Dims:
    """The size of each letter of the op's Spec in an example."""
    spec: Spec = OPS[name].SPEC
    shaped = {key: value for key, value in example.items() if key in spec.shapes}
    return spec.dims({key: each if isinstance(each, tuple) else np.shape(each) for key, each in shaped.items()})


def resized(name: str, example: Example, dims: Dims, rng: np.random.Generator) -> Example:
    """The example at another size: numbers drawn from its own, each moved a little, integers as they are. So ids stay
    ids of the example, and what is positive stays so."""
    spec, made = OPS[name].SPEC, dict(example)
    for argument in (argument for argument in spec.shapes if argument in example):
        shape = tuple(int(letter) if letter.isdigit() else dims[letter] for letter in spec.letters(argument))
        value = example[argument]
        if isinstance(value, tuple):
            made[argument] = shape
        elif shape != value.shape:
            drawn = rng.choice(value.reshape(-1), shape)
            made[argument] = drawn * rng.uniform(0.8, 1.2, shape) if value.dtype.kind == "f" else drawn
    return made


def _attention(own: Example, rng: np.random.Generator) -> list[Example]:
    q, k, v = (rng.normal(size=(2, 4, 6)) for _ in range(3))
    same: Example = {"q": q, "k": k, "v": v, "lse": (2, 3, 4), "window": 0}
    starts = np.array([[0, 2, 2], [1, 1, 9]])  # a document that begins late, and one after the query: it sees itself
    return [
        own | {"causal": False},
        own | {"starts": starts},
        own | {"window": 2},
        same | {"causal": True},
        same | {"causal": False, "q": 200 * q, "k": 1 + 1e-3 * k},  # no exp holds the scores, and they are near others
        same | {"causal": True, "window": 3, "starts": np.array([[0, 0, 2, 2], [0, 1, 1, 3]])},
        own | {"causal": False, "starts": starts},
        _one_key_has_all(),
        *_few_queries(),
    ]


def _few_queries() -> list[Example]:
    """With heads that are whole vectors, for which kernels may have a way of their own."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=size) for size in ((1, 3, 32), (1, 5, 16), (1, 5, 16)))
    shared: Example = {"q": q, "k": k, "v": v, "lse": (1, 2, 3), "window": 0}
    return [shared | {"causal": True}, shared | {"causal": False, "q": 30 * q}]


def _one_key_has_all() -> Example:
    """Scores in the hundreds, so that of most queries one key has all the weight. With numbers of its own: where that
    is so of every query, the gradients are nothing but what roundings leave."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 4, 6)) for _ in range(3))
    return {"q": 400 * q, "k": k, "v": v, "lse": (2, 3, 4), "window": 0, "causal": False}


def _rmsnorm(own: Example, rng: np.random.Generator) -> list[Example]:
    whole: Example = {"x": rng.normal(size=(5, 4)), "weight": rng.normal(size=4), "rstd": (5, 1), "eps": 1e-5}
    return [whole, whole | {"x": 1e-3 * whole["x"]}]  # where eps is the larger part


def _rope(own: Example, rng: np.random.Generator) -> list[Example]:
    turned = rng.uniform(0, 6, (2, 3, 6))
    return [own | {"cos": np.cos(turned), "sin": np.sin(turned)}]  # one head, as many angles as places


def _classifier(own: Example, rng: np.random.Generator) -> list[Example]:
    nothing = np.full(7, -1)
    return [
        own | {"x": 400 * own["x"]},
        own | {"targets": nothing},  # one of several batches that are added up
        own | {"count": np.array([11.0]), "logits": (7, 5)},
        own | {"class_weights": rng.uniform(0.5, 2, size=5)},
    ]


def _clip(own: Example, rng: np.random.Generator) -> list[Example]:
    limits = ((0.5, 1.0), (3.0, np.inf), (0.0, 1.0))
    clipped = [own | {"norm": np.array([norm]), "limit": np.array([limit])} for norm, limit in limits]
    large = own | {"norm": np.array([1e20])}  # more than can be squared, but for the clipping
    refused = [large | {"limit": np.array([np.inf])}, own | {"norm": np.array([np.nan])}]
    return [*clipped, large, *refused, *(own | {"loss": np.array([loss])} for loss in (np.nan, np.inf))]


def _update(own: Example, rng: np.random.Generator) -> list[Example]:
    nothing = np.full(own["gradients"].shape, np.nan)
    return [own | {"finite": np.array([0])}, own | {"gradients": nothing, "finite": np.array([0])}]


def _adamw(own: Example, rng: np.random.Generator) -> list[Example]:
    first = {"step": np.array([0]), "m": np.zeros(9), "v": np.zeros(9)}
    sizes = [own | first, own | {"eps": 0.1, "decayed": ((0, 9),)}, own | {"decayed": ()}]
    return [*sizes, *_update(own, rng)]


def _muon(own: Example, rng: np.random.Generator) -> list[Example]:
    first = own | {"step": np.array([0]), "m": np.zeros(34), "v": np.zeros(7), "eps": 0.1}
    whole = {key: rng.normal(size=12) for key in ("weights", "m", "gradients")}
    square = own | whole | {"matrices": ((3, 3, (3,)),), "v": np.ones(3), "decayed": (), "sections": (0, 1, 3)}
    tiny = first | {"gradients": 1e-9 * own["gradients"]}  # a norm that is not divided out
    alone = square | {"matrices": ((0, 2, (4, 2)),), "v": np.ones(1), "sections": (0,), "moved": (1,), "norms": (1,)}
    return [first, tiny, square, alone, *_update(own, rng)]


def examples_with_master(name: str) -> list[Example]:
    """Of an update, with a master copy of which the weights are no rounding yet: they must not be read."""
    rng = np.random.default_rng(4)
    own = OPS[name].example(rng)
    return [own | {"master": rng.normal(size=own["weights"].shape)}] if "master" in OPS[name].SPEC.shapes else []


FURTHER: dict[str, Callable[[Example, np.random.Generator], list[Example]]] = {
    "attention": _attention,
    "cached_attention": lambda own, rng: [own | {"q": 400 * own["q"]}, own | {"window": 3}],
    "rmsnorm": _rmsnorm,
    "angles": lambda own, rng: [own | {"places": own["places"] + 100_000}],
    "rope": _rope,
    "swiglu": lambda own, rng: [own | {"gate": np.linspace(-40, 40, 20).reshape(4, 5)}],
    "classifier": _classifier,
    "squared_error": lambda own, rng: [own | {"targets": np.full(5, -1)}, own | {"count": np.array([9.0])}],
    "layernorm": lambda own, rng: [
        {"x": 3 + 1e-2 * rng.normal(size=(5, 4)), "weight": rng.normal(size=4), "bias": rng.normal(size=4), "eps": 1e-5}
    ],
    "linear": lambda own, rng: [
        {"x": rng.normal(size=(4, 4)), "weight": rng.normal(size=(4, 4)), "bias": rng.normal(size=4)},
        {"x": own["x"], "weight": own["weight"]},
    ],
    "adapt": lambda own, rng: [{"low": rng.normal(size=(3, 3)), "weight": rng.normal(size=(3, 3)), "scale": 2.0}],
    "embedding": lambda own, rng: [own | {"tokens": np.full(5, 2)}],
    "gelu": lambda own, rng: [{"x": np.linspace(-8, 8, 20).reshape(4, 5)}],
    "clip": _clip,
    "sgd": _update,
    "momentum": _update,
    "adamw": _adamw,
    "muon": _muon,
}
