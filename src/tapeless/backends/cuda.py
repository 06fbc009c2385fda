"""The CUDA backend: cuBLAS for the products, Triton for everything else, on an NVIDIA GPU, in float32 or bfloat16."""

from __future__ import annotations

from importlib.util import find_spec

from tapeless.errors import TapelessError

for package, title in (("torch", "PyTorch"), ("triton", "Triton")):
    if find_spec(package) is None:
        raise TapelessError(f"the cuda backend needs {title}: pip install {package}, or take backend='cpu'.")

import torch  # noqa: E402

from tapeless.backends.device import Device  # noqa: E402

if torch.version.cuda is None:
    raise TapelessError("the cuda backend needs a PyTorch with CUDA, and this one has none: install one that does.")
if not torch.cuda.is_available():
    raise TapelessError(
        "the cuda backend found no GPU: there is none, or its driver is missing or too old for this PyTorch; "
        "take backend='cpu'."
    )

CUDA = Device()
