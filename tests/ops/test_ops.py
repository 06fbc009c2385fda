"""Each op against its definition, written here once more: as a loop, as another formula, or worked by hand."""

from __future__ import annotations

from math import cos, erf, exp, inf, log, nan, pi, sin, sqrt, tanh
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.ops import OPS
from tapeless.ops.angles.reference import llama3, rates
from tapeless.ops.attention.reference import pulls, weights
from tapeless.ops.contract import Array
from tapeless.ops.positions.reference import sinusoid
from tests.random_cases import cases

# Both sides sum the same few numbers of size 1 to 10 in different orders: some units in the last place of 100.
ROUNDING = 1e-13

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)
steady = cases(40)


def rng_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def empty(*shape: int) -> Array:
    """NaN: an element that is read before it is written, or never written, shows."""
    return np.full(shape, np.nan)


def close(found: Any, true: Any, bound: float = ROUNDING) -> None:
    found, true = np.asarray(found), np.asarray(true)
    assert found.shape == true.shape
    assert np.isfinite(found).all()
    assert np.abs(found - true).max() <= bound * max(1.0, np.abs(true).max())


# Embedding and positions


def test_embedding_looks_up() -> None:
    weight = np.arange(12.0).reshape(4, 3)
    y = empty(3, 3)
    OPS["embedding"].forward(y, np.array([2, 0, 2]), weight)
    assert y.tolist() == [[6, 7, 8], [0, 1, 2], [6, 7, 8]]


def test_embedding_adds_up_repeated_tokens() -> None:
    """Token 2 stands three times: the sum of its three rows, not the last of them. Token 1 stands nowhere: 0."""
    dy = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0], [8.0, 80.0]])
    dweight = empty(4, 2)
    OPS["embedding"].backward(dweight, dy, np.array([2, 2, 0, 2]))
    assert dweight.tolist() == [[4, 40], [0, 0], [11, 110], [0, 0]]


def test_positions_are_the_same_for_every_sequence() -> None:
    table, y = np.arange(10.0).reshape(5, 2), empty(2, 3, 2)
    OPS["positions"].forward(y, table)
    assert y.tolist() == [[[0, 1], [2, 3], [4, 5]]] * 2
    OPS["positions"].forward(y, table, add=frozenset({"y"}))
    assert y.tolist() == [[[0, 2], [4, 6], [8, 10]]] * 2


def test_positions_beyond_the_sequence_get_zero_gradient() -> None:
    dtable = empty(5, 2)
    dy = np.arange(12.0).reshape(2, 3, 2)
    OPS["positions"].backward(dtable, dy)
    assert dtable.tolist() == [[6, 8], [10, 12], [14, 16], [0, 0], [0, 0]]


@pytest.mark.parametrize("channels", [6, 7])
def test_sinusoid(channels: int) -> None:
    table = sinusoid(9, channels)
    assert table.shape == (9, channels)
    for t in range(9):
        for channel in range(channels):
            angle = t / 10000 ** (2 * (channel // 2) / channels)
            close(table[t, channel], cos(angle) if channel % 2 else sin(angle))


# Linear


def test_llama3_rates_by_their_wavelengths() -> None:
    """What turns within a quarter of the old context stays, what is longer than it slows down, and between they mix."""
    plain, found = rates(8, 1000.0), llama3(rates(8, 1000.0), 8.0, 1.0, 4.0, 100)
    kinds = set()
    for rate, slowed in zip(plain, found, strict=True):
        length = 2 * pi / rate
        if length < 100 / 4.0:
            kinds.add("stays")
            assert slowed == pytest.approx(rate, rel=1e-15)
        elif length > 100 / 1.0:
            kinds.add("slows")
            assert slowed == pytest.approx(rate / 8.0, rel=1e-15)
        else:
            kinds.add("mixes")
            smooth = (100 / length - 1.0) / (4.0 - 1.0)
            assert slowed == pytest.approx((1 - smooth) * rate / 8.0 + smooth * rate, rel=1e-14)
    assert len(kinds) == 3


def test_linear_by_hand() -> None:
    x, weight, bias = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 3.0]]), np.ones(3)
    y = empty(2, 3)
    OPS["linear"].forward(y, x, weight, bias)
    assert y.tolist() == [[2, 3, 9], [4, 5, 19]]
    OPS["linear"].forward(y, x, weight, None)
    assert y.tolist() == [[1, 2, 8], [3, 4, 18]]
    dx, dweight, dbias, dy = empty(2, 2), empty(2, 3), empty(3), np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    OPS["linear"].backward(dx, dweight, dbias, dy, x, weight)
    assert dx.tolist() == [[3, 3], [0, 2]]
    assert dweight.tolist() == [[1, 6, 1], [2, 8, 2]]
    assert dbias.tolist() == [1, 2, 1]


@steady
@given(seeds, sizes, sizes, sizes)
def test_linear_adjoint(seed: int, rows: int, channels: int, hidden: int) -> None:
    """⟨dy, u @ W⟩ = ⟨dx, u⟩, ⟨dy, x @ U⟩ = ⟨dweight, U⟩ and ⟨dy, 1·c⟩ = ⟨dbias, c⟩ for any u, U, c."""
    rng = rng_of(seed)
    x, weight, dy = (
        rng.normal(size=(rows, channels)),
        rng.normal(size=(channels, hidden)),
        rng.normal(size=(rows, hidden)),
    )
    dx, dweight, dbias = empty(rows, channels), empty(channels, hidden), empty(hidden)
    OPS["linear"].backward(dx, dweight, dbias, dy, x, weight)
    u, other, c = rng.normal(size=x.shape), rng.normal(size=weight.shape), rng.normal(size=hidden)
    close((dx * u).sum(), (dy * (u @ weight)).sum())
    close((dweight * other).sum(), (dy * (x @ other)).sum())
    close((dbias * c).sum(), (dy * c).sum())


