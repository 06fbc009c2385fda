"""Paths that users give, and how much of what is there is read."""

from __future__ import annotations

from pathlib import Path

LARGEST_JSON = 1 << 28  # a tokenizer.json of a quarter million tokens has about 2^24 bytes


def user_path(given: str | Path) -> Path:
    """A path with `~` for the home folder; of a user unknown here it stays as it is, and is not found."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        return Path(given)


def is_run(folder: Path) -> bool:
    """Whether a folder is what a training made: its own files are no text that anybody wants learned."""
    beside = ("checkpoints", "metrics.jsonl", "lock")
    return (folder / "config.toml").is_file() and any((folder / name).exists() for name in beside)
