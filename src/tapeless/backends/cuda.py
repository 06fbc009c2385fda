"""The CUDA backend: cuBLAS for the products, Triton for everything else, on an NVIDIA GPU, in float32 or bfloat16."""

from __future__ import annotations

from tapeless.backends.gpu import require_gpu

require_gpu()

from tapeless.backends.device import Device  # noqa: E402

CUDA = Device()
