"""How many random cases a property test tries, and which: always the same in `make test`, new ones in `make soak`."""

import os

from hypothesis import settings

SOAK = int(os.environ.get("TAPELESS_SOAK", "1"))


def cases(count: int) -> settings:
    return settings(max_examples=count * SOAK, deadline=None, derandomize=SOAK == 1, database=None)
