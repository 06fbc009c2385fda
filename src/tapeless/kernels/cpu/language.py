"""What CPU kernels are written with. Importing it loads Numba; other packages import it from `tapeless.kernels.cpu`."""

from tapeless.kernels.cpu.bfloat16 import is_bfloat16, upcast
from tapeless.kernels.cpu.cache import cache_folder
from tapeless.kernels.cpu.columns import softmax_columns, softmax_columns_backward
from tapeless.kernels.cpu.compile import (
    THREADED,
    BoundKernel,
    Kernel,
    flat,
    progress_listeners,
    strided,
)
from tapeless.kernels.cpu.division import calling_gemm, tasks_of
from tapeless.kernels.cpu.functions import compilations, jitted
from tapeless.kernels.cpu.gemm_race import FasterGemm, faster_gemm
from tapeless.kernels.cpu.microkernels_float32 import (
    call_gemm,
    gemm_strip,
    load_float,
    stack_floats,
    transpose_block,
)
from tapeless.kernels.cpu.packing import LANES
from tapeless.kernels.cpu.statistics import bind_beside, bind_statistics
from tapeless.kernels.cpu.vector import exp, fused, inlined, larger, largest, plus, rounded_product
