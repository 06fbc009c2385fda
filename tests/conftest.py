"""Two workers on two cores: a BLAS that starts a thread per core in each of them only makes them wait."""

import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
