"""The threads of a run. MKL's products round differently on another number of them, so a run keeps its own."""

from __future__ import annotations

from dataclasses import replace

from tapeless.kernels.cpu import blas
from tapeless.train.settings import Settings


def on_its_threads(settings: Settings) -> tuple[Settings, list[str]]:
    """From here on the cpu backend has the threads that the settings name; where they name none, they are given those
    that are in effect, to be recorded. And what the user should know about it."""
    if settings.backend != "cpu":
        return settings, []
    if settings.threads is None:
        return replace(settings, threads=blas.threads()), []
    most = blas.cores()
    blas.set_threads(min(settings.threads, most))
    if settings.threads <= most:
        return settings, []
    return settings, [
        f"the run is set to {settings.threads} threads and this machine has {most}: it goes on with {most}, and may "
        f"round differently from here on."
    ]