# LayerNorm


def layernorm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    y, mean, rstd = empty(*x.shape), empty(len(x)), empty(len(x))
    OPS["layernorm"].forward(y, mean, rstd, x, weight, bias, eps)
    return y, mean, rstd


def layernorm_backward(dy: Array, x: Array, weight: Array, eps: float) -> tuple[Array, Array, Array]:
    _, mean, rstd = layernorm(x, weight, np.zeros_like(weight), eps)
    dx, dweight, dbias = empty(*x.shape), empty(x.shape[1]), empty(x.shape[1])
    OPS["layernorm"].backward(dx, dweight, dbias, dy, x, weight, mean, rstd)
    return dx, dweight, dbias


def test_layernorm_by_hand() -> None:
    """Mean 3 and variance 4 + ε = 4: deviations −1 and 1 after division by 2."""
    x = np.array([[1.0, 5.0, 1.0, 5.0]])
    y, mean, rstd = layernorm(x, np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.0, 10.0, 10.0]), 0.0)
    assert (mean.tolist(), rstd.tolist()) == ([3.0], [0.5])
    assert y.tolist() == [[-1, 2, 7, 14]]


def test_layernorm_backward_through_the_jacobian() -> None:
    """Row by row with the matrix ∂y_c/∂x_j itself: ∂x̂_c/∂x_j = (δ − 1/C)·rstd − (x_c − m)(x_j − m)·rstd³/C."""
    rng = rng_of(1)
    rows, channels, eps = 3, 5, 0.3
    x, weight, dy = (
        2 + rng.normal(size=(rows, channels)),
        rng.normal(1, 1, channels),
        rng.normal(size=(rows, channels)),
    )
    dx, dweight, dbias = layernorm_backward(dy, x, weight, eps)
    wanted_dweight, wanted_dbias = np.zeros(channels), np.zeros(channels)
    for r in range(rows):
        mean = sum(x[r]) / channels
        rstd = (sum((x[r] - mean) ** 2) / channels + eps) ** -0.5
        for j in range(channels):
            slopes = [
                ((c == j) - 1 / channels) * rstd - (x[r, c] - mean) * (x[r, j] - mean) * rstd**3 / channels
                for c in range(channels)
            ]
            close(dx[r, j], sum(dy[r, c] * weight[c] * slopes[c] for c in range(channels)))
            wanted_dweight[j] += dy[r, j] * (x[r, j] - mean) * rstd
            wanted_dbias[j] += dy[r, j]
    close(dweight, wanted_dweight)
    close(dbias, wanted_dbias)


@steady
@given(seeds, sizes, st.integers(2, 6))
def test_layernorm_dx_sums_to_zero(seed: int, rows: int, channels: int) -> None:
    """Shifting a row changes nothing, whatever dy is: Σ dx = 0, while Σ dy is anything."""
    rng = rng_of(seed)
    x, dy = rng.normal(size=(rows, channels)), 1 + rng.normal(size=(rows, channels))
    dx, _, _ = layernorm_backward(dy, x, rng.normal(size=channels), 1e-2)
    # Terms of size 10 (rstd at most 1/√ε) that cancel.
    assert np.abs(dx.sum(axis=1)).max() <= 10 * ROUNDING
    assert np.abs(dx).max() > 1e-6


@steady
@given(seeds, sizes, st.integers(2, 6), st.floats(-100, 100))
def test_layernorm_does_not_see_a_shift(seed: int, rows: int, channels: int, shift: float) -> None:
    rng = rng_of(seed)
    x, weight, bias = rng.normal(size=(rows, channels)), rng.normal(size=channels), rng.normal(size=channels)
    # Numbers of size 100 keep an absolute error of 1e-14, which rstd ≤ 10 magnifies.
    close(layernorm(x + shift, weight, bias, 1e-2)[0], layernorm(x, weight, bias, 1e-2)[0], 1e-11)


# Attention


def attention(q: Array, k: Array, v: Array, heads: int, causal: bool) -> tuple[Array, Array]:
    y, lse = empty(*q.shape), empty(len(q), heads, q.shape[1])
    OPS["attention"].forward(y, lse, q, k, v, None, causal, 0)
    return y, lse


def attention_backward(dy: Array, q: Array, k: Array, v: Array, heads: int, causal: bool) -> list[Array]:
    y, lse = attention(q, k, v, heads, causal)
    gradients = [empty(*array.shape) for array in (q, k, v)]
    OPS["attention"].backward(*gradients, dy, q, k, v, y, lse, None, causal, 0)
    return gradients


