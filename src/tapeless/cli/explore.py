"""`tapeless explore`"""

from __future__ import annotations

import sys
import webbrowser
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tapeless.cli.common import Json, console, print_json
from tapeless.errors import TapelessError
from tapeless.train.run import CONFIGURATION

RUNS = Path("runs")


def explore(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Folders of runs. Default: the newest of runs/.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 for any free port.")
    ] = 8437,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Save the pages as one file that needs no server, and end.")
    ] = None,
    json: Json = False,
) -> None:
    """Look at runs in the browser, while they train or afterwards: curves, gradients by depth and step, every call.

    The page comes from this machine and can be opened on this machine alone. Ctrl-C ends the server.

    Example: tapeless explore runs/ops-102k-001 --export report.html
    """
    folders = [_checked(folder) for folder in runs or [newest(RUNS)]]
    try:
        from tapeless.explorer.server import address, new_token, open_socket, serve
    except ModuleNotFoundError as missing:
        raise TapelessError(f"the explorer needs {missing.name}: pip install 'tapeless[explore]'.") from None
    if export is not None:
        _save(folders, export, json)
        return
    listening, token = open_socket(port), new_token()
    link = address(listening, token)
    if json:
        print_json({"address": link, "runs": [str(folder) for folder in folders]})
    else:
        console.print(f"[bold]{link}[/]", soft_wrap=True)
        named = ", ".join(escape(str(folder)) for folder in folders)
        console.print(f"[dim]shows {named}; Ctrl-C ends it[/]", soft_wrap=True)
    sys.stdout.flush()  # whoever reads this in a pipe waits for it
    if browser:
        webbrowser.open(link)
    serve(folders, listening, token)


def _save(folders: list[Path], path: Path, json: bool) -> None:
    from tapeless.explorer.export import save_report

    with console.status("computing what the pages show …") if console.is_terminal and not json else nullcontext():
        size = save_report(folders, path)
    if json:
        print_json({"report": str(path), "bytes": size, "runs": [str(folder) for folder in folders]})
        return
    console.print(f"[bold]{escape(path.resolve().as_uri())}[/]", soft_wrap=True)
    console.print(f"[dim]{size / 1e6:.1f} MB, one file: it can be sent, and opens without a server or a network[/]")


def newest(parent: Path) -> Path:
    """The run that was last written to."""
    found = [folder for folder in parent.glob("*") if (folder / CONFIGURATION).is_file()]
    if not found:
        raise TapelessError(f"there is no run in {parent}/ yet: name one, or train one with `tapeless train`.")
    return max(found, key=_last_written)


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *folder.glob("metrics.jsonl")))


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        raise TapelessError(f"{folder} is not a folder: give the folders of runs, such as runs/ops-102k-001.")
    return folder
