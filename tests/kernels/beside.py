"""Run as a program: other libraries and Tapeless in one process, in the order of the arguments.

Each argument is a library that computes, or `model`, which makes one and lets it step; from then on it steps once more
after everybody else. What all of them computed goes to the file named first.
"""

import sys
from typing import Any

import numpy as np

SIZES = (3, 160)
RNG = np.random.default_rng(0)
MATRICES = {(size, kind): RNG.normal(size=(size, size)).astype(kind) for size in SIZES for kind in ("f4", "f8")}
TOKENS = RNG.integers(0, 1100, (2, 71))
results: dict[str, Any] = {}


def torch():
    import torch

    for (size, kind), matrix in MATRICES.items():
        a = torch.from_numpy(matrix)
        stable = a @ a.T + size * torch.eye(size, dtype=a.dtype)
        yield f"product {size} {kind}", (a @ a).numpy()
        yield f"batched {size} {kind}", torch.bmm(a.expand(3, size, size), a.expand(3, size, size)).numpy()
        yield f"vector {size} {kind}", (a @ a[0]).numpy()
        yield f"solve {size} {kind}", torch.linalg.solve(stable, a).numpy()
        yield f"eigenvalues {size} {kind}", torch.linalg.eigvalsh(stable).numpy()
        yield f"singular values {size} {kind}", torch.linalg.svdvals(a).numpy()
        yield f"fft {size} {kind}", torch.fft.fft2(a).numpy()
        yield f"exp {size} {kind}", torch.exp(a).numpy()
        yield f"sum {size} {kind}", a.sum(0).numpy()
    yield "parallel sum", torch.ones(1_000_000).cumsum(0)[-1:].numpy()


def numpy():
    for (size, kind), a in MATRICES.items():
        stable = a @ a.T + size * np.eye(size, dtype=a.dtype)
        yield f"product {size} {kind}", a @ a
        yield f"solve {size} {kind}", np.linalg.solve(stable, a)
        yield f"eigenvalues {size} {kind}", np.linalg.eigvalsh(stable)


def scipy():
    import scipy.linalg

    for (size, kind), a in MATRICES.items():
        yield f"product {size} {kind}", scipy.linalg.blas.get_blas_funcs("gemm", (a,))(1.0, a, a)
        yield f"factors {size} {kind}", scipy.linalg.lu_factor(a + size * np.eye(size, dtype=a.dtype))[0]
        yield f"inverse {size} {kind}", scipy.linalg.inv(a @ a.T + size * np.eye(size, dtype=a.dtype))


def sklearn():
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.ensemble import HistGradientBoostingRegressor

    for (size, kind), a in MATRICES.items():
        if size > 3:
            yield f"PCA {size} {kind}", np.abs(PCA(3, svd_solver="full").fit_transform(a))
            centres = KMeans(3, n_init=1, init=a[:3], max_iter=2).fit(a).cluster_centers_  # its loops are OpenMP's
            yield f"clusters {size} {kind}", centres
    table = MATRICES[160, "f8"]
    yield "trees", HistGradientBoostingRegressor(max_iter=3).fit(table, table[:, 0]).predict(table)


made: list[Any] = []


def model():
    """Steps of a training, whose losses and gradients are what they are in a process of their own."""
    if not made:
        import tapeless

        made.append(tapeless.Model("gpt2-4x256", batch=2, time=70, layers=1, vocab=1100, context=80, backend="cpu"))
    for step in range(2):
        yield f"loss {step}", np.array(made[0].forward_backward(TOKENS[:, :-1], TOKENS[:, 1:]))
    for name, gradient in made[0].grads.items():
        yield name, gradient.copy()
    scores = made[0].logits(TOKENS[:, :70])
    yield "logits", scores


def record(name):
    for what, array in globals()[name]():
        before = results.setdefault(f"{name}: {what}", array)
        tolerance = 1e-5 if array.dtype in (np.float32, np.complex64) else 1e-10
        if np.abs(array - before).max() > tolerance * np.abs(before).max():
            raise SystemExit(f"{name}: {what} changed by {np.abs(array - before).max()}")


for _ in range(2):  # everybody once more after everybody has been here
    for name in sys.argv[2:]:
        record(name)
        if made:
            record("model")
np.savez(sys.argv[1], **results)
