"""The reference backend: NumPy, any float or complex type. It defines what every other backend must compute."""

from tapeless.backends.execute import Kernel
from tapeless.ops import OPS
from tapeless.program.call import Call

DEFAULT_DTYPE = "float64"
DTYPES = ("float32", "float64", "complex128")


def kernel(call: Call) -> Kernel:
    found: Kernel = getattr(OPS[call.op], call.direction)
    return found