def looped_attention(q: Array, k: Array, v: Array, heads: int, causal: bool) -> tuple[Array, Array]:
    """One query, one head at a time, with nothing but sums. Causal: the queries are the last of the positions."""
    batch, queries, channels = q.shape
    keys, width = k.shape[1], channels // heads
    y, lse = np.zeros(q.shape), np.zeros((batch, heads, queries))
    for b in range(batch):
        for h in range(heads):
            mine = range(h * width, (h + 1) * width)
            for i in range(queries):
                seen = [j for j in range(keys) if not causal or j <= keys - queries + i]
                scores = [sum(q[b, i, c] * k[b, j, c] for c in mine) / sqrt(width) for j in seen]
                total = sum(exp(score) for score in scores)
                lse[b, h, i] = log(total)
                for c in mine:
                    y[b, i, c] = sum(exp(s) / total * v[b, j, c] for s, j in zip(scores, seen, strict=True))
    return y, lse


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (2, 5), (1, 6)])
def test_attention_against_loops(causal: bool, queries: int, keys: int) -> None:
    rng = rng_of(2)
    q, k, v = (rng.normal(size=(2, n, 6)) for n in (queries, keys, keys))
    y, lse = attention(q, k, v, 3, causal)
    wanted_y, wanted_lse = looped_attention(q, k, v, 3, causal)
    close(y, wanted_y)
    close(lse, wanted_lse)


@pytest.mark.parametrize("causal", [True, False])
def test_the_weights_that_attention_shows_are_those_it_computes_with(causal: bool) -> None:
    rng = rng_of(2)
    q, k, v = (rng.normal(size=(2, n, 6)) for n in (2, 5, 5))
    shown = weights(q, k, 3, None, causal, 0)
    assert shown.shape == (2, 3, 2, 5)
    together = shown @ v.reshape(2, 5, 3, 2).swapaxes(1, 2)
    close(together.swapaxes(1, 2).reshape(q.shape), looped_attention(q, k, v, 3, causal)[0])


@pytest.mark.parametrize("window", [0, 2])
def test_the_pulls_that_attention_shows_are_those_of_its_backward(window: int) -> None:
    """Three heads of queries share one of keys; two documents in a row. From p and ds come dq, dk and dv."""
    rng = rng_of(4)
    q, dy = rng.normal(size=(2, 2, 5, 6))
    k, v = rng.normal(size=(2, 2, 5, 2))
    starts = np.array([[0, 0, 0, 3, 3], [0, 1, 1, 1, 1]])
    p, ds = pulls(dy, q, k, v, 3, starts, True, window)
    y, lse = empty(2, 5, 6), empty(2, 3, 5)
    OPS["attention"].forward(y, lse, q, k, v, starts, True, window)
    dq, dk, dv = empty(2, 5, 6), empty(2, 5, 2), empty(2, 5, 2)
    OPS["attention"].backward(dq, dk, dv, dy, q, k, v, y, lse, starts, True, window)
    by_head = [each.reshape(2, 5, 3, 2).swapaxes(1, 2) for each in (q, dy)]
    close((ds @ k[:, None] / sqrt(2)).swapaxes(1, 2).reshape(q.shape), dq)
    close((ds.swapaxes(2, 3) @ by_head[0] / sqrt(2)).sum(axis=1), dk)
    close((p.swapaxes(2, 3) @ by_head[1]).sum(axis=1), dv)


def test_attention_more_queries_than_keys() -> None:
    rng = rng_of(3)
    q, k, v = (rng.normal(size=(2, n, 4)) for n in (5, 2, 2))
    close(attention(q, k, v, 2, False)[0], looped_attention(q, k, v, 2, False)[0])


def test_causal_attention_is_aligned_to_the_end() -> None:
    """With 2 queries over 5 keys, query 0 stands at position 3: it sees keys 0 to 3, and query 1 sees all."""
    rng = rng_of(4)
    q, k, v, dy = (rng.normal(size=(1, n, 4)) for n in (2, 5, 5, 2))
    before, _ = attention(q, k, v, 2, True)
    k[0, 4], v[0, 4] = 100.0, 100.0
    after, _ = attention(q, k, v, 2, True)
    assert np.array_equal(before[0, 0], after[0, 0])
    assert not np.array_equal(before[0, 1], after[0, 1])
    k[0, 4], v[0, 4] = 0.5, 0.5
    dy[0, 1] = 0  # what arrives at query 0 alone does not reach key 4
    _, dk, dv = attention_backward(dy, q, k, v, 2, True)
    assert not dk[0, 4].any()
    assert not dv[0, 4].any()
    assert dk[0, 3].all()
    assert dv[0, 3].all()


def test_attention_one_key_is_its_value() -> None:
    """A softmax over one is 1: y = v, the scores do not matter, and so q and k get no gradient."""
    rng = rng_of(5)
    q, k, v, dy = (rng.normal(size=(2, 1, 4)) for _ in range(4))
    close(attention(q, k, v, 2, True)[0], v)
    dq, dk, dv = attention_backward(dy, q, k, v, 2, True)
    close(dq, np.zeros_like(q))
    close(dk, np.zeros_like(k))
    close(dv, dy)


def test_attention_survives_large_scores() -> None:
    """exp(800) overflows; the largest score is subtracted first, and the masked ones are never looked at."""
    q, k, v = np.full((1, 3, 1), 40.0), np.array([[[20.0], [19.0], [-20.0]]]), np.array([[[1.0], [2.0], [3.0]]])
    y, lse = attention(q, k, v, 1, True)
    close(y, np.array([[[1.0]], [[1 + 1 / (1 + exp(40))]], [[1 + 1 / (1 + exp(40))]]]).reshape(1, 3, 1))
    close(lse, np.array([[[800.0, 800 + exp(-40), 800 + exp(-40)]]]))


