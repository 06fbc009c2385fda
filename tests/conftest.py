"""Two workers on two cores: a BLAS that starts a thread per core in each of them only makes them wait."""

import gc
import os

import pytest

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is loaded by now stays: nobody needs to look through PyTorch for garbage again and again."""
    gc.collect()
    gc.freeze()
