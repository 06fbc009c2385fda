"""Mutants of the mathematics, and whether the suite notices them: python -m tools.mutants."""

import os

# Before any library reads them: the children share the cores, so each keeps to its own, and a thread that waits must
# not spin.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
