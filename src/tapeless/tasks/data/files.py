"""Paths and descriptions that users give, read with a bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.files.plain import parse_json, read_plain

LARGEST_JSON = 1 << 28  # a tokenizer.json of a quarter million tokens has about 2^24 bytes


def user_path(given: str | Path) -> Path:
    """A path with `~` for the home folder; of a user unknown here it stays as it is, and is not found."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        return Path(given)


def read_json(path: Path) -> dict[str, Any]:
    """The object a JSON file holds; anything else is refused with the reason."""
    try:
        content = parse_json(read_plain(path, LARGEST_JSON))
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise TapelessError(f"{path} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise TapelessError(f"{path} must hold a JSON object, not a {type(content).__name__}.")
    return content
