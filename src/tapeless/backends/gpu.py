"""What the cuda backend needs of the machine, and what is said where it is not there."""

from __future__ import annotations

from importlib.util import find_spec

from tapeless.errors import TapelessError


def require_packages() -> None:
    for package, title in (("torch", "PyTorch"), ("triton", "Triton")):
        if find_spec(package) is None:
            raise TapelessError(f"the cuda backend needs {title}: pip install {package}, or take backend='cpu'.")


def require_gpu() -> None:
    require_packages()
    import torch

    if torch.version.cuda is None:
        raise TapelessError("the cuda backend needs a PyTorch with CUDA, and this one has none: install one that does.")
    if not torch.cuda.is_available():
        raise TapelessError(
            "the cuda backend found no GPU: there is none, or its driver is missing or too old for this PyTorch; "
            "take backend='cpu'."
        )


def is_there() -> bool:
    """Whether `require_gpu` would let one pass."""
    try:
        require_gpu()
    except TapelessError:
        return False
    return True
