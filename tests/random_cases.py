"""How many random cases a property test tries, and which: always the same in `make test`, new ones in `make soak`."""

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")
SOAK = int(os.environ.get("TAPELESS_SOAK", "1"))


def cases(count: int) -> settings:
    few = (count + 1) // 2 if SOAK == 1 else count * SOAK
    return settings(max_examples=few, deadline=None, derandomize=SOAK == 1, database=None)


def some(items: Sequence[T], of: int, first: int = 0) -> Sequence[T]:
    """Every `of`-th, and all of them in `make soak`: what tests share should each begin elsewhere."""
    return items if SOAK > 1 else items[first::of]
