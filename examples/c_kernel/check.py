"""A LayerNorm written in C, put into a GPT and checked there: parity, memory, determinism, speed, training.

python examples/c_kernel/check.py           # it holds
python examples/c_kernel/check.py --bug     # compiled with a mistake: exit code 1, and where it is
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tapeless import TapelessError, check

SOURCE = Path(__file__).with_name("layernorm.c")


def compiled(folder: Path, bug: bool) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise TapelessError("this example needs a C compiler, and there is no cc, gcc or clang: install one.")
    library = folder / "layernorm.so"
    options = ["-O3", "-shared", "-fPIC", *(["-DBUG"] if bug else [])]
    subprocess.run([compiler, *options, str(SOURCE), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def pointers(*arrays: Any) -> list[ctypes.c_void_p]:
    """What C takes for granted, said aloud: floats, one after the other."""
    for array in arrays:
        if array.dtype != np.float32 or not array.flags.c_contiguous:
            raise TapelessError("this kernel is written for contiguous arrays of float32.")
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def main(bug: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder), bug)

        def forward(y: Any, mean: Any, rstd: Any, x: Any, weight: Any, bias: Any, eps: float) -> None:
            arrays = pointers(y, mean, rstd, x, weight, bias)
            library.layernorm_forward(*arrays, ctypes.c_double(eps), *x.shape)

        def backward(
            dx: Any, dweight: Any, dbias: Any, dy: Any, x: Any, weight: Any, mean: Any, rstd: Any
        ) -> None:  # it has no parameter `add`: it overwrites, and adding is done for it
            library.layernorm_backward(*pointers(dx, dweight, dbias, dy, x, weight, mean, rstd), *x.shape)

        report = check.kernel("layernorm", forward=forward, backward=backward)
    print(report)
    return 0 if report else 1


if __name__ == "__main__":
    try:
        sys.exit(main("--bug" in sys.argv[1:]))
    except TapelessError as error:
        sys.exit(str(error))
