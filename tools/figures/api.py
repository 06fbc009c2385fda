"""The public names as docs/api.md has them: what the modules export, in the words of their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from tapeless.model import Stepped
from tapeless.program.arena import Plan
from tapeless.program.call import Call, Program
from tapeless.program.explanation import Explanation
from tapeless.tasks.chat.talk import Talk
from tapeless.tasks.writing import Writing
from tapeless.train.doctor import Diagnosis, Observation

PUBLIC = ("tapeless", "tapeless.check", "tapeless.tracing", "tapeless.labelling.signal")
# What nobody makes and everybody is given.
GIVEN = (Call, Program, Plan, Explanation, Stepped, Writing, Talk, Diagnosis, Observation)


def exported(module: str) -> list[str]:
    return list(import_module(module).__all__)


def api_of(module: str) -> str:
    home = import_module(module)
    return "\n".join(["", *(line for name in exported(module) for line in _entry(name, getattr(home, name))), ""])


def api_of_the_given() -> str:
    return "\n".join(["", *(line for each in GIVEN for line in _entry(each.__name__, each)), ""])


def _entry(name: str, value: Any) -> Iterator[str]:
    """A heading, what it is, and of a class what it has."""
    if inspect.ismodule(value):
        yield from ("", f"### `{name}`", "", f"A module: {_told(value)}")
    elif inspect.isclass(value):
        yield from ("", f"### `{name}{_parameters(value)}`", "", _told(value))
        yield from _members(value)
    elif callable(value):
        yield from ("", f"### `{name}{_parameters(value)}`", "", _told(value))
        yield from _arguments(value)
    else:
        yield from ("", f"### `{name}`", "", f"{CONSTANTS[name]}")


CONSTANTS = {
    "PRESETS": 'Every preset by its name, a mapping: `PRESETS["gpt2-124m"].architecture.layers`.',
    "SCALES": "The periods, in samples, that wavelet features have where nobody says.",
}


def members(kind: type) -> list[tuple[str, Any]]:
    """What of a class is public and its own, in the order in which it stands there; inherited from ours, too."""
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("tapeless"):
            found |= {name: value for name, value in vars(each).items() if _is_public(name, value)}
    return list(found.items())


def _is_public(name: str, value: Any) -> bool:
    methods = (property, cached_property, staticmethod, classmethod)
    return not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, methods))


def _members(kind: type) -> Iterator[str]:
    own = [each.name for each in fields(kind) if not each.name.startswith("_")] if is_dataclass(kind) else []
    if own and not issubclass(kind, Exception):
        yield from ("", f"Fields: {', '.join(f'`{name}`' for name in own)}.")
    rows = [
        f"- `.{name}{'' if isinstance(value, property | cached_property) else _parameters(value)}`: {_told(value)}"
        for name, value in members(kind)
    ]
    yield from ("", *rows) if rows else ()


def _parameters(value: Any) -> str:
    """Names and defaults; the types are in the source, where an editor finds them."""
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if inspect.isclass(function) and (issubclass(function, Exception) or function in GIVEN):
        return ""
    given = inspect.signature(function).parameters.values()
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in given if each.name not in ("self", "cls")]
    return re.sub(r"<[\w.]+\.(\w+) object at 0x\w+>|<factory>", "…", str(inspect.Signature(plain)))


def _told(value: Any) -> str:
    """The first paragraph of its docstring."""
    function = value.func if isinstance(value, cached_property) else value
    text = inspect.getdoc(function) or ""
    return " ".join(text.split("\n\n")[0].split())


def _arguments(value: Any) -> Iterator[str]:
    """Those that its docstring tells of one by one."""
    told = (inspect.getdoc(value) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    lines = re.sub(r"\n {8,}", " ", told).splitlines()
    found = [re.sub(r"^\s*(\w+): ", r"- `\1`: ", line) for line in lines]
    yield from ("", *found) if found else ()