def test_attention_backward_survives_saturation() -> None:
    """Scores of 1e20 are off by 1e4 as they are rounded. One key of a row has all the weight, and nothing moves it."""
    rng = rng_of(0)
    q, k = 1e10 * rng.normal(size=(2, 4, 6)), 1e10 * rng.normal(size=(2, 4, 6))
    v, dy = rng.normal(size=(2, 4, 6)), rng.normal(size=(2, 4, 6))
    for causal in (True, False):
        dq, dk, dv = attention_backward(dy, q, k, v, 2, causal)
        # What is left is the rounding of dy·y, some 1e-16, times keys and queries of 1e10.
        assert np.abs([dq, dk]).max() < 1e-4
        close(dv.sum(axis=1), dy.sum(axis=1))


@steady
@given(seeds, st.integers(1, 4), st.integers(0, 3), st.booleans(), st.floats(-5, 5))
def test_softmax_does_not_see_a_shift(seed: int, queries: int, more: int, causal: bool, shift: float) -> None:
    """The same vector added to every key moves all scores of a query alike: y stays, lse moves by q·u/√D."""
    rng = rng_of(seed)
    q, k, v = (rng.normal(size=(2, n, 4)) for n in (queries, queries + more, queries + more))
    u = shift * rng.normal(size=4)
    y, lse = attention(q, k, v, 2, causal)
    moved_y, moved_lse = attention(q, k + u, v, 2, causal)
    # Scores of size 50 keep an absolute error of 1e-14, and as many of them are summed as there are keys.
    close(moved_y, y, 1e-12)
    move = (q * u).reshape(2, queries, 2, 2).sum(axis=3).swapaxes(1, 2) / sqrt(2)
    close(moved_lse, lse + move, 1e-12)


@steady
@given(seeds, st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_attention_key_gradients_sum_to_zero(seed: int, queries: int, more: int, causal: bool) -> None:
    """From the invariance above: a common shift of the keys has no effect, so Σ_j dk_j = 0."""
    rng = rng_of(seed)
    q, k, v, dy = (rng.normal(size=(2, n, 4)) for n in (queries, queries + more, queries + more, queries))
    _, dk, _ = attention_backward(dy, q, k, v, 2, causal)
    assert np.abs(dk.sum(axis=1)).max() <= 100 * ROUNDING


# Activations and what passes


def test_gelu_by_its_formula() -> None:
    x = np.array([[-3.0, -0.5, 0.0, 1.0, 2.5]])
    y = empty(1, 5)
    OPS["gelu"].forward(y, x)
    close(y[0], [0.5 * a * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 * a**3))) for a in x[0]])
    exact = np.array([0.5 * a * (1 + erf(a / sqrt(2))) for a in x[0]])
    assert 1e-5 < np.abs(y[0] - exact).max() < 5e-4  # the tanh form, not the erf form


@pytest.mark.parametrize("name", ["gelu", "tanh", "relu"])
def test_activation_slopes_by_differences(name: str) -> None:
    """A central difference of step 1e-5: its own error is the third derivative's 1e-10, and rounding's 1e-11."""
    x = np.array([[-2.0, -0.7, 0.3, 1.9]])
    up, down, dx, step = empty(1, 4), empty(1, 4), empty(1, 4), 1e-5
    OPS[name].forward(up, x + step)
    OPS[name].forward(down, x - step)
    dy = np.array([[1.0, -2.0, 3.0, 0.5]])
    OPS[name].backward(dx, dy, x)
    close(dx, dy * (up - down) / (2 * step), 1e-9)


def test_relu_and_its_kink() -> None:
    x, y, dx = np.array([[-1.0, 0.0, 2.0]]), empty(1, 3), empty(1, 3)
    OPS["relu"].forward(y, x)
    assert y.tolist() == [[0, 0, 2]]
    OPS["relu"].backward(dx, np.array([[5.0, 6.0, 7.0]]), x)
    assert dx.tolist() == [[0, 0, 7]]


def test_tanh_by_hand() -> None:
    x, y, dx = np.array([[0.0, log(2) / 2]]), empty(1, 2), empty(1, 2)
    OPS["tanh"].forward(y, x)
    close(y, [[0.0, 1 / 3]])
    OPS["tanh"].backward(dx, np.array([[2.0, 9.0]]), x)
    close(dx, [[2.0, 8.0]])


def test_residual() -> None:
    y = empty(1, 2)
    OPS["residual"].forward(y, np.array([[1.0, 2.0]]), np.array([[10.0, 20.0]]))
    assert y.tolist() == [[11, 22]]


def test_last_position() -> None:
    x, y, dx = np.arange(12.0).reshape(2, 3, 2), empty(2, 1, 2), empty(2, 3, 2)
    OPS["last_position"].forward(y, x)
    assert y.tolist() == [[[4, 5]], [[10, 11]]]
    OPS["last_position"].backward(dx, np.array([[[1.0, 2.0]], [[3.0, 4.0]]]))
    assert dx.tolist() == [[[0, 0], [0, 0], [1, 2]], [[0, 0], [0, 0], [3, 4]]]


# Losses and readouts


