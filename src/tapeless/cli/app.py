"""All commands in one place."""

from __future__ import annotations

from typing import Annotated

import typer

import tapeless
from tapeless.cli.about import about
from tapeless.cli.attend import attend
from tapeless.cli.bench import bench
from tapeless.cli.check import check
from tapeless.cli.common import with_flowing_help
from tapeless.cli.compare import compare
from tapeless.cli.completion import with_completion
from tapeless.cli.doctor import doctor
from tapeless.cli.evaluate import evaluate
from tapeless.cli.explain import explain
from tapeless.cli.explore import explore
from tapeless.cli.label import label_app
from tapeless.cli.manual import help_
from tapeless.cli.paths import with_paths
from tapeless.cli.plan import plan
from tapeless.cli.presets import presets
from tapeless.cli.runs import runs
from tapeless.cli.sample import sample
from tapeless.cli.tokenize import tokenize
from tapeless.cli.train import train
from tapeless.cli.weights import export, import_

app = typer.Typer(
    help="Transformers trained with no autograd tape: the backward pass is written by hand, and proven.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    presets, explain, plan, check, tokenize, train, explore, runs, doctor, evaluate, compare, attend, sample,
    import_, export, bench, about, help_,
)  # fmt: skip
for command in COMMANDS:
    app.command(command.__name__.rstrip("_"))(with_completion(with_paths(with_flowing_help(command))))
app.add_typer(label_app, name="label")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(tapeless.__version__)
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
