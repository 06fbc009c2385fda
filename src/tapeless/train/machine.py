"""The threads of a run, and whose its matrix products are: they round differently on another number, or by another
library, so a run keeps its own."""

from __future__ import annotations

from dataclasses import replace

from tapeless.backends.backend import Backend, backend_named, gemm_library, thread_count
from tapeless.model import Model
from tapeless.train.settings import Settings

WORTH_IT = 10**10  # FLOPs of a step, from which on products are most of it


def on_its_machine(settings: Settings, optimizer: str, *, new: bool = False) -> tuple[Settings, list[str]]:
    """From here on the backend has the threads and the products that the settings name; where they name none, those
    that are in effect, and a `new` training the faster products. The settings as they are to be recorded, and what the
    user should know about it."""
    backend = backend_named(settings.backend)
    threads = thread_count(backend, settings.threads, lower=True)
    products, messages = _products(backend, settings, optimizer, new)
    if settings.threads not in (None, threads) and threads is not None:
        messages.append(
            f"threads={settings.threads} were asked for and this machine has {threads}: it trains with {threads}."
            if new
            else f"the run is set to {settings.threads} threads and this machine has {threads}: it goes on with "
            f"{threads}, and may round differently from here on."
        )
    if new:  # what it has, wherever it is resumed
        return replace(settings, backend=backend.name, products=products, threads=threads or settings.threads), messages
    return replace(settings, products=products, threads=settings.threads or threads), messages


def _products(backend: Backend, settings: Settings, optimizer: str, new: bool) -> tuple[str | None, list[str]]:
    wanted = settings.products
    if not has_choice(backend, settings.precision, optimizer):
        return wanted, []
    if wanted is None and new:
        from tapeless.kernels.cpu import faster_gemm  # which loads Numba

        found = faster_gemm()
        products = gemm_library(backend, found.library)
        faster = f"the products are our own: on this processor they take {found.fraction:.0%} of MKL's time."
        return products, [faster] if products == "own" and found.fraction < 1 else []
    products = gemm_library(backend, wanted, lower=True)
    if wanted in (None, products):
        return products, []
    missing = f"{wanted.upper()} is not installed here"
    if new:
        return products, [f"products={wanted!r} were asked for and {missing}: it trains with our own."]
    return products, [f"the run's products were {wanted.upper()}'s, and {missing}: it has our own from here on."]


def has_choice(backend: Backend, precision: str | None, optimizer: str) -> bool:
    """Whether a training multiplies float32 on the CPU. Products of bfloat16 are our own in any case, but Muon's are of
    float32 in any precision."""
    return backend.name == "cpu" and (precision in (None, "float32") or optimizer == "muon")


def offered(settings: Settings, model: Model) -> list[str]:
    """What bfloat16 would bring, to whoever has not chosen a precision, where this machine has it fast."""
    # Muon's own products are float32's in any precision, so with it the step gains less than is said here.
    muon = model.optimizer is not None and model.optimizer.name == "muon"
    if settings.precision is not None or muon or model.backend != "cpu" or model.plan.flops < WORTH_IT:
        return []
    if "bfloat16" not in backend_named(model.backend).traits.precisions:
        return []
    return [
        "this processor multiplies bfloat16: with --precision bfloat16 a step of this size takes a third to a half of "
        "the time (docs/training.md)."
    ]
