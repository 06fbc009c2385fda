"""Pictures that a command was asked to write."""

from __future__ import annotations

from pathlib import Path

from tapeless.errors import TapelessError
from tapeless.files.disk import write_whole


def check_svg(path: Path | None) -> None:
    """Before anything is computed for it."""
    if path is not None and path.suffix.lower() != ".svg":
        raise TapelessError(f"{path} is no name for the picture, which is SVG: let it end in .svg.")


def write_svg(path: Path, picture: str) -> None:
    write_whole(path, picture.encode())
