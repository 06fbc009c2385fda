"""The commands and where each stands, so that one is had without loading all the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

import tapeless
from tapeless.cli.common import with_flowing_help
from tapeless.cli.paths import with_paths

# In the order of `tapeless --help`. Groups of commands of their own come last.
COMMANDS = {
    "presets": "presets",
    "explain": "explain",
    "plan": "plan",
    "check": "check",
    "tokenize": "tokenize",
    "train": "train",
    "explore": "explore",
    "runs": "runs",
    "doctor": "doctor",
    "evaluate": "evaluate",
    "compare": "compare",
    "attend": "attend",
    "sample": "sample",
    "chat": "chat",
    "import": "weights",
    "export": "weights",
    "bench": "bench",
    "about": "about",
    "help": "manual",
    "label": "label",
}


def make_app(*names: str) -> typer.Typer:
    """The program with these of its commands."""
    app = typer.Typer(
        help="Transformers trained with no autograd tape: the backward pass is written by hand, and proven.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    for name in names:
        command = command_named(name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            command = with_paths(with_flowing_help(command))
            app.command(name)(_with_completion(command) if completing() else command)
    app.callback()(start)
    return app


def command_named(name: str) -> Callable[..., None] | typer.Typer:
    # `import` and `help` are words of Python's: there they end with an underscore.
    module = vars(import_module(f"tapeless.cli.{COMMANDS[name]}"))
    command: Callable[..., None] | typer.Typer = module.get(f"{name}_") or module[name]
    return command


def completing() -> bool:
    """Whether a shell asks what may follow."""
    return any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ)


def _with_completion(command: Callable[..., None]) -> Callable[..., None]:
    from tapeless.cli.completion import with_completion

    return with_completion(command)


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
