"""Batches without end, epoch after epoch, each in an order of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from tapeless.errors import TapelessError
from tapeless.ops.contract import Array


class Epochs(ABC):
    """An epoch draws numbers in an order of its own, and of some of them at a time a batch is made; what they are
    numbers of, a subclass knows. It is as many whole batches as there are: a last, smaller one would need a program of
    its own, and the next epoch's order sees to it that nothing is left out for good.

    `identity` says what a position is a position in, in plain numbers, for a checkpoint; the batch is one of them.
    """

    def __init__(self, steps_per_epoch: int, **identity: int) -> None:
        self.steps_per_epoch, self._batch, self._identity = steps_per_epoch, identity["batch"], identity
        self._begin(epoch=0, position=0)

    @abstractmethod
    def draw(self, epoch: int) -> Array:
        """The order of an epoch; the same whenever it is asked for."""

    @abstractmethod
    def make(self, chosen: Array) -> tuple[Any, Array]:
        """Inputs and targets of a batch of numbers that were drawn."""

    @property
    def epoch(self) -> int:
        """Epochs that are complete."""
        return self._epoch + self._position // self.steps_per_epoch

    def __iter__(self) -> Iterator[tuple[Any, Array]]:
        return self

    def __next__(self) -> tuple[Any, Array]:
        if self._position == self.steps_per_epoch:
            self._begin(self._epoch + 1, position=0)
        chosen = self._order[self._position * self._batch :][: self._batch]
        self._position += 1
        return self.make(chosen)

    def state(self) -> dict[str, int]:
        """The position, and what it is a position in."""
        return {**self._identity, "epoch": self._epoch, "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state` was taken; refused before anything is changed."""
        for name, here in self._identity.items():
            if name in state and state[name] != here:
                raise TapelessError(
                    f"the position is one in data with {name}={repr(state[name])[:40]}, and here {name}={here}: "
                    f"resume with the same data ({', '.join(self._identity)})."
                )
        for name, most in (("epoch", None), ("position", self.steps_per_epoch)):
            value = state.get(name)
            if type(value) is not int or value < 0 or (most is not None and value > most):
                raise TapelessError(f"the position in the data is damaged: {name} is {repr(value)[:40]}.")
        for name in self._identity:
            if name not in state:
                raise TapelessError(f"the position in the data is damaged: {name} is missing.")
        self._begin(state["epoch"], state["position"])

    def _begin(self, epoch: int, position: int) -> None:
        self._order = self.draw(epoch)
        self._epoch, self._position = epoch, position
