"""Every checker there is, the smallest parts first, so that the first finding is nearest to the cause.

`tapeless check` checks ops and kernels on the machine it runs on. Steps, models, the training loop and decoding are the
same program everywhere: their second statements stand here, beside the tests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tapeless.check.everything import check_kernels, check_reference
from tapeless.check.finding import Finding
from tests.check.decoding import check_decoding
from tests.check.steps import check_steps
from tests.check.training import check_training
from tests.check.walked_models import WALKED, check_program, check_updates, check_walk


def check_everything(trusted: Collection[str] = (), trusted_on_threads: Collection[str] = ()) -> Iterator[Finding]:
    """Check ops alone, lists of calls, whole steps, the loop, models call by call, decoding, and the cpu kernels."""
    yield from check_reference(trusted)
    for configuration in WALKED:
        yield from check_program(configuration)
    yield from check_updates()
    yield from check_steps()
    yield from check_training()
    for configuration in WALKED:
        yield from check_walk(configuration)
    yield from check_decoding()
    yield from check_kernels(trusted_on_threads)
