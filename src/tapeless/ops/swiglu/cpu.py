"""SwiGLU on the CPU. gate and up are mostly columns of one product: rows lie any distance apart."""

from __future__ import annotations

from numba import float32, prange

from tapeless.kernels.cpu import Kernel, exp, inlined, strided
from tapeless.kernels.native import Native

# exp of it is 2e38, nearly the largest float32. Beyond it on either side the sigmoid of the other sign is less than a
# float32 that keeps its digits.
FAR = float32(88)


def forward(y, gate, up) -> list[Native]:
    return [SWIGLU.bind(y.size, *y.shape, *strided(y, gate, up))]


def backward(dgate, dup, dy, gate, up) -> list[Native]:
    return [SWIGLU_BACKWARD.bind(dy.size, *dy.shape, *strided(dgate, dup, dy, gate, up))]


def swiglu(rows, width, y, y_step, gate, gate_step, up, up_step):
    for r in prange(rows):
        a, b, c = r * y_step, r * gate_step, r * up_step
        _row(y[a : a + width], gate[b : b + width], up[c : c + width])


@inlined
def _within(x):
    """x where a float32 sees the sigmoid change, else the end of that range. NaN stays NaN."""
    x = -FAR if x < -FAR else x
    return FAR if x > FAR else x


@inlined
def _row(y, gate, up):
    """Far below, gate · s is as good as 0, but of −∞ NaN, as in the reference: it is noticed."""
    for i in range(y.size):
        s = float32(1) / (float32(1) + exp(-_within(gate[i])))
        y[i] = ((gate[i] * float32(0)) if gate[i] < -FAR else gate[i] * s) * up[i]


def swiglu_backward(rows, width, dgate, dgate_step, dup, dup_step, dy, dy_step, gate, gate_step, up, up_step):
    for r in prange(rows):
        a, b, c, d, e = r * dgate_step, r * dup_step, r * dy_step, r * gate_step, r * up_step
        _row_backward(
            dgate[a : a + width], dup[b : b + width], dy[c : c + width], gate[d : d + width], up[e : e + width]
        )


@inlined
def _row_backward(dgate, dup, dy, gate, up):
    """e may be 2e38 and s as small: e · s, which is 1 − s, comes first."""
    for i in range(dy.size):
        z = _within(gate[i])
        e = exp(-z)
        s = float32(1) / (float32(1) + e)
        dgate[i] = dy[i] * up[i] * (s * (float32(1) + z * (e * s)))
        dup[i] = dy[i] * ((gate[i] * float32(0)) if gate[i] < -FAR else gate[i] * s)


SWIGLU, SWIGLU_BACKWARD = Kernel(swiglu), Kernel(swiglu_backward)