def classifier(x: Array, weight: Array, targets: Array, chunk: int) -> tuple[float, Array, Array, float]:
    """The loss and gradients of the backward, and the loss of the forward."""
    count = np.array([np.count_nonzero(targets >= 0)], float)
    loss, dx, dweight, alone = empty(1), empty(*x.shape), empty(*weight.shape), empty(1)
    logits = empty(chunk, len(weight))
    OPS["classifier"].backward(loss, dx, dweight, logits, x, weight, targets, count)
    OPS["classifier"].forward(alone, empty(chunk, len(weight)), x, weight, targets, count)
    return loss[0], dx, dweight, alone[0]


def test_classifier_by_hand() -> None:
    """Scores 0 and log 3, so p = ¼, ¾; the target is the first: loss = log 4, dz = −¾, ¾."""
    loss, dx, dweight, alone = classifier(np.array([[log(3.0)]]), np.array([[0.0], [1.0]]), np.array([0]), 1)
    close(loss, log(4))
    close(alone, log(4))
    close(dx, [[0.75]])
    close(dweight, [[-0.75 * log(3)], [0.75 * log(3)]])


def test_classifier_against_loops() -> None:
    rng = rng_of(6)
    x, weight, targets = rng.normal(size=(7, 3)), rng.normal(size=(5, 3)), np.array([4, -1, 0, 2, 2, -1, 1])
    wanted, wanted_dx, wanted_dweight = 0.0, np.zeros_like(x), np.zeros_like(weight)
    for row, target in zip(range(7), targets, strict=True):
        if target < 0:
            continue
        scores = [sum(x[row] * weight[word]) for word in range(5)]
        total = sum(exp(score) for score in scores)
        wanted -= log(exp(scores[target]) / total) / 5
        for word in range(5):
            pull = (exp(scores[word]) / total - (word == target)) / 5
            wanted_dx[row] += pull * weight[word]
            wanted_dweight[word] += pull * x[row]
    loss, dx, dweight, alone = classifier(x, weight, targets, 3)
    close(loss, wanted)
    close(alone, wanted)
    close(dx, wanted_dx)
    close(dweight, wanted_dweight)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 6])
def test_classifier_does_not_depend_on_the_chunk(chunk: int) -> None:
    """7 rows in chunks that do not divide them (and 1, which does), against all at once."""
    rng = rng_of(7)
    x, weight, targets = rng.normal(size=(7, 3)), rng.normal(size=(5, 3)), np.array([4, -1, 0, 2, 2, -1, 1])
    for found, true in zip(classifier(x, weight, targets, chunk), classifier(x, weight, targets, 7), strict=True):
        close(found, true)


def test_ignored_rows_get_no_gradient_and_do_not_count() -> None:
    rng = rng_of(8)
    x, weight, targets = rng.normal(size=(4, 3)), rng.normal(size=(5, 3)), np.array([1, -1, 3, -1])
    loss, dx, dweight, _ = classifier(x, weight, targets, 3)
    assert dx[[1, 3]].tolist() == np.zeros((2, 3)).tolist()
    assert dx[[0, 2]].all()
    kept = classifier(x[[0, 2]], weight, targets[[0, 2]], 2)
    close(loss, kept[0])
    close(dx[[0, 2]], kept[1])
    close(dweight, kept[2])


def test_classifier_survives_large_scores() -> None:
    """No log(p + ε), no overflow: the loss of a hopeless prediction is the distance of its scores."""
    loss, dx, _, alone = classifier(np.array([[1000.0]]), np.array([[1.0], [-1.0]]), np.array([1]), 1)
    close(loss, 2000.0)
    close(alone, 2000.0)
    close(dx, [[2.0]])


@steady
@given(seeds, st.integers(1, 6), st.floats(-50, 50))
def test_cross_entropy_does_not_see_a_shift(seed: int, rows: int, shift: float) -> None:
    """The same vector added to every word's row of the table moves all scores of a row alike."""
    rng = rng_of(seed)
    x, weight, targets = rng.normal(size=(rows, 3)), rng.normal(size=(5, 3)), rng.integers(0, 5, rows)
    plain, moved = classifier(x, weight, targets, 2), classifier(x, weight + shift, targets, 2)
    # Scores of size 500 keep an absolute error of 1e-13.
    close(moved[0], plain[0], 1e-11)
    close(moved[2], plain[2], 1e-11)
    assert np.abs(plain[2].sum(axis=0)).max() <= 100 * ROUNDING  # hence Σ_v dweight_v = 0


def test_squared_error_by_hand() -> None:
    """Differences (1, 2) and (−3, 0), one row ignored: (1 + 4 + 9) / (2 rows · 2 channels)."""
    x = np.array([[1.0, 2.0], [7.0, 7.0], [2.0, 5.0]])
    table, targets = np.array([[5.0, 5.0], [0.0, 0.0]]), np.array([1, -1, 0])
    loss, dx, alone, count = empty(1), empty(3, 2), empty(1), np.array([2.0])
    OPS["squared_error"].backward(loss, dx, x, table, targets, count)
    OPS["squared_error"].forward(alone, x, table, targets, count)
    assert loss.tolist() == alone.tolist() == [3.5]
    assert dx.tolist() == [[0.5, 1.0], [0.0, 0.0], [-1.5, 0.0]]


