"""A training followed to its end: what happened, in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tapeless.train.loop import Event, Trainer, train
from tapeless.train.session import Session


def follow(made: Session | Trainer, stopping: Callable[[], str | None] = lambda: None) -> list[Event]:
    seen: list[Event] = []
    if isinstance(made, Trainer):
        train(made, seen.append, stopping=stopping)
    else:
        made.train(seen.append, stopping=stopping)
    return seen


class KilledError(BaseException):
    """In the place of a kill: nothing that comes after it happens."""


def kill(made: Session | Trainer, when: Callable[[Event], bool]) -> None:
    """Train until something happened after which the process would be gone."""

    def watch(event: Event) -> None:
        if when(event):
            raise KilledError

    with suppress(KilledError):
        if isinstance(made, Trainer):
            train(made, watch)
        else:
            made.train(watch)
