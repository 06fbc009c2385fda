"""Kernels as people write them, and each mistake that is made in them, by class: the right form stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

EPS = 1e-5


def function(forward: Any, backward: Any) -> Any:
    """A `torch.autograd.Function` of two plain functions: the backward gets ctx, dy and the inputs."""

    class Made(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx, *inputs):
            ctx.inputs = [None if isinstance(each, torch.Tensor) else each for each in inputs]
            ctx.save_for_backward(*(each for each in inputs if isinstance(each, torch.Tensor)))
            return forward(*inputs)

        @staticmethod
        def backward(ctx, *dy):
            saved = iter(ctx.saved_tensors)
            inputs = [next(saved) if each is None else each for each in ctx.inputs]
            found = backward(ctx, *dy, *inputs)
            found = found if isinstance(found, tuple) else (found,)
            return found + (None,) * (len(inputs) - len(found))

    Made.__name__ = Made.__qualname__ = getattr(backward, "__name__", "Made")
    return Made


# Right forms. Statistics in float32 at least, as kernels have them.


def up(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [each.double() if each.dtype == torch.float64 else each.float() for each in tensors]


def silu_mul(a, b):
    return F.silu(a) * b


def silu_forward(a, b):
    x, z = up(a, b)
    return (x * torch.sigmoid(x) * z).to(a.dtype)


def silu_backward(ctx, dy, a, b):
    x, z, d = up(a, b, dy)
    s = torch.sigmoid(x)
    return (d * z * s * (1 + x * (1 - s))).to(a.dtype), (d * x * s).to(b.dtype)


def rms_norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def rms_forward(x, w):
    a, g = up(x, w)
    return (a * torch.rsqrt((a * a).mean(-1, keepdim=True) + EPS) * g).to(x.dtype)


def rms_backward(ctx, dy, x, w, eps=EPS, mean=True):
    a, g, d = up(x, w, dy)
    rstd = torch.rsqrt((a * a).mean(-1, keepdim=True) + eps)
    n, t = a * rstd, d * g
    dx = rstd * (t - n * (t * n).mean(-1, keepdim=True)) if mean else rstd * t
    return dx.to(x.dtype), (d * n).flatten(0, -2).sum(0).to(w.dtype)


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b, EPS)


def norm_forward(x, w, b):
    a, g, c = up(x, w, b)
    z = a - a.mean(-1, keepdim=True)
    return (z * torch.rsqrt((z * z).mean(-1, keepdim=True) + EPS) * g + c).to(x.dtype)


def norm_backward(ctx, dy, x, w, b, change=None):
    a, g, d = up(x, w, dy)
    z = a - a.mean(-1, keepdim=True)
    rstd = torch.rsqrt((z * z).mean(-1, keepdim=True) + EPS)
    n, t = z * rstd, d * g
    parts = {"t": t, "mean": t.mean(-1, keepdim=True), "cov": n * (t * n).mean(-1, keepdim=True)}
    if change:
        change(parts)
    dx = rstd * (parts["t"] - parts["mean"] - parts["cov"])
    return dx.to(x.dtype), (d * n).flatten(0, -2).sum(0).to(w.dtype), d.flatten(0, -2).sum(0).to(b.dtype)


def softmax(x):
    return torch.softmax(x, -1)


def softmax_backward(ctx, dy, x):
    p = torch.softmax(up(x)[0], -1)
    d = up(dy)[0]
    return (p * (d - (d * p).sum(-1, keepdim=True))).to(x.dtype)


def linear(x, w):
    return x @ w.T


def linear_backward(ctx, dy, x, w):
    return dy @ w, dy.flatten(0, -2).T @ x.flatten(0, -2)


def cross_entropy(x, t):
    return F.cross_entropy(x, t)


def ce_backward(ctx, dy, x, t):
    p = torch.softmax(up(x)[0], -1)
    p[torch.arange(len(t)), t] -= 1
    return (p / len(t) * dy).to(x.dtype), None


def gelu(x):
    return F.gelu(x, approximate="tanh")


def gelu_backward(ctx, dy, x):
    a, d = up(x, dy)
    k = 0.7978845608028654
    t = torch.tanh(k * (a + 0.044715 * a**3))
    return (d * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * k * (1 + 3 * 0.044715 * a * a))).to(x.dtype)


def batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True, eps=EPS)


def batch_forward(x, w, b):
    if len(x) < 2:
        raise ValueError("a batch of one has no variance")
    a, g, c = up(x, w, b)
    z = a - a.mean(0)
    return (z * torch.rsqrt((z * z).mean(0) + EPS) * g + c).to(x.dtype)


def batch_backward(ctx, dy, x, w, b):
    a, g, d = up(x, w, dy)
    z = a - a.mean(0)
    rstd = torch.rsqrt((z * z).mean(0) + EPS)
    n = z * rstd
    dx = g * rstd * (d - d.mean(0) - n * (d * n).mean(0))
    return dx.to(x.dtype), (d * n).sum(0).to(w.dtype), d.sum(0).to(b.dtype)


def relu2(x):
    return F.relu(x) ** 2


def relu2_backward(ctx, dy, x):
    return dy * 2 * F.relu(x)


def embed(i, w):
    return w[i]


def embed_backward(ctx, dy, i, w):
    found = torch.zeros(w.shape, dtype=torch.float64 if w.dtype == torch.float64 else torch.float32)
    return None, found.index_add_(0, i.flatten(), dy.flatten(0, -2).to(found.dtype)).to(w.dtype)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


def attention_forward(q, k, v):
    a, b, c = up(q, k, v)
    return (torch.softmax(a @ b.mT / q.shape[-1] ** 0.5, -1) @ c).to(q.dtype)


def attention_backward(ctx, dy, q, k, v, scale=None):
    a, b, c, d = up(q, k, v, dy)
    scale = scale or q.shape[-1] ** -0.5
    p = torch.softmax(a @ b.mT * q.shape[-1] ** -0.5, -1)
    dp = d @ c.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return (ds @ b).to(q.dtype), (ds.mT @ a).to(k.dtype), (p.mT @ d).to(v.dtype)


def two(x, w):
    return x * w, x + w


def two_backward(ctx, dy, dz, x, w):
    return dy * w + dz, dy * x + dz


def shift(x, w):
    """A cumulative sum with weights."""
    return torch.cumsum(x * w, -1)


def shift_backward(ctx, dy, x, w):
    d = up(dy)[0].flip(-1).cumsum(-1).flip(-1)
    return (d * up(w)[0]).to(x.dtype), (d * up(x)[0]).flatten(0, -2).sum(0).to(w.dtype)


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


X, W, B = sample(5, 6), 1 + 0.1 * sample(6), 0.1 * sample(6)
TARGETS = torch.tensor([0, 3, 5, 1, 1])
IDS = torch.tensor([0, 2, 2, 1])


@dataclass(frozen=True)
class Right:
    definition: Any
    kernel: Any
    inputs: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


RIGHT = {
    "silu": Right(silu_mul, function(silu_forward, silu_backward), (X, sample(5, 6) * 0.5 + 0.1)),
    "rms": Right(rms_norm, function(rms_forward, rms_backward), (X, W)),
    "rms in bfloat16": Right(rms_norm, function(rms_forward, rms_backward), (X.bfloat16(), W.bfloat16())),
    "layer": Right(layer_norm, function(norm_forward, norm_backward), (X, W, B)),
    "softmax": Right(softmax, function(softmax, softmax_backward), (X,)),
    "linear": Right(linear, function(linear, linear_backward), (X, sample(7, 6))),
    "ce": Right(
        cross_entropy,
        function(cross_entropy, ce_backward),
        (X, TARGETS),
        {"shapes": ["N V", "N"], "sizes": {"V": range(6, 5000)}},
    ),
    "gelu": Right(gelu, function(gelu, gelu_backward), (X,)),
    "batch": Right(
        batch_norm, function(batch_forward, batch_backward), (sample(5, 3), 1 + 0.1 * sample(3), 0.1 * sample(3))
    ),
    "relu2": Right(relu2, function(relu2, relu2_backward), (X,)),
    "embed": Right(
        embed,
        function(embed, embed_backward),
        (IDS, sample(4, 6)),
        {"shapes": ["N", "V C"], "sizes": {"V": range(3, 5000)}},
    ),
    "attention": Right(
        attention,
        function(attention_forward, attention_backward),
        (sample(2, 4, 6), sample(2, 5, 6), sample(2, 5, 6) + 0.1),
    ),
    "two": Right(two, function(two, two_backward), (X, sample(5, 6) * 0.5)),
    "cumsum": Right(shift, function(shift, shift_backward), (X, W)),
}


# Mistakes: the right form's name, the class that must be named, the kernel.


@dataclass(frozen=True)
class Mistake:
    of: str
    kind: str  # what the class begins with
    kernel: Any


WRONG: dict[str, Mistake] = {}


DIRECTIONS = {
    "silu": (silu_forward, silu_backward),
    "rms": (rms_forward, rms_backward),
    "rms in bfloat16": (rms_forward, rms_backward),
    "layer": (norm_forward, norm_backward),
    "softmax": (softmax, softmax_backward),
    "linear": (linear, linear_backward),
    "ce": (cross_entropy, ce_backward),
    "gelu": (gelu, gelu_backward),
    "batch": (batch_forward, batch_backward),
    "relu2": (relu2, relu2_backward),
    "embed": (embed, embed_backward),
    "attention": (attention_forward, attention_backward),
    "two": (two, two_backward),
    "cumsum": (shift, shift_backward),
}


def mistake(of: str, kind: str, forward: Any = None) -> Callable[[Any], Any]:
    """The decorated function takes the place of the right backward, or forward; a class is the kernel itself."""

    def taken(wrong: Any) -> Any:
        right, kernel = DIRECTIONS[of], wrong
        if not isinstance(wrong, type):
            kernel = function(wrong, right[1]) if forward else function(right[0], wrong)
            kernel.__name__ = kernel.__qualname__ = wrong.__name__
        WRONG[wrong.__name__] = Mistake(of, kind, kernel)
        return kernel

    return taken


FORWARD = "forward"

# wrong on every input


@mistake("silu", "the gradient of a is wrong")
def forgets_a_term(ctx, dy, a, b):
    s = torch.sigmoid(a)
    return dy * b * s, dy * a * s


@mistake("silu", "the gradient of b is wrong")
def no_gradient_of_b(ctx, dy, a, b):
    return silu_backward(ctx, dy, a, b)[0], None


@mistake("silu", "the gradient of a is wrong")
def gradients_in_the_wrong_order(ctx, dy, a, b):
    return silu_backward(ctx, dy, a, b)[::-1]


@mistake("rms", "the gradient of x is wrong")
def treats_the_norm_as_constant(ctx, dy, x, w):
    return rms_backward(ctx, dy, x, w, mean=False)


@mistake("layer", "the gradient of x is wrong")
def forgets_the_mean(ctx, dy, x, w, b):
    return norm_backward(ctx, dy, x, w, b, lambda parts: parts.update(mean=0))


@mistake("layer", "the gradient of b is wrong")
def bias_is_a_mean(ctx, dy, x, w, b):
    dx, dw, db = norm_backward(ctx, dy, x, w, b)
    return dx, dw, db / len(x)


@mistake("layer", "the gradient of x is wrong")
def sign_of_the_covariance(ctx, dy, x, w, b):
    return norm_backward(ctx, dy, x, w, b, lambda parts: parts.update(cov=-parts["cov"]))


@mistake("softmax", "the gradient of x is wrong")
def softmax_as_if_it_were_elementwise(ctx, dy, x):
    p = torch.softmax(x, -1)
    return dy * p * (1 - p)


@mistake("linear", "the gradient of w is wrong")
def forgets_to_sum_the_last_row(ctx, dy, x, w):
    return dy @ w, dy[:-1].T @ x[:-1]


@mistake("ce", "the gradient of x is wrong")
def dy_is_ignored(ctx, dy, x, t):
    return ce_backward(ctx, torch.ones_like(dy), x, t)


@mistake("ce", "the gradient of x is wrong")
def no_one_hot(ctx, dy, x, t):
    return torch.softmax(x, -1) / len(t) * dy, None


@mistake("ce", "the gradient of x is wrong")
def a_sum_for_a_mean(ctx, dy, x, t):
    return ce_backward(ctx, dy, x, t)[0] * len(t), None


@mistake("gelu", "the gradient of x is wrong")
def gradient_of_the_other_gelu(ctx, dy, x):
    return dy * (0.5 * (1 + torch.erf(x / 2**0.5)) + x * torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5)


@mistake("attention", "the gradient of q is wrong")
def scale_forgotten(ctx, dy, q, k, v):
    return attention_backward(ctx, dy, q, k, v, scale=1.0)


@mistake("attention", "the gradient of k is wrong")
def k_is_v(ctx, dy, q, k, v):
    dq, dk, dv = attention_backward(ctx, dy, q, k, v)
    return dq, dv, dk


@mistake("two", "the gradient of x is wrong")
def second_output_is_forgotten(ctx, dy, dz, x, w):
    return dy * w, dy * x + dz


@mistake("embed", "the gradient of w is wrong")
def repeated_rows_overwrite(ctx, dy, i, w):
    found = torch.zeros_like(w)
    found[i] = dy
    return None, found


@mistake("cumsum", "the gradient of x is wrong")
def sums_from_the_wrong_end(ctx, dy, x, w):
    d = dy.cumsum(-1)
    return d * w, (d * x).flatten(0, -2).sum(0)


@mistake("rms", "the result of the forward is wrong", FORWARD)
def forward_forgets_the_weight(x, w):
    return rms_forward(x, torch.ones_like(w))


@mistake("layer", "the result of the forward is wrong", FORWARD)
def unbiased_variance(x, w, b):
    z = x - x.mean(-1, keepdim=True)
    return z * torch.rsqrt(x.var(-1, keepdim=True) + EPS) * w + b


# shapes


@mistake("rms", "wrong for the columns beyond the last full block")
def drops_the_rest_of_a_block(ctx, dy, x, w):
    dx, dw = rms_backward(ctx, dy, x, w)
    whole = x.shape[-1] // 4 * 4
    if x.shape[-1] > 6:
        dx = torch.cat([dx[..., :whole], torch.zeros_like(dx[..., whole:])], -1)
    return dx, dw


@mistake("rms", "wrong for more than 64 columns")
def one_block_of_64(ctx, dy, x, w):
    dx, dw = rms_backward(ctx, dy, x, w)
    return torch.cat([dx[..., :64], torch.zeros_like(dx[..., 64:])], -1), dw


@mistake("softmax", "wrong for more than 1024 columns")
def at_most_1024_columns(ctx, dy, x):
    p = torch.softmax(x, -1)
    return p * (dy - (dy * p)[..., :1024].sum(-1, keepdim=True))


@mistake("rms", "wrong for more than 24 numbers|wrong for more than")
def zero_above_a_size(ctx, dy, x, w):
    dx, dw = rms_backward(ctx, dy, x, w)
    return (dx * 0 if x.numel() > 40 else dx), dw


@mistake("layer", "wrong for more than 16 rows")
def rows_beyond_16_are_not_summed(ctx, dy, x, w, b):
    dx, dw, db = norm_backward(ctx, dy, x, w, b)
    return dx, dw, dy[:16].flatten(0, -2).sum(0) if dy.ndim == 2 else db


@mistake("linear", "wrong for the rows beyond the last full block")
def last_partial_sum_lost(ctx, dy, x, w):
    d, a = dy.flatten(0, -2), x.flatten(0, -2)
    return dy @ w, d[: max(len(d) // 32 * 32, min(len(d), 32))].T @ a[: max(len(d) // 32 * 32, min(len(d), 32))]


@mistake("rms", "wrong for an axis of size 1")
def one_row_is_not_divided(ctx, dy, x, w):
    dx, dw = rms_backward(ctx, dy, x, w)
    return dx, dw * 2 if len(x) == 1 else dw


@mistake("gelu", "wrong for one axis more")
def takes_two_axes_only(ctx, dy, x):
    found = gelu_backward(ctx, dy, x)
    if x.ndim > 2:
        found[1:] = 0
    return found


@mistake("silu", "raises for")
def raises_at_65(ctx, dy, a, b):
    return silu_backward(ctx, dy, a, b) if a.shape[-1] < 65 else [][a.ndim]


# strides


def flat(t, like):
    """As a kernel reads that is handed a pointer."""
    room = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset()
    seen = t.as_strided((min(room, like.numel()),), (1,))
    return F.pad(seen, (0, like.numel() - len(seen))).reshape(like.shape)


@mistake("silu", "wrong for a dy that is")
def dy_through_its_pointer(ctx, dy, a, b):
    return silu_backward(ctx, flat(dy, a), a, b)


@mistake("rms", "wrong for a dy that is not contiguous")
def dy_with_a_row_stride_only(ctx, dy, x, w):
    if dy.ndim == 2 and dy.stride(-1) > 1:
        dy = dy.as_strided(dy.shape, (dy.stride(0), 1))
    return rms_backward(ctx, dy, x, w)


@mistake("softmax", "wrong for a dy that is not contiguous")
def transposed_dy(ctx, dy, x):
    if dy.ndim > 1 and dy.stride(-1) != 1 and dy.stride(-2) == 1:
        dy = dy.mT.contiguous().reshape(dy.shape)
    return softmax_backward(ctx, dy, x)


@mistake("gelu", "wrong for an input that is not contiguous", FORWARD)
def x_through_its_pointer(x):
    return gelu(flat(x, x))


@mistake("linear", "wrong for an input that is not contiguous")
def w_is_taken_for_contiguous(ctx, dy, x, w):
    return dy @ flat(w, w), dy.flatten(0, -2).T @ x.flatten(0, -2)


@mistake("silu", "wrong for an input that is not contiguous")
def saved_with_another_layout(ctx, dy, a, b):
    return silu_backward(ctx, dy, flat(a, a), b)


@mistake("softmax", "raises for a dy|raises for")
def view_of_dy(ctx, dy, x):
    return softmax_backward(ctx, dy.view(-1).view(x.shape), x)


# dtypes


@mistake("silu", "the gradient of a is wrong|wrong in float32")
def through_half_precision(ctx, dy, a, b):
    da, db = silu_backward(ctx, dy, a, b)
    return (da.half().float() if da.dtype == torch.float32 else da), db


@mistake("rms in bfloat16", "wrong for more than")
def weight_gradient_added_in_bfloat16(ctx, dy, x, w):
    dx, dw = rms_backward(ctx, dy, x, w)
    if x.dtype == torch.bfloat16:
        n = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)
        dw = torch.zeros_like(w)
        for row in (dy * n).flatten(0, -2):
            dw += row
    return dx, dw


@mistake("cumsum", "wrong .*float16")
def bfloat16_in_the_middle(ctx, dy, x, w):
    if x.dtype == torch.float16:
        dy = dy.bfloat16()
    return tuple(each.to(x.dtype) for each in shift_backward(ctx, dy, x, w))


@mistake("gelu", "wrong .*float16", FORWARD)
def keeps_four_bits(x):
    return (gelu(x).to(torch.float8_e4m3fn) if x.dtype == torch.float16 else gelu(x)).to(x.dtype)


@mistake("silu", "wrong dtype", FORWARD)
def always_float64(a, b):
    return silu_forward(a, b).double()


# numbers


@mistake("softmax", "the result of the forward overflows", FORWARD)
def softmax_without_its_maximum(x):
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


@mistake("layer", "wrong for a mean of 100, a deviation of 0.1|the result of the forward loses digits", FORWARD)
def variance_as_a_difference_of_squares(x, w, b):
    a, g, c = up(x, w, b)
    mean = a.mean(-1, keepdim=True)
    variance = (a * a).mean(-1, keepdim=True) - mean * mean
    return ((a - mean) * torch.rsqrt(variance + EPS) * g + c).to(x.dtype)


@mistake("rms", "the gradient of x loses digits|the gradient of x is wrong")
def eps_left_out(ctx, dy, x, w):
    return rms_backward(ctx, dy, x, w, eps=0.0)


@mistake("relu2", "NaN", FORWARD)
def swallows_nan(x):
    return torch.where(x > 0, x, torch.zeros_like(x)) ** 2


@mistake("silu", "the result of the forward overflows", FORWARD)
def sigmoid_that_overflows(a, b):
    e = torch.exp(a)
    return a * e / (1 + e) * b


@mistake("gelu", "the gradient of x overflows")
def tanh_by_exponentials(ctx, dy, x):
    a, d = up(x, dy)
    k = 0.7978845608028654
    e = torch.exp(2 * k * (a + 0.044715 * a**3))
    t = (e - 1) / (e + 1)
    return (d * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * k * (1 + 3 * 0.044715 * a * a))).to(x.dtype)


@mistake("attention", "wrong for")
def scores_clamped(ctx, dy, q, k, v):
    return attention_backward(ctx, dy, q.clamp(-20, 20), k, v)


@mistake("rms", "wrong .*zeros")
def a_row_of_zeros_divides(ctx, dy, x, w):
    dx, dw = rms_backward(ctx, dy, x, w)
    return dx / (x.abs().sum(-1, keepdim=True) / x.abs().sum(-1, keepdim=True)).to(x.dtype), dw


# how autograd calls it


class AsksForTheWrongInput(function(silu_forward, silu_backward)):  # type: ignore[misc]
    @staticmethod
    def backward(ctx, dy):
        da, db = silu_backward(ctx, dy, *ctx.saved_tensors)
        return da if ctx.needs_input_grad[0] else None, db if ctx.needs_input_grad[0] else None


mistake("silu", "wrong for a gradient that only b asks for")(AsksForTheWrongInput)


class NeedsX(function(linear, linear_backward)):  # type: ignore[misc]
    @staticmethod
    def backward(ctx, dy):
        if not ctx.needs_input_grad[0]:
            return None, None
        return linear_backward(ctx, dy, *ctx.saved_tensors)


mistake("linear", "wrong for a gradient that only w asks for")(NeedsX)


@mistake("silu", "writes over dy")
def overwrites_dy(ctx, dy, a, b):
    da, db = silu_backward(ctx, dy, a, b)
    return dy.copy_(da), db


@mistake("ce", "writes over an input", FORWARD)
def overwrites_its_input(x, t):
    loss = cross_entropy(x, t)
    x.copy_(torch.softmax(x, -1))
    return loss


@mistake("rms", "writes over an input")
def overwrites_the_saved_input(ctx, dy, x, w):
    found = rms_backward(ctx, dy, x, w)
    x.detach().mul_(1.5)
    return found


class KeepsOnTheClass(function(silu_forward, silu_backward)):  # type: ignore[misc]
    kept: Any = None

    @staticmethod
    def forward(ctx, a, b):
        KeepsOnTheClass.kept = a, b
        return silu_forward(a, b)

    @staticmethod
    def backward(ctx, dy):
        return silu_backward(ctx, dy, *KeepsOnTheClass.kept)


mistake("silu", "wrong for two forwards before a backward")(KeepsOnTheClass)


class KeepsTheTensor(function(silu_forward, silu_backward)):  # type: ignore[misc]
    @staticmethod
    def forward(ctx, a, b):
        ctx.a, ctx.b = a, b
        return silu_forward(a, b)

    @staticmethod
    def backward(ctx, dy):
        return silu_backward(ctx, dy, ctx.a, ctx.b)


mistake("silu", "wrong for an input that changes between forward and backward")(KeepsTheTensor)


class AddsToItsBuffer(function(rms_forward, rms_backward)):  # type: ignore[misc]
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.room = torch.ones_like(w)
        return rms_forward(x, w)

    @staticmethod
    def backward(ctx, dy):
        dx, dw = rms_backward(ctx, dy, *ctx.saved_tensors)
        ctx.room += dw.to(ctx.room.dtype)
        return dx, ctx.room - 1


mistake("rms", "wrong for the second backward of a graph")(AddsToItsBuffer)


class Counts(function(gelu, gelu_backward)):  # type: ignore[misc]
    calls = 0

    @staticmethod
    def backward(ctx, dy):
        Counts.calls += 1
        return gelu_backward(ctx, dy, *ctx.saved_tensors) * (1 + 0.01 * (Counts.calls % 5 == 4))


mistake("gelu", "another result when called again|wrong for|the gradient")(Counts)


@mistake("softmax", "the gradient of x is wrong|another result")
def reads_memory_that_nobody_set(ctx, dy, x):
    found = torch.empty_like(x)
    found[:-1] = softmax_backward(ctx, dy, x)[:-1]
    return found


# rules


@mistake("silu", "raises")
def too_many_gradients(ctx, dy, a, b):
    return (*silu_backward(ctx, dy, a, b), dy)


@mistake("rms", "raises|the gradient")
def gradient_of_the_wrong_shape(ctx, dy, x, w):
    dx, dw = rms_backward(ctx, dy, x, w)
    return dx, dw[:-1]


@mistake("silu", "wrong shape", FORWARD)
def output_of_the_wrong_shape(a, b):
    return silu_forward(a, b)[..., None]


@mistake("silu", "returns something else", FORWARD)
def returns_nothing(a, b):
    silu_forward(a, b)


@mistake("silu", "raises", FORWARD)
def exits(a, b):
    raise SystemExit(3)


@mistake("two", "wrong number of outputs", FORWARD)
def one_output_only(x, w):
    return x * w


class DoesNotMaterialize(function(two, two_backward)):  # type: ignore[misc]
    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w)
        return two(x, w)

    @staticmethod
    def backward(ctx, dy, dz):
        x, w = ctx.saved_tensors
        return dy * w + dz, dy * x + dz


mistake("two", "raises for output")(DoesNotMaterialize)


WRONG["detaches"] = Mistake("gelu", "no gradient", lambda x: gelu(x.detach()))
WRONG["noise"] = Mistake(
    "gelu", "the result of the forward is wrong", lambda x: gelu(x) * (1 + 1e-3 * torch.rand_like(x))
)


@mistake("batch", "the gradient of x is wrong")
def statistics_as_constants(ctx, dy, x, w, b):
    _, dw, db = batch_backward(ctx, dy, x, w, b)
    return dy * w * torch.rsqrt(x.var(0, unbiased=False) + EPS), dw, db


@mistake("embed", "wrong for")
def only_256_tokens(ctx, dy, i, w):
    return embed_backward(ctx, dy[:256], i[:256], w)


@mistake("cumsum", "wrong for")
def scan_of_one_block(ctx, dy, x, w):
    dx, dw = shift_backward(ctx, dy, x, w)
    return dx * (x.shape[-1] <= 128), dw
