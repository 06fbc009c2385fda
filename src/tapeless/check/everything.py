"""All that `tapeless check` can say about a program, the smallest parts first: the first finding is the nearest to the
cause."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tapeless.backends.backend import backend_named
from tapeless.check.decoding import check_decoding
from tapeless.check.finding import Finding
from tapeless.check.models import WALKED, check_program, check_updates, check_walk
from tapeless.check.ops import check_alone, check_backend_alone
from tapeless.check.ranges import check_ranges
from tapeless.check.steps import check_steps
from tapeless.check.threads import check_on_threads
from tapeless.check.training import check_training
from tapeless.ops import OPS


def check_everything(trusted: Collection[str] = (), trusted_on_threads: Collection[str] = ()) -> Iterator[Finding]:
    """Ops alone, lists of calls, whole steps and the loop (which hold whatever the gradients are), models call by call,
    decoding, and the ops of the cpu backend, on their examples, on extreme numbers and on threads. `trusted` ops of the
    reference, and those `trusted_on_threads` of the cpu backend, are not looked at again."""
    for name in OPS:
        if name not in trusted:
            yield from check_alone(name)
    for configuration in WALKED:
        yield from check_program(configuration)
    yield from check_updates()
    yield from check_steps()
    yield from check_training()
    for configuration in WALKED:
        yield from check_walk(configuration)
    yield from check_decoding()
    cpu = backend_named("cpu")
    for name in OPS:
        yield from check_backend_alone(name, cpu)
    for name in OPS:
        yield from check_ranges(name, cpu)
    for name in OPS:
        if name not in trusted_on_threads:
            yield from check_on_threads(name)
