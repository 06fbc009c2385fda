"""PyTorch's own ops, beside the same op and beside their formulas: none is judged wrong, in any dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tapeless.check import op
from tests.random_cases import SOAK

EPS = 1e-5


def sample(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


X, W, B = sample(5, 6), 1 + 0.1 * sample(6), 0.1 * sample(6)
IMAGE = sample(2, 4, 6, 5)
LABELS = torch.tensor([0, 3, 5, 1, 1])
CLASSES = {"shapes": ["N V", "N"], "sizes": {"V": range(6, 999)}}


def layer_norm(x, w, b):
    z = x - x.mean(-1, keepdim=True)
    return z * torch.rsqrt((z * z).mean(-1, keepdim=True) + EPS) * w + b


def rms_norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True).detach())
    return e / e.sum(-1, keepdim=True)


def attention(q, k, v):
    return softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v


QKV = (sample(2, 4, 6), sample(2, 5, 6), sample(2, 5, 6, seed=3))
# By name: the definition as a formula, or None for the op itself; the op; inputs; options.
FORMULAS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "layer_norm": (layer_norm, lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, EPS), (X, W, B), {}),
    "rms_norm": (rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], w, EPS), (X, W), {}),
    "gelu": (gelu, lambda x: F.gelu(x, approximate="tanh"), (X,), {}),
    "softmax": (softmax, lambda x: torch.softmax(x, -1), (X,), {}),
    "attention": (attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v), QKV, {}),
}
OPS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "silu": (F.silu, (X,), {}),
    "exact gelu": (F.gelu, (X,), {}),
    "relu": (F.relu, (X,), {}),
    "leaky relu": (F.leaky_relu, (X,), {}),
    "elu": (F.elu, (X,), {}),
    "mish": (F.mish, (X,), {}),
    "softplus": (F.softplus, (X,), {}),
    "hardswish": (F.hardswish, (X,), {}),
    "sigmoid": (torch.sigmoid, (X,), {}),
    "tanh": (torch.tanh, (X,), {}),
    "exp": (torch.exp, (X,), {}),
    "log": (torch.log, (X.abs() + 0.1,), {}),
    "sqrt": (torch.sqrt, (X.abs() + 0.1,), {}),
    "log softmax": (lambda x: F.log_softmax(x, -1), (X,), {}),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), (X,), {}),
    "layer norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), (X, W, B), {}),
    "group norm": (lambda x: F.group_norm(x, 2), (IMAGE,), {"sizes": {"n4": range(4, 68, 4)}}),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (X, W, B), {}),
    "cross-entropy": (F.cross_entropy, (X, LABELS), CLASSES),
    "nll": (lambda x, t: F.nll_loss(F.log_softmax(x, -1), t), (X, LABELS), CLASSES),
    "mse": (F.mse_loss, (X, sample(5, 6, seed=1)), {}),
    "smooth l1": (F.smooth_l1_loss, (X, sample(5, 6, seed=1)), {}),
    "kl": (lambda x, t: F.kl_div(F.log_softmax(x, -1), torch.softmax(t, -1)), (X, sample(5, 6, seed=1)), {}),
    "bce": (F.binary_cross_entropy_with_logits, (X, torch.rand(5, 6)), {"wrt": [0]}),
    "linear": (F.linear, (X, sample(7, 6), sample(7)), {}),
    "matmul": (torch.matmul, (X, sample(6, 4)), {}),
    "bmm": (torch.matmul, (QKV[0], sample(2, 6, 3)), {}),
    "conv1d": (
        lambda x, w: F.conv1d(x, w, padding=1),
        (sample(2, 4, 9), sample(3, 4, 5)),
        {"sizes": {"n5": range(1, 9)}},
    ),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, sample(3, 4, 2, 3)), {"largest": 17}),
    "embedding": (
        F.embedding,
        (torch.tensor([0, 2, 2, 1]), sample(4, 6)),
        {"shapes": ["N", "V C"], "sizes": {"V": range(3, 999)}},
    ),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), (IMAGE,), {"largest": 17}),
    "average pool": (lambda x: F.avg_pool2d(x, 2), (IMAGE,), {"largest": 17}),
    "cumsum": (lambda x: torch.cumsum(x, -1), (X,), {}),
    "cumprod": (lambda x: torch.cumprod(x, -1), (X,), {"largest": 17}),
    "sum": (lambda x: x.sum(-1), (X,), {}),
    "mean": (lambda x: x.mean(0), (X,), {}),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), (X,), {}),
    "var": (lambda x: x.var(-1), (X,), {}),
    "glu": (lambda x: F.glu(x, -1), (X,), {"sizes": {"n6": range(2, 999, 2)}}),
    "cosine": (F.cosine_similarity, (X, sample(5, 6, seed=1)), {}),
    "solve": (
        lambda x, b: torch.linalg.solve(x @ x.mT + torch.eye(4, dtype=x.dtype), b),
        (sample(4, 4), sample(4, 3)),
        {"dtypes": ["float32"], "largest": 9},
    ),
}
# PyTorch's layer_norm on the CPU adds dbias in half precision: 544 where the terms are positive becomes 512.
ADDS_IN_HALVES = [("layer_norm", "bfloat16"), ("layer_norm", "float16")]
DTYPES = ("float32", "bfloat16", "float16")
SMALL = {} if SOAK > 1 else {"largest": 65, "pairs": 2}
SAMPLE = ("group norm", "cross-entropy", "linear", "embedding", "cumsum", "conv2d")


@pytest.mark.parametrize("seed", range(20 if SOAK > 1 else 1))
@pytest.mark.parametrize("name", OPS if SOAK > 1 else SAMPLE)
def test_an_op_beside_itself(name, seed):
    function, inputs, options = OPS[name]
    report = op(function, inputs, kernel=lambda *given: function(*given), seed=seed, **SMALL | options)
    assert report, report


@pytest.mark.parametrize("seed", range(20 if SOAK > 1 else 1))
@pytest.mark.parametrize("dtype", DTYPES if SOAK > 1 else ("float32",))
@pytest.mark.parametrize("name", FORMULAS)
def test_an_op_beside_its_formula(name, dtype, seed):
    definition, function, inputs, options = FORMULAS[name]
    given = tuple(each.to(getattr(torch, dtype)) for each in inputs)
    report = op(definition, given, kernel=function, seed=seed, **SMALL | options)
    assert report or (name, dtype) in ADDS_IN_HALVES, report


def test_there_are_forty_ops():
    assert len(OPS) >= 40
