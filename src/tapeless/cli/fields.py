"""Fields of a model and settings of a training, by --set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

from tapeless.errors import TapelessError, unknown
from tapeless.models.config import OVERRIDABLE, Architecture, Layout, Preset
from tapeless.synonyms import OURS

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a field of the model, such as layers=2; repeatable. `tapeless help settings` lists the fields.",
    ),
]
KINDS: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "tuple[str, ...]": list[str]}
LONGEST = 200  # characters of a sentence, beyond which a page tells more than a list of all names
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
IS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def model_fields() -> dict[str, str]:
    """Return the type of each field of a model, by its name."""
    parts = [each for part in (Architecture, Layout, Preset) for each in fields(part)]
    return {each.name: _kind(each.type) for each in parts if each.name in OVERRIDABLE}


def setting_fields() -> dict[str, str]:
    """Return the type of each setting of a training, by its name."""
    from tapeless.train.settings import Settings

    return {each.name: _kind(each.type) for each in fields(Settings)}


def _kind(annotation: Any) -> str:
    return str(annotation).split(" | ")[0]


def model_changes(words: Sequence[str] | None) -> dict[str, Any]:
    """Return the fields of a model that --set changes."""
    return parsed(words, model_fields())


def parsed(words: Sequence[str] | None, known: Mapping[str, str]) -> dict[str, Any]:
    """Values by key, from KEY=VALUE; `known` is the kind of each key. Other projects' names are taken for ours."""
    found: dict[str, Any] = {}
    for word in words or ():
        name, equals, text = (part.strip() for part in word.partition("="))
        if not (name and equals):
            raise TapelessError(f"--set takes KEY=VALUE, such as --set layers=2, not {word!r}.")
        name = name.replace("-", "_")
        name = OURS[name] if name not in known and OURS.get(name) in known else name
        if name not in known:
            raise _unknown(name, known)
        if name in found:
            raise TapelessError(f"--set {name} is given twice: once as {found[name]!r}, and again as {text!r}.")
        found[name] = _value(name, known[name], text)
    return found


def _unknown(name: str, known: Mapping[str, str]) -> TapelessError:
    if OURS.get(name, name) in setting_fields():
        return TapelessError(f"{OURS.get(name, name)} is a setting of a training, of which there is none here.")
    found = unknown("key", name, known)
    if len(str(found)) < LONGEST:
        return found
    return TapelessError(f"unknown key {name!r}: `tapeless help settings` lists what there is.")


def _value(name: str, kind: str, text: str) -> Any:
    try:
        if kind == "bool":
            return TRUTH[text.lower()]
        return tuple(text.split(",")) if kind.startswith("tuple") else KINDS[kind](text)
    except (KeyError, ValueError):
        raise TapelessError(f"{name} must be {IS[kind]}, not {text!r}.") from None
