"""The one error a user meets: a sentence with what was wrong, the value, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class TapelessError(Exception):
    """Bad input, or a program that does not hold together. Raised before anything is changed."""


class ProgramError(TapelessError):
    """The list of calls is not sound. Names the buffer, the call and the source line."""


class NonFiniteError(TapelessError):
    """NaN or infinity where a number should be. Nothing was changed by it."""


def unknown(what: str, value: object, known: Iterable[str]) -> TapelessError:
    """`value` is not one of `known`: suggest the nearest, else list them."""
    names = sorted(known)
    near = get_close_matches(str(value).lower(), names, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else "choose one of " + ", ".join(names) + "."
    return TapelessError(f"unknown {what} {value!r}: {hint}")
