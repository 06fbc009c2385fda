"""What a checkpoint's files were when it was written, and whether they still are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tapeless.files.disk import Written, sealed, unsealed, write_file
from tapeless.files.plain import fits, open_plain, read_plain

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
FILE = re.compile(r"state\.json|[A-Za-z0-9_-]{1,100}\.safetensors", re.ASCII)
LARGEST_MANIFEST = 1 << 20


class UnusableError(Exception):
    """What keeps a checkpoint from being used, as the rest of a sentence that begins with its name."""


def write_manifest(folder: Path, step: int, written: Mapping[str, Written]) -> None:
    """OSError where it fails."""
    listed = {name: {"size": file.size, "sha256": file.sha256} for name, file in written.items()}
    write_file(folder / MANIFEST, [sealed({"format": FORMAT, "step": step, "files": listed})])


def checked(path: Path) -> dict[str, Any]:
    """The manifest, once every file is found to be what it says."""
    manifest = _manifest(path)
    try:
        for name, listed in manifest["files"].items():
            _check_size(path / name, listed["size"])
        for name, listed in manifest["files"].items():
            with open_plain(path / name) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != listed["sha256"]:
                    raise UnusableError(f"is damaged ({name}: its SHA-256 is not the one of the manifest)")
    except OSError as error:
        raise UnusableError(f"is damaged ({name}: {error.strerror})") from None
    return manifest


def _check_size(path: Path, size: int) -> None:
    found = path.stat().st_size
    if found != size:
        raise UnusableError(f"is damaged ({path.name}: {found:,} bytes instead of {size:,})")


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = unsealed(read_plain(path / MANIFEST, LARGEST_MANIFEST))
    except FileNotFoundError:
        raise UnusableError(f"is not a checkpoint (there is no {MANIFEST} in it)") from None
    except NotADirectoryError:
        raise UnusableError("is not a checkpoint (it is no folder)") from None
    except OSError as error:
        raise UnusableError(f"is damaged ({MANIFEST}: {error.strerror})") from None
    except ValueError:
        raise UnusableError(f"is damaged ({MANIFEST}: it does not agree with its own SHA-256)") from None
    version = manifest.get("format")
    if type(version) is int and version > FORMAT:
        raise UnusableError(f"is of format {version}, newer than the {FORMAT} that this version of tapeless reads")
    if version != FORMAT or not _is_manifest(manifest):
        raise UnusableError(f"is not a checkpoint ({MANIFEST}: it says something else than a manifest does)")
    return manifest


def _is_manifest(manifest: dict[str, Any]) -> bool:
    return (
        fits(manifest, {"step": int, "files": {...: {"size": int, "sha256": str}}})
        and manifest["step"] >= 0
        and STATE in manifest["files"]
        and all(FILE.fullmatch(name) for name in manifest["files"])  # no path that leads out of the folder
    )
