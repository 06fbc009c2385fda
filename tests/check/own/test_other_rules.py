"""What the rules by which kernels are accepted elsewhere let pass, and `check.op` does not.

Each rule is written down from what the project publishes (its comparison, its tolerance); beside it stands a mistake
that satisfies it.
"""

from __future__ import annotations

import numpy as np
import pytest

from tapeless.check import op

RNG = np.random.default_rng(11)


def silu(a, b):
    return a / (1 + np.exp(-a)) * b


def silu_backward(dy, a, b):
    s = 1 / (1 + np.exp(-a))
    return dy * b * s * (1 + a * (1 - s)), dy * a * s


def close(found, true, atol, rtol):
    """allclose, as NumPy and torch have it."""
    return bool((np.abs(found - true) <= atol + rtol * np.abs(true)).all())


def llm_c(found, true):
    """dev/cuda/common.h, validate_result: a fault is |difference| > 1e-4 + ε·|true|, which no NaN is."""
    return not (np.abs(true - found) > 1e-4 + 2.0**-23 * np.abs(true)).any()


def liger_swiglu(found, true):
    """test_swiglu.py in float32, as first published: atol 1, rtol 1e-5."""
    return close(found, true, 1.0, 1e-5)


def unsloth_rmsnorm(found, true):
    """rms_layernorm.py: the largest of (true − found), not of its size, at most 0.05."""
    return bool((true - found).max() <= 0.05)


def xformers_swiglu(found, true):
    """test_swiglu.py, backward in bfloat16: atol 4, rtol 0.04; every size a multiple of 8."""
    return close(found, true, 4.0, 4e-2)


def nan_in_one_place(da, db):
    da.reshape(-1)[-1] = np.nan


def one_term_less(da, db):
    da *= 0.7


def too_large(da, db):
    np.copyto(da, 3 * np.abs(da))


def rest_of_a_block_is_zero(da, db):
    whole = da.shape[-1] // 8 * 8
    da[..., whole:] = 0


@pytest.mark.parametrize(
    ("rule", "mistake", "size"),
    [
        (llm_c, nan_in_one_place, (4, 16)),
        (liger_swiglu, one_term_less, (2, 8)),
        (unsloth_rmsnorm, too_large, (4, 16)),
        (xformers_swiglu, rest_of_a_block_is_zero, (8, 16)),
    ],
)
def test_a_mistake_that_a_rule_lets_pass(rule, mistake, size):
    a, b, dy = (RNG.normal(size=size).astype(np.float32) for _ in range(3))

    def kernel(da, db, dy, a, b):
        da[...], db[...] = silu_backward(dy, a, b)
        mistake(da, db)

    found = [np.empty_like(a), np.empty_like(a)]
    kernel(found[0], found[1], dy, a, b)
    true = silu_backward(dy.astype(np.float64), a.astype(np.float64), b.astype(np.float64))
    assert all(rule(one, other) for one, other in zip(found, true, strict=True))
    report = op(silu, silu_backward, (a, b), kernel=(None, kernel), first=True)
    assert report.verdict == "wrong"
    assert report.wrong[0].sentence.startswith("da is "), report
