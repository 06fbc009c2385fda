"""Settings of a training as options: the usual ones by name, all of them by --set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, Optional

import typer

from tapeless.cli.fields import KINDS, model_fields, parsed, setting_fields
from tapeless.errors import TapelessError
from tapeless.train.settings import Settings, usual_settings

FURTHER = "Any other setting, or a field of the model, such as layers=2; repeatable. `tapeless help settings` has all."
# Fields of a model that a training has options for.
MODEL_OPTIONS = {
    "optimizer": "sgd, momentum, adam, adamw or muon.",
    "dropout": "Fraction of each branch and of the embedding that training drops at random.",
    "recompute": "Keep only the ends of each block (activation checkpointing): less memory, more time.",
    "frozen": "Weights that stay as they are, as a pattern over names, such as 'blocks.[0-2].*'; repeatable.",
    "train": "The only weights that are trained: norms, biases, embedding, head, blocks.11, or names of weights.",
    "lora": "Train LoRA adapters of this rank; the weights themselves stay as they are.",
}
SHORT = {"batch": "-B", "time": "-T"}


def with_settings(only: Sequence[str] = (), kind: Any = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a training, and --set for the rest.

    Settings that were given arrive as `settings`, fields of the model as `changes`. `only`: those of the settings that
    the command takes, and none of the model's options; `kind`: the kind of task whose defaults are shown.
    """
    settings, model = setting_fields(), model_fields()
    settings = {name: settings[name] for name in only or settings}
    options = []
    for each in fields(Settings):
        if each.name in settings and each.metadata["panel"] is not None:
            usual = usual_settings(each.name, [kind]) if kind else usual_settings(each.name)
            text = with_default(each.metadata["help"], usual)
            options.append(_option(each.name, settings[each.name], text, each.metadata["panel"]))
    if not only:
        options += [_option(name, model[name], text, "Model") for name, text in MODEL_OPTIONS.items()]

    def given_to(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**values: Any) -> None:
            given = {each.name: values.pop(each.name) for each in options}
            given = {name: value for name, value in given.items() if value is not None}
            further = parsed(values.pop("set_"), settings | model)
            for name in given.keys() & further.keys():
                raise TapelessError(f"{name} is given twice: by its option, and by --set {name}={further[name]}.")
            given |= further
            values |= {"settings": {name: value for name, value in given.items() if name in settings}}
            command(**values, changes={name: value for name, value in given.items() if name in model})

        taken = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in taken.parameters.items() if name not in ("settings", "changes")]
        further = _parameter("set_", list[str], typer.Option("--set", metavar="KEY=VALUE", help=FURTHER))
        wrapped.__signature__ = taken.replace(parameters=[*own, further, *options])  # type: ignore[attr-defined]
        wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
        return wrapped

    return given_to


def _option(name: str, kind: str, text: str, panel: str) -> inspect.Parameter:
    switch = name.replace("_", "-")
    flags = [f"--{switch}/--no-{switch}" if kind == "bool" else f"--{switch}", SHORT.get(name, "")]
    option = typer.Option(*filter(None, flags), help=text, rich_help_panel=panel, show_default=False)
    return _parameter(name, KINDS[kind], option)


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    annotation: Any = Annotated[Optional[kind], option]  # noqa: UP045 (a type that is known only here)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_default(text: str, usual: dict[str, Any]) -> str:
    """Return a help text with the default: one value, or one for each kind of task that has one."""
    known = {kind: f"{value:g}" if isinstance(value, float) else str(value) for kind, value in usual.items()}
    known = {kind: value for kind, value in known.items() if value not in ("None", "False")}
    if len(known) == len(usual) and len(set(known.values())) == 1:
        return f"{text} Default: {next(iter(known.values()))}."
    listed = ", ".join(f"{value} for {kind}" for kind, value in known.items())
    return f"{text} Default: {listed}." if known else text
