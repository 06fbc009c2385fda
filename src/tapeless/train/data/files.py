"""Paths and descriptions that users give, read with a bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError

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
        if not path.is_file():
            raise TapelessError(f"{path} is no file: check the path.")
        if path.stat().st_size > LARGEST_JSON:
            raise TapelessError(f"{path} has {path.stat().st_size:,} bytes, too many for a JSON description.")
        content = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise TapelessError(f"{path} is not JSON: byte {error.start:,} is not UTF-8.") from None
    except RecursionError:
        raise TapelessError(f"{path} is nested too deeply to be what it should be.") from None
    except ValueError as error:
        raise TapelessError(f"{path} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise TapelessError(f"{path} must hold a JSON object, not a {type(content).__name__}.")
    return content
