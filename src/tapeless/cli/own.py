"""`tapeless check FILE.py:NAME`: a kernel of your own."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tapeless.check import Verdict, op
from tapeless.cli.common import console, print_json
from tapeless.errors import TapelessError, unknown

COLOURS = {"right": "green", "right, with limits": "green", "cannot tell": "yellow"}
DEFINITIONS = ("{}_definition", "{}_reference", "definition_of_{}", "reference_{}", "definition", "reference")
INPUTS = ("{}_inputs", "inputs_of_{}", "inputs", "example_inputs")


def is_own(name: str) -> bool:
    """Whether this is FILE.py:NAME."""
    path, colon, _ = name.partition(":")
    return path.endswith(".py") and (bool(colon) or Path(path).exists())


def check_own(name: str, json: bool, html: Path | None, seconds: float) -> None:
    """The file says what the definition and the inputs are, by names beside the kernel's."""
    path, _, rest = name.partition(":")
    kernel, _, named = rest.partition(":")
    module = _loaded(Path(path))
    if not kernel:
        raise TapelessError(f"{path} has several names: say which kernel is meant, as in {path}:MyFunction.")
    for each in (kernel, *([named] if named else [])):
        if not hasattr(module, each):
            raise unknown("name", each, [known for known in vars(module) if not known.startswith("_")])
    inputs = _beside(module, kernel, INPUTS)
    if inputs is None:
        raise TapelessError(
            f"{path} has no inputs for {kernel}: write `{_snake(kernel)}_inputs = (torch.randn(5, 6), …)` beside it, "
            f"or `inputs`."
        )
    if callable(inputs):
        inputs = inputs()
    definition = getattr(module, named) if named else _beside(module, kernel, DEFINITIONS)
    options = getattr(module, f"{_snake(kernel)}_check", {})
    under_test = getattr(module, kernel)
    columns = (TextColumn("{task.description:60}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=json or not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def told(done: int, total: int, title: str) -> None:
            progress.update(task, completed=done, total=total, description=title[:60])

        settings: dict[str, Any] = {"seconds": seconds, "progress": told} | dict(options)
        if definition is None:
            report = op(under_test, None, inputs, **settings)
        else:
            report = op(definition, None, inputs, kernel=under_test, **settings)
    if html is not None:
        html.write_text(report.html(), encoding="utf-8")
    if json:
        print_json(report.document())
    else:
        _print(report, definition is None, kernel)
    if not report.ok:
        raise typer.Exit(1)


def _print(report: Verdict, itself: bool, kernel: str) -> None:
    head, *lines = str(report).splitlines()
    console.print(f"[bold {COLOURS.get(report.verdict, 'red')}]{escape(head)}[/]")
    for line in lines:
        console.print(escape(line))
    if itself and report.ok:
        name = f"{_snake(kernel)}_definition"
        console.print(f"[dim]Its forward was compared with nothing: define {name} beside it for that.[/]")


def _loaded(path: Path) -> Any:
    """The module of a file, which may import what lies beside it. Without a GPU its Triton kernels are interpreted."""
    if not path.exists():
        raise TapelessError(f"there is no file {path}.")
    sys.path.insert(0, str(path.parent.resolve()))
    if not _has_gpu():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TapelessError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TapelessError(f"{path} raises {type(error).__name__} when it is imported: {error}") from error
    return module


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _snake(name: str) -> str:
    """RMSNorm as rms_norm."""
    letters = []
    for at, letter in enumerate(name):
        after = name[at + 1 : at + 2]
        if letter.isupper() and at and (name[at - 1].islower() or (name[at - 1].isupper() and after.islower())):
            letters.append("_")
        letters.append(letter.lower())
    return "".join(letters)


def _beside(module: Any, kernel: str, patterns: tuple[str, ...]) -> Any:
    for pattern in patterns:
        for name in (pattern.format(_snake(kernel)), pattern.format(kernel)):
            if hasattr(module, name):
                return getattr(module, name)
    return None
