"""Shell completion: presets, runs, pages, and the few words that an option takes; the shell itself offers files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tapeless.models.config import CHOICES
from tapeless.models.presets import PRESETS

CONFIGURATION = "config.toml"  # by which a run is known
WORDS: dict[str, Iterable[str]] = {
    "backend": ("cpu", "cuda", "reference"),
    "precision": ("float32", "float64", "bfloat16"),
    "products": ("mkl", "own"),
    "tokenizer": ("bytes", "bpe"),
    "data": ("stdlib", "operations"),
    "source": ("stdlib",),
    "schedule": ("constant", "step", "exponential", "cosine", "linear"),
    **CHOICES,
}


def completer(name: str, metavar: str) -> Callable[[str], list[str]] | None:
    """Return what completes a parameter of this name, if anything here does."""
    if "PRESET" in metavar:
        return (lambda incomplete: presets(incomplete) + runs(incomplete)) if "RUN" in metavar else presets
    if name in ("run", "runs", "resume", "base"):
        return runs
    if name == "topic":
        return topics
    if name in WORDS:
        return lambda incomplete: [word for word in WORDS[name] if word.startswith(incomplete)]
    return None


def presets(incomplete: str) -> list[str]:
    return [name for name in PRESETS if name.startswith(incomplete)]


def topics(incomplete: str) -> list[str]:
    from tapeless.cli.manual import find_pages

    return [name for name in find_pages() if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Runs whose path begins so; of a folder of runs, those in it."""
    try:
        return sorted(_runs(incomplete))
    except OSError:  # a folder that may not be looked into: nothing is offered
        return []


def _runs(incomplete: str) -> Iterator[str]:
    given = Path(incomplete).expanduser()
    parent, begin = (given, "") if incomplete.endswith("/") or not incomplete else (given.parent, given.name)
    for folder in parent.iterdir():
        if folder.name.startswith(begin) and folder.is_dir():
            if (folder / CONFIGURATION).is_file():
                yield str(folder)
            else:
                yield from (str(inner) for inner in folder.iterdir() if (inner / CONFIGURATION).is_file())
