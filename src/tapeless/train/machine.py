"""The threads of a run. MKL's products round differently on another number of them, so a run keeps its own."""

from __future__ import annotations

from dataclasses import replace

from tapeless.backends.backend import backend_named
from tapeless.train.settings import Settings


def on_its_threads(settings: Settings) -> tuple[Settings, list[str]]:
    """From here on the backend has the threads that the settings name; where they name none, they are given those
    that are in effect, to be recorded. And what the user should know about it."""
    taken = backend_named(settings.backend).threads(settings.threads, lower=True)
    if settings.threads is None:
        return replace(settings, threads=taken), []
    if taken in (None, settings.threads):
        return settings, []
    return settings, [
        f"the run is set to {settings.threads} threads and this machine has {taken}: it goes on with {taken}, and may "
        f"round differently from here on."
    ]
