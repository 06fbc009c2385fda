"""The commands and where each stands, so that one is had without loading all the others."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

import tapeless
from tapeless.cli.common import named_path

# In the order of `tapeless --help`, by what they are for.
PANELS = {
    "Learn": ("presets", "explain", "explore", "attend"),
    "Train": ("plan", "tokenize", "train", "label"),
    "Inspect": ("runs", "doctor", "evaluate", "compare", "sample", "chat"),
    "Verify": ("check", "bench"),
    "Exchange": ("import", "export"),
    "System": ("about", "help"),
}
COMMANDS = [name for names in PANELS.values() for name in names]
MODULES = {"import": "weights", "export": "weights", "help": "manual"}  # of commands that are not called like theirs
METAVARS: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH", bool: ""}


def make_app(*names: str) -> typer.Typer:
    """The program with these of its commands."""
    app = typer.Typer(
        cls=Commands,
        help="Transformers trained with no autograd tape: the backward pass is written by hand, and verified.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for panel, name in ((panel, name) for panel, its in PANELS.items() for name in its if name in names):
        command = command_named(name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, cls=Command, rich_help_panel=panel)(prepared(command))
    app.callback()(start)
    return app


def command_named(name: str) -> Callable[..., None] | typer.Typer:
    # `import` and `help` are words of Python's: there they end with an underscore.
    module = vars(import_module(f"tapeless.cli.{MODULES.get(name, name)}"))
    command: Callable[..., None] | typer.Typer = module.get(f"{name}_") or module[name]
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        print(tapeless.__version__)
        raise typer.Exit


def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


class _Plain:
    """Help that shows an option's metavar, and no type of Python's beside it."""

    def get_params(self, ctx: Any) -> Any:
        shown = super().get_params(ctx)  # type: ignore[misc]
        for each in shown:
            kind = None if each.param_type_name == "argument" or each.is_flag else each.metavar
            each.display_type_rich = lambda ctx, kind=kind: kind
        return shown


class Command(_Plain, TyperCommand):
    pass


class Commands(_Plain, TyperGroup):
    pass


def prepared(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with its parameters and its help as all commands have them."""
    taken = inspect.signature(command, eval_str=True)
    for name, parameter in taken.parameters.items():
        annotation, *described = get_args(parameter.annotation) or (None,)
        if not described:  # Typer's own context
            continue
        kinds = {each for part in (annotation, *get_args(annotation)) for each in (part, *get_args(part))}
        kind = next(each for each in METAVARS if each in kinds)
        if kind is Path:
            described[0].parser = named_path
        if described[0].metavar is None and isinstance(described[0], type(typer.Option())):
            described[0].metavar = METAVARS[kind]
        if completing():
            from tapeless.cli.completion import completer

            described[0].autocompletion = completer(name, described[0].metavar or "")
    command.__signature__ = taken  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in taken.parameters.values()}
    # Each paragraph of the help is as wide as the terminal is, and not as the source.
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(part if "\n " in part else part.replace("\n", " ") for part in paragraphs)
    return command


def completing() -> bool:
    """Whether a shell asks what may follow."""
    return any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ)
