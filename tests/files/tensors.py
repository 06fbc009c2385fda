"""Arrays of every type and layout."""

from math import nan, pi

import numpy as np

DTYPES = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", ">f4", ">i8")


def every_kind():
    rng = np.random.default_rng(0)
    kinds = {f"of {dtype}": (100 * rng.random((5, 7))).astype(dtype) for dtype in DTYPES}
    grid = rng.standard_normal((300, 1000)).astype(np.float32)  # more than one piece
    layouts = {"transposed": grid.T, "strided": grid[::3, ::-2], "fortran": np.asfortranarray(grid), "straight": grid}
    return (
        kinds | layouts | {"scalar": np.array(pi), "empty": np.zeros((3, 0, 2)), "naïve name/ü": np.array([nan, -0.0])}
    )
