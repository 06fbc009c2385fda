"""A disk without room, for whoever must keep what it has."""

import os
from errno import ENOSPC


def full_at(*operations):
    """In the place of `disk.perform`: there is no room left for these operations, and all others are performed."""

    def perform(operation, *arguments, **named):
        if operation in operations:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        return operation(*arguments, **named)

    return perform
