"""The one error a user meets: a sentence with what was wrong, the value, and what to do."""

import re
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches

from tapeless.synonyms import in_our_words

LONGEST_NAME = 80  # comparing what is longer takes long and finds nothing
MOST_SUGGESTED, MOST_LISTED = 8, 60
_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = LONGEST_NAME
brief = _brief.repr  # a value can be of any length; a sentence cannot


class TapelessError(Exception):
    """Bad input, or a program that does not hold together. Raised before anything is changed."""


class ProgramError(TapelessError):
    """The list of calls is not sound. Names the buffer, the call and the source line."""


class NonFiniteError(TapelessError):
    """NaN or infinity where a number should be. Nothing was changed by it."""


class NotYetError(TapelessError):
    """A form of an op that a backend does not have yet. A check of that backend leaves it out, and says so."""


def unknown(what: str, value: object, known: Iterable[str]) -> TapelessError:
    """`value` is not one of `known`: suggest what may have been meant, else say what there is."""
    names = sorted({*known}, key=_natural)
    if isinstance(value, str) and (called := in_our_words(value, names)):
        return TapelessError(f"unknown {what} {value!r}: {called}.")
    near = _meant(value.lower(), names) if isinstance(value, str) else []
    hint = f"did you mean {near[0]!r}?" if len(near) == 1 else "choose one of " + _listed(near or names) + "."
    if len(names) == 1:
        hint = f"it must be {names[0]}."
    return TapelessError(f"unknown {what} {brief(value)}: {hint}")


def _meant(value: str, names: list[str]) -> list[str]:
    """A slip of the fingers, or else the family whose name it begins with. Another number is another thing and no
    slip: who asks for bfloat16 does not mean float64."""
    if len(value) > LONGEST_NAME:
        return []
    comparable = [name for name in names if _digits(name) == _digits(value)]
    near = get_close_matches(value, comparable, n=1, cutoff=0.7)
    if near:
        return near
    stem = value.split("-")[0]
    family = [name for name in names if name.startswith((value, f"{stem}-"))]
    family = family or [name for name in names if len(name) > 2 and value.startswith(name)]
    return family if len(stem) > 1 and len(family) <= MOST_SUGGESTED else []


def _digits(name: str) -> list[str]:
    """Their order may have slipped."""
    return sorted(character for character in name if character.isdigit())


def _natural(name: str) -> list[tuple[int, str]]:
    """gpt2-350m before gpt2-1558m."""
    parts = re.split(r"(\d{1,18})", name, flags=re.ASCII)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")
