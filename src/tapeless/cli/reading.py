"""The options by which a command takes text out of files."""

from __future__ import annotations

from typing import Annotated

import typer

from tapeless.tasks.data.reading import READING_HELP

FieldOption = Annotated[str | None, typer.Option(help=READING_HELP["field"])]
ColumnOption = Annotated[str | None, typer.Option(help=READING_HELP["column"])]
EncodingOption = Annotated[str | None, typer.Option(help=READING_HELP["encoding"])]
DropOption = Annotated[bool, typer.Option("--drop-duplicates", help=READING_HELP["drop_duplicates"])]
