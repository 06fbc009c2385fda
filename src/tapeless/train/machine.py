"""The threads of a run, and whose its matrix products are: they round differently on another number, or by another
library, so a run keeps its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tapeless.backends.backend import Backend, backend_named
from tapeless.model import Model
from tapeless.train.settings import Settings

if TYPE_CHECKING:
    from tapeless.kernels.cpu.faster import Faster

WORTH_IT = 10**10  # FLOPs of a step, from which on products are most of it


def on_its_machine(settings: Settings, *, new: bool = False) -> tuple[Settings, list[str]]:
    """From here on the backend has the threads and the products that the settings name; where they name none, they are
    given those that are in effect, to be recorded, and a `new` training the faster products. And what the user should
    know about it."""
    backend, messages = backend_named(settings.backend), []
    threads = backend.threads(settings.threads, lower=True)
    found = faster_on(backend, settings.precision) if new and settings.products is None else None
    products = backend.products(found.products if found else settings.products, lower=True)
    if found and found.share < 1 and products == "own":
        messages.append(
            f"the products are our own: on this processor they take {found.share:.0%} of MKL's time "
            f"(--products mkl has MKL's)."
        )
    if settings.products not in (None, products) and products is not None:
        messages.append(
            f"the run's products are {settings.products.upper()}'s, which is not installed here: it goes on with our "
            f"own, and may round differently from here on."
        )
    if settings.threads not in (None, threads) and threads is not None:
        messages.append(
            f"the run is set to {settings.threads} threads and this machine has {threads}: it goes on with {threads}, "
            f"and may round differently from here on."
        )
    return replace(settings, products=settings.products or products, threads=settings.threads or threads), messages


def faster_on(backend: Backend, precision: str | None) -> Faster | None:
    """Whose products a training has if nobody chooses; None where there is no choice, as in bfloat16, whose products
    are our own in any case."""
    if backend.name != "cpu" or precision not in (None, "float32"):
        return None
    from tapeless.kernels.cpu.faster import faster_products  # which loads Numba

    return faster_products()


def offered(settings: Settings, model: Model) -> list[str]:
    """What bfloat16 would bring, to whoever has not chosen a precision, where this machine has it fast."""
    # Muon's own products are float32's in any precision, so with it the step gains less than is said here.
    muon = model.optimizer is not None and model.optimizer.name == "muon"
    if settings.precision is not None or muon or model.backend != "cpu" or model.plan.flops < WORTH_IT:
        return []
    if "bfloat16" not in backend_named(model.backend).precisions:
        return []
    return [
        "this processor multiplies bfloat16: with --precision bfloat16 a step of this size takes a third to a half of "
        "the time (docs/training.md)."
    ]