def test_squared_error_gives_its_table_no_gradient() -> None:
    """There is no such output, and the complex step does not enter through the target either."""
    op = OPS["squared_error"]
    assert "dtable" not in op.SPEC.backward.writes
    example = op.example(rng_of(0))
    loss = np.full(1, np.nan, complex)
    op.forward(loss, example["x"].astype(complex), example["table"] + 1j, example["targets"], example["count"])
    assert loss[0].imag == 0
    op.forward(loss, example["x"] + 1e-30j, example["table"] + 0j, example["targets"], example["count"])
    assert loss[0].imag != 0


def test_unembed_is_the_classifiers_product() -> None:
    rng = rng_of(9)
    x, weight, dy = rng.normal(size=(4, 3)), rng.normal(size=(5, 3)), rng.normal(size=(4, 5))
    y, dx, dweight = empty(4, 5), empty(4, 3), empty(5, 3)
    OPS["unembed"].forward(y, x, weight)
    OPS["unembed"].backward(dx, dweight, dy, x, weight)
    for r in range(4):
        for v in range(5):
            close(y[r, v], sum(x[r, c] * weight[v, c] for c in range(3)))
    close(dx, [[sum(dy[r, v] * weight[v, c] for v in range(5)) for c in range(3)] for r in range(4)])
    close(dweight, [[sum(dy[r, v] * x[r, c] for r in range(4)) for c in range(3)] for v in range(5)])


def test_proximity_is_minus_the_squared_distance() -> None:
    rng = rng_of(10)
    x, weight = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    y = empty(4, 5)
    OPS["proximity"].forward(y, x, weight)
    close(y, [[-sum((x[r] - weight[v]) ** 2) for v in range(5)] for r in range(4)])
    OPS["proximity"].forward(y, weight[:4], weight)
    assert y.argmax(axis=1).tolist() == [0, 1, 2, 3]


# Linearity: every backward that gets a dy is linear in it


LINEAR_IN_DY = [name for name, op in OPS.items() if op.SPEC.backward is not None and not op.SPEC.fused]


def nan_for(name: str, example: dict[str, Any], argument: str) -> Array:
    """Memory for an argument of an op, in the shape that its example gives it."""
    spec = OPS[name].SPEC
    arrays = {k: v for k, v in example.items() if k in spec.shapes}
    dims = spec.dims({k: v if isinstance(v, tuple) else v.shape for k, v in arrays.items()})
    return empty(*(int(letter) if letter.isdigit() else dims[letter] for letter in spec.letters(argument)))


def gradients_for(name: str, dy: Array) -> list[Array]:
    """The backward of an op on its own example, for a dy of our choice."""
    op = OPS[name]
    spec, example = op.SPEC, op.example(rng_of(11))
    outputs = {output: nan_for(name, example, output) for output in spec.forward.writes}
    op.forward(
        *outputs.values(),
        *(example.get(read) for read in spec.forward.reads),
        *(example[scalar] for scalar in spec.forward.scalars),
    )
    known = example | outputs | {"dy": dy}
    gradients = [nan_for(name, example, gradient) for gradient in spec.backward.writes]
    op.backward(
        *gradients,
        *(known.get(read) for read in spec.backward.reads),
        *(example[scalar] for scalar in spec.backward.scalars),
    )
    return gradients


def dy_shape(name: str) -> tuple[int, ...]:
    return nan_for(name, OPS[name].example(rng_of(11)), "dy").shape


@pytest.mark.parametrize("name", LINEAR_IN_DY)
@steady
@given(seeds, st.floats(-3, 3), st.floats(-3, 3))
def test_backward_is_linear_in_dy(name: str, seed: int, a: float, b: float) -> None:
    rng = rng_of(seed)
    one, two = rng.normal(size=dy_shape(name)), rng.normal(size=dy_shape(name))
    mixed = gradients_for(name, a * one + b * two)
    for found, first, second in zip(mixed, gradients_for(name, one), gradients_for(name, two), strict=True):
        close(found, a * first + b * second)
        assert first.any()


@pytest.mark.parametrize("name", ["embedding", "positions", "last_position"])
@steady
@given(seeds)
def test_gathers_and_scatters_are_adjoint(name: str, seed: int) -> None:
    """These forwards are linear in their one input u: ⟨dy, forward(u)⟩ = ⟨backward(dy), u⟩."""
    rng, op = rng_of(seed), OPS[name]
    example = op.example(rng_of(11))
    wanted = next(g[1:] for g in op.SPEC.backward.writes)
    u, dy = rng.normal(size=example[wanted].shape), rng.normal(size=dy_shape(name))
    y = empty(*dy.shape)
    op.forward(y, *(u if read == wanted else example[read] for read in op.SPEC.forward.reads))
    (gradient,) = gradients_for(name, dy)
    close((gradient * u).sum(), (dy * y).sum())


# The whole gradient


def test_cached_attention_of_scores_that_no_exp_can_hold() -> None:
    """1,000 and −1,000, in either order: the value of the larger one alone."""
    keys, values = np.array([1000.0, -1000.0]).reshape(1, 1, 2, 1), np.array([3.0, 5.0]).reshape(1, 1, 2, 1)
    for sign, wanted in ((1.0, 3.0), (-1.0, 5.0)):
        y = empty(1, 1, 1)
        OPS["cached_attention"].forward(y, np.full((1, 1, 1), sign), keys, values, np.array([1]), 0)
        close(y, np.full((1, 1, 1), wanted))


