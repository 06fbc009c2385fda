"""`tapeless help`: the pages of the documentation, in the terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.markup import escape

import tapeless
from tapeless.cli.common import Json, console, print_json, table
from tapeless.errors import TapelessError, unknown

WIDEST = 100  # columns; longer lines of prose are hard to follow


def help_(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="A page or a command. Default: list the pages.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a page of the documentation in the terminal, or list the pages.

    Example: tapeless help training
    """
    pages = find_pages()
    root = context.parent.command if context.parent else None
    commands = list(getattr(root, "commands", {}))
    if topic is None:
        _print_topics(pages, json)
    elif topic in pages:
        _print_page(topic, pages[topic], json, topic in commands)
    elif topic in commands and context.parent is not None:
        command = root.commands[topic]  # type: ignore[union-attr]
        with typer.Context(command, info_name=topic, parent=context.parent) as inner:
            console.print(command.get_help(inner), markup=False)
    else:
        raise unknown("topic", topic, [*(name for name in pages if "/" not in name), *commands])


def find_pages() -> dict[str, Path]:
    """What can be asked for: the pages by their names, and each decision as `decisions/NAME`."""
    package = Path(tapeless.__file__).parent
    # In a wheel the pages lie inside the package, in a checkout beside it.
    folder = next((place for place in (package / "docs", package.parents[1] / "docs") if place.is_dir()), None)
    if folder is None:
        raise TapelessError("the pages of the documentation are not installed: install tapeless again.")
    # The reference of names is made of docstrings, which `help()` of Python shows.
    pages = {path.stem: path for path in sorted(folder.glob("*.md")) if path.stem != "reference"}
    pages["decisions"] = folder / "decisions" / "README.md"
    decisions = sorted((folder / "decisions").glob("[a-z]*.md"))
    return pages | {f"decisions/{path.stem}": path for path in decisions}


def title(page: str) -> str:
    return next((line[2:].strip() for line in page.splitlines() if line.startswith("# ")), "")


def for_terminal(page: str) -> str:
    """Without what is meant for other readers of the page: comments, pictures, and links to files."""
    page = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"^!\[[^\]]*\]\([^)]*\)\s*$", "", page, flags=re.MULTILINE)
    page = re.sub(r"\[`?([\w-]+)\.md`?\]\(\1\.md(?:#[\w-]*)?\)", r"`tapeless help \1`", page)
    page = re.sub(r"\[([^\]]+)\]\((?:docs/)?([\w-]+)\.md(?:#[\w-]*)?\)", r"\1 (`tapeless help \2`)", page)
    page = re.sub(r"\[([^\]]+)\]\((?:\.\./)?(decisions/[a-z][\w-]*)\.md\)", r"\1 (`tapeless help \2`)", page)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", page)


def _print_topics(pages: dict[str, Path], json: bool) -> None:
    found = {name: title(path.read_text("utf-8")) for name, path in pages.items() if "/" not in name}
    if json:
        print_json([{"topic": name, "title": what} for name, what in found.items()])
        return
    console.print(table(("<", ""), [(f"[bold]{name}", escape(what)) for name, what in found.items()]))
    console.print("\n[dim]Read one:[/] tapeless help training   [dim]a command's options:[/] tapeless train --help")


def _print_page(name: str, path: Path, json: bool, also_command: bool) -> None:
    text = path.read_text("utf-8")
    if json:
        print_json({"topic": name, "title": title(text), "text": text})
        return
    if also_command:
        text += f"\n\nThe options of the command: `tapeless {name} --help`.\n"
    page = Markdown(for_terminal(text), hyperlinks=False)
    width = min(console.width, WIDEST)
    if not console.is_terminal:
        console.print(page, width=width)
        return
    os.environ.setdefault("LESS", "-RF")
    with console.pager(styles=True):
        console.print(page, width=width)
