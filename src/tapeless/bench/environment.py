"""The machine and what is installed, in the few lines that a report of a fault needs."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tapeless
from tapeless.errors import TapelessError

# What decides results or speed, and what optional parts need.
PACKAGES = (
    "numpy",
    "ml_dtypes",
    "numba",
    "llvmlite",
    "mkl",
    "torch",
    "triton",
    "tokenizers",
    "zstandard",
    "tensorboard",
    "typer",
    "rich",
)
# What kernels are compiled for, of the hundred features that a processor has.
FEATURES = (
    "sse4.2",
    "avx",
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vnni",
    "avx512bf16",
    "amx-bf16",
    "neon",
    "sve",
    "bf16",
)


def environment() -> dict[str, Any]:
    """Versions, processor, BLAS, threads, memory, GPU, and where compiled kernels are kept. Nothing of the user's but
    the folder of the cache, in which the home folder is `~`."""
    return {
        "tapeless": tapeless.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": _system(),
        "processor": _processor(),
        "features": _features(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "gpu": _gpus(),
        "packages": {name: _version(name) for name in PACKAGES},
        **_numba(),
    }


def _system() -> str:
    name = f"{platform.system()} {platform.release()}, {platform.machine()}"
    with suppress(OSError):
        return f"{platform.freedesktop_os_release().get('PRETTY_NAME', 'Linux')}, {name}"
    return name


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _features() -> list[str]:
    if find_spec("llvmlite") is None:
        return []
    from llvmlite import binding

    has = binding.get_host_cpu_features()
    return [name for name in FEATURES if has.get(name)]


def _memory() -> int | None:
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _gpus() -> list[str]:
    """torch takes seconds to load, so it is asked only where a driver is."""
    if not (shutil.which("nvidia-smi") or Path("/proc/driver/nvidia").exists()) or find_spec("torch") is None:
        return []
    import torch

    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [f"{each.name}, {each.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}" for each in found]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numba() -> dict[str, Any]:
    """What only the cpu backend knows: who does its products, on how many threads, and where its kernels lie."""
    try:
        from tapeless.backends.backend import backend_named

        backend_named("cpu")
    except TapelessError as error:
        return {"blas": None, "threads": None, "cache": None, "missing": str(error)}
    from tapeless.kernels import cpu as cpu_kernels

    shown: str | None = None
    try:
        folder = cpu_kernels.cache_folder()
        if folder.name == "__pycache__":  # beside each kernel, in the package
            folder = Path(tapeless.__file__).parent / "**" / "__pycache__"
        shown = str(folder).replace(str(Path.home()), "~", 1)
    except RuntimeError:  # no folder can be written
        pass
    return {"blas": cpu_kernels.gemm_version(), "threads": cpu_kernels.threads(), "cache": shown}