def test_count_draws_counts() -> None:
    draws = np.array([4])
    OPS["count_draws"].forward(draws)
    OPS["count_draws"].forward(draws)
    assert draws.tolist() == [6]


def test_zero() -> None:
    y = empty(7)
    OPS["zero"].forward(y)
    assert not y.any()


def one(value: float) -> Array:
    return np.array([value])


def test_global_norm() -> None:
    norm, norms = empty(1), empty(2)
    OPS["global_norm"].forward(norm, norms, np.array([3.0, 0.0, -4.0, 12.0]), (0, 3))
    assert norm.tolist() == [13.0]
    assert norms.tolist() == [5.0, 12.0]


def test_global_norm_is_summed_in_float64() -> None:
    """In float32 the squares of 1e30 would be infinite."""
    norm, norms = empty(1), empty(2)
    OPS["global_norm"].forward(norm, norms, np.array([3e30, 4e30], np.float32), (0, 1))
    close(norm / 5e30, [1.0], 1e-6)  # the inputs themselves are only float32
    close(norms / 1e30, [3.0, 4.0], 1e-6)


@pytest.mark.parametrize(
    ("norm", "limit", "scale"),
    [(2.5, 1.0, 0.4), (1.0, 1.0, 1.0), (0.5, 1.0, 1.0), (2.5, inf, 1.0), (0.0, 1.0, 1.0)],
)
def test_clip(norm: float, limit: float, scale: float) -> None:
    """The document's example: a norm of 2.5 under a limit of 1 scales everything by 0.4. Below, nothing does."""
    found, finite = empty(1), np.full(1, -1)
    OPS["clip"].forward(found, finite, one(1.0), one(norm), one(limit), one(1e19))
    assert (found.tolist(), finite.tolist()) == ([scale], [1])


@pytest.mark.parametrize(
    ("loss", "norm", "limit", "finite"),
    [
        (1.0, 2e19, inf, 0),
        (1.0, 2e19, 1.0, 1),
        (1.0, 2e19, 1e19, 0),
        (1.0, inf, 1.0, 0),
        (1.0, nan, 1.0, 0),
        (1.0, inf, inf, 0),
        (inf, 1.0, 1.0, 0),
        (nan, 1.0, 1.0, 0),
        (1.0, 9e18, inf, 1),
    ],
)
def test_clip_says_whether_the_step_may_be_taken(loss: float, norm: float, limit: float, finite: int) -> None:
    """What counts is the gradient as the update will see it, clipped, and the loss, whatever its gradient."""
    found = np.full(1, -1)
    OPS["clip"].forward(empty(1), found, one(loss), one(norm), one(limit), one(1e19))
    assert found.tolist() == [finite]


def test_clipping_keeps_the_direction() -> None:
    gradients, norm, scale, finite = np.array([1.5, -2.0]), empty(1), empty(1), np.full(1, -1)
    OPS["global_norm"].forward(norm, empty(1), gradients, (0,))
    OPS["clip"].forward(scale, finite, one(1.0), norm, one(1.0), one(1e19))
    close(scale[0] * gradients, [0.6, -0.8])


# Optimizers, one step by hand


YES = np.array([1])


def test_sgd_by_hand() -> None:
    weights, step, moved, norms = np.array([1.0, 2.0]), np.array([4]), empty(2), empty(2)
    OPS["sgd"].forward(weights, None, step, moved, norms, np.array([10.0, -20.0]), one(0.5), YES, one(0.1), (0, 1))
    close(weights, [0.5, 3.0])
    close(moved, [0.5, 1.0])
    close(norms, [1.0, 2.0])
    assert step.tolist() == [5]


def test_momentum_by_hand() -> None:
    """m = 0.9·m + ½·gradient, then a step of 0.1·m; the second step builds on the first."""
    weights, m, step, moved, norms = np.array([1.0, 2.0]), np.array([1.0, 0.0]), np.array([0]), empty(2), empty(2)
    gradients = np.array([10.0, -20.0])
    for m_wanted, weights_wanted in (([5.9, -10.0], [0.41, 3.0]), ([10.31, -19.0], [-0.621, 4.9])):
        before = np.abs(weights)
        OPS["momentum"].forward(weights, m, None, step, moved, norms, gradients, one(0.5), YES, one(0.1), 0.9, (0, 1))
        close(m, m_wanted)
        close(weights, weights_wanted)
        close(moved, 0.1 * np.abs(m_wanted))
        close(norms, before)
    assert step.tolist() == [2]


@pytest.mark.parametrize("op", ["sgd", "momentum", "adamw", "muon"])
def test_an_update_that_is_not_finite_changes_nothing(op: str) -> None:
    """Neither weights nor moments nor the number of the step; and the sizes are told all the same."""
    adam = (0.9, 0.99, 1e-8, 0.5, ((0, 2),))
    states = {"sgd": 0, "momentum": 1, "adamw": 2, "muon": 2}[op]
    scalars = {"sgd": (), "momentum": (0.9,), "adamw": adam, "muon": (0.95, *adam, ())}[op]
    arrays, step, moved, norms = [np.array([3.0, 4.0]) for _ in range(1 + states)], np.array([7]), empty(1), empty(1)
    read = (np.array([nan, 1.0]), one(1.0), np.array([0]), one(0.1))
    OPS[op].forward(*arrays, None, step, moved, norms, *read, *scalars, (0,))
    assert [array.tolist() for array in arrays] == [[3.0, 4.0]] * (1 + states)
    assert (step.tolist(), moved.tolist(), norms.tolist()) == ([7], [0.0], [5.0])


