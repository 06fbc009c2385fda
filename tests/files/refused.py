"""A refusal as a user reads it, and how much memory it took."""

import tracemalloc

import pytest

from tapeless.errors import TapelessError

MEGABYTE = 1 << 20


def refusal(action, *arguments, **named):
    with pytest.raises(TapelessError) as caught:
        action(*arguments, **named)
    message = str(caught.value)
    assert message == " ".join(message.split()), "one line"
    assert message[-1] in ".?"
    for leaked in ("Traceback", "Error", "<class", " object at ", "NoneType", "numpy.", "dtype("):
        assert leaked not in message, "talk of Python's insides"
    return message


def allocated_by(action):
    """The most bytes that were allocated while it ran."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
