"""Settings of a training and fields of a model on the command line: the usual ones as options, all of them by --set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Optional

import typer

from tapeless.errors import TapelessError, unknown
from tapeless.models.config import OVERRIDABLE, Architecture, Layout, Preset
from tapeless.synonyms import OURS

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A field of the model, such as layers=2; repeatable. `tapeless help settings` lists them.",
    ),
]
# Fields of a model that a training has options for.
MODEL_OPTIONS = {
    "optimizer": "sgd, momentum, adam, adamw or muon.",
    "dropout": "Share of every branch and of the embedding that is left out while it learns.",
    "recompute": "Keep only each block's ends (activation checkpointing): less memory, more time.",
    "frozen": "Weights that are not trained, by a pattern over their names, such as 'blocks.[0-2].*'; repeatable.",
    "train": "What alone is trained: norms, biases, embedding, head, blocks.11, or names of weights.",
    "lora": "Train adapters of this rank instead of the weights, which stay as they are.",
}
KINDS: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool, "tuple[str, ...]": list[str]}
SHORT = {"batch": "-B", "time": "-T"}
LONGEST = 200  # characters of a sentence, beyond which a page tells more than a list of all names
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
IS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def model_fields() -> dict[str, str]:
    """The kind of each field of a model, by its name."""
    parts = [each for part in (Architecture, Layout, Preset) for each in fields(part)]
    return {each.name: _kind(each.type) for each in parts if each.name in OVERRIDABLE}


def setting_fields() -> dict[str, str]:
    """The kind of each setting of a training, by its name."""
    from tapeless.train.settings import Settings

    return {each.name: _kind(each.type) for each in fields(Settings)}


def _kind(annotation: Any) -> str:
    return str(annotation).split(" | ")[0]


def model_changes(words: Sequence[str] | None) -> dict[str, Any]:
    """What `--set` says of a model."""
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


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a training, and --set for the rest. Settings that were given arrive as `settings`,
    fields of the model as `changes`."""
    from tapeless.train.settings import Settings, usual_settings

    settings, model = setting_fields(), model_fields()
    taken = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in taken.parameters.items() if name not in ("settings", "changes")]
    options = [
        _option(each.name, settings[each.name], with_default(each.metadata["help"], usual_settings(each.name)), panel)
        for each in fields(Settings)
        if (panel := each.metadata["panel"]) is not None
    ]
    options += [_option(name, model[name], text, "Model") for name, text in MODEL_OPTIONS.items()]
    names = [each.name for each in options]

    def wrapped(**values: Any) -> None:
        given = {name: values.pop(name) for name in names}
        given = {name: value for name, value in given.items() if value is not None}
        further = parsed(values.pop("set_"), settings | model)
        for name in given.keys() & further.keys():
            raise TapelessError(f"{name} is given twice: by its option, and by --set {name}={further[name]}.")
        given |= further
        command(
            **values,
            settings={name: value for name, value in given.items() if name in settings},
            changes={name: value for name, value in given.items() if name in model},
        )

    keyword = inspect.Parameter.KEYWORD_ONLY
    text = "Any other setting or field of the model, such as layers=2; repeatable. `tapeless help settings` lists them."
    further = typer.Option("--set", metavar="KEY=VALUE", help=text)
    parameters = [
        *own,
        inspect.Parameter("set_", keyword, default=None, annotation=Annotated[Optional[list[str]], further]),  # noqa: UP045
        *options,
    ]
    wrapped.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    return wrapped


def _option(name: str, kind: str, text: str, panel: str) -> inspect.Parameter:
    switch = name.replace("_", "-")
    flags = [f"--{switch}/--no-{switch}" if kind == "bool" else f"--{switch}", SHORT.get(name, "")]
    option = typer.Option(*filter(None, flags), help=text, rich_help_panel=panel, show_default=False)
    annotation: Any = Annotated[Optional[KINDS[kind]], option]  # noqa: UP045
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_default(text: str, usual: dict[str, Any]) -> str:
    """A help text, and the default: one value, or one for each kind of task that has one."""
    known = {kind: f"{value:g}" if isinstance(value, float) else str(value) for kind, value in usual.items()}
    known = {kind: value for kind, value in known.items() if value not in ("None", "False")}
    if len(known) == len(usual) and len(set(known.values())) == 1:
        return f"{text} Default: {next(iter(known.values()))}."
    listed = ", ".join(f"{value} for {kind}" for kind, value in known.items())
    return f"{text} Default: {listed}." if known else text