def test_adamw_moves_by_step_and_decay() -> None:
    """From zero state the step is lr; the decay takes lr·decay of the weight besides: 0.1 + 0.1·0.5·4, and 0.1."""
    weights, moved, norms = np.array([4.0, -3.0]), empty(2), empty(2)
    adamw(weights, np.zeros(2), np.zeros(2), np.array([7.0, 7.0]), 1, 0.5, decayed=((0, 1),), moved=moved, norms=norms)
    close(weights, [3.7, -3.1])
    close(moved, [0.3, 0.1])
    close(norms, [4.0, 3.0])


@pytest.mark.parametrize("sections", [(), (1,), (0, 0), (0, 4), (0, 3, 2), (0,)])
def test_sections_that_do_not_fit_are_refused(sections: tuple[int, ...]) -> None:
    refusal = OPS["global_norm"].SPEC.refuse({"N": 4, "L": 2}, {"sections": sections})
    assert refusal is not None
    assert "sections must begin at 0" in refusal
    assert OPS["global_norm"].SPEC.refuse({"N": 4, "L": 2}, {"sections": (0, 3)}) is None


def adamw(weights: Array, m: Array, v: Array, g: Array, step: int, decay: float = 0.0, **more: Any) -> None:
    """Update number `step`."""
    made = np.array([step - 1])
    lengths = {"moved": empty(len(weights)), "norms": empty(len(weights))}
    options: dict[str, Any] = {"scale": 1.0, "lr": 0.1, "eps": 0.0, "decayed": (), **lengths} | more
    OPS["adamw"].forward(
        weights,
        m,
        v,
        None,
        made,
        options["moved"],
        options["norms"],
        g,
        one(options["scale"]),
        YES,
        one(options["lr"]),
        0.9,
        0.99,
        options["eps"],
        decay,
        options["decayed"],
        tuple(range(len(weights))),
    )
    assert made.tolist() == [step]


def test_a_decay_of_part_of_a_matrix_is_refused() -> None:
    spec, dims = OPS["muon"].SPEC, {"N": 12, "U": 4, "L": 1}
    given: dict[str, Any] = {"matrices": ((2, 2, (4,)),), "sections": (0,)}
    for decayed in (((2, 10),), ((0, 12),), ((0, 2), (10, 12)), ()):
        assert spec.refuse(dims, given | {"decayed": decayed}) is None
    for decayed in (((0, 9),), ((3, 12),), ((4, 6),)):
        assert "only a part of the matrices" in str(spec.refuse(dims, given | {"decayed": decayed}))


def test_adam_first_step_is_the_sign() -> None:
    """From zero state both corrections cancel exactly: m̂ = g, v̂ = g², so each weight moves by lr."""
    weights, m, v = np.array([1.0, 1.0]), np.zeros(2), np.zeros(2)
    adamw(weights, m, v, np.array([4.0, -0.25]), 1)
    close(m, [0.4, -0.025])
    close(v, [0.16, 0.000625])
    close(weights, [0.9, 1.1])


def test_adam_second_step_by_hand() -> None:
    """g = 1, then 3: m = 0.1, 0.39; v = 0.01, 0.0999; divided by 1 − 0.9² = 0.19 and 1 − 0.99² = 0.0199."""
    weights, m, v = one(0.0), one(0.0), one(0.0)
    adamw(weights, m, v, one(1.0), 1)
    adamw(weights, m, v, one(3.0), 2)
    close(m, [0.39])
    close(v, [0.0999])
    close(weights, [-0.1 - 0.1 * (0.39 / 0.19) / sqrt(0.0999 / 0.0199)])


def test_adam_scale_and_eps() -> None:
    """The gradient enters as scale·gradient, in m and in v; eps stands beside the corrected root."""
    weights, m, v = one(0.0), one(0.0), one(0.0)
    adamw(weights, m, v, one(8.0), 1, scale=0.25, eps=3.0)
    close(m, [0.2])
    close(v, [0.04])
    close(weights, [-0.1 * 2 / (2 + 3)])


def test_adamw_decays_its_spans_only() -> None:
    """No gradient, so nothing moves but what decays: by the factor 1 − lr·decay."""
    weights = np.full(6, 2.0)
    adamw(weights, np.zeros(6), np.zeros(6), np.zeros(6), 1, 0.5, decayed=((1, 3), (5, 6)), eps=1e-8)
    close(weights, [2.0, 1.9, 1.9, 2.0, 2.0, 1.9])


def test_adamw_decay_is_decoupled() -> None:
    """It does not pass through m and v, and comes before the step, which it does not change."""
    decayed, plain = np.array([2.0]), np.array([2.0])
    states = [(np.zeros(1), np.zeros(1)) for _ in range(2)]
    adamw(decayed, *states[0], one(4.0), 1, 0.5, decayed=((0, 1),))
    adamw(plain, *states[1], one(4.0), 1)
    close(decayed, [2.0 * 0.95 - 0.1])
    close(plain, [2.0 - 0.1])
    assert np.array_equal(states[0], states[1])
