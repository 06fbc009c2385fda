"""One sentence for a wrong command line: an unknown option or command, a missing or wrong value."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import Any

from tapeless.cli.fields import model_fields, setting_fields
from tapeless.synonyms import OURS, SAID_AS


def sentence(error: Any) -> str:
    """What was wrong and what to do, of an error that Typer raised while it read the command line."""
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
        return str(error.format_message())
    if hasattr(error, "option_name") and hasattr(error, "possibilities"):
        return f"error: {_no_such_option(error.option_name, error.ctx)}"
    parameter: Any = getattr(error, "param", None)
    value = _given(parameter.opts) if parameter is not None else None
    if value is not None and "valid" in error.message:
        kind = next((what for word, what in IS.items() if word in error.message), "another value")
        return f"error: {parameter.opts[0]} must be {kind}, not {value!r}."
    said = error.format_message().strip()
    return f"error: {said[:1].lower()}{said[1:].rstrip('.?')}{'?' if said.endswith('?') else '.'}"


IS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}


def _given(options: list[str]) -> str | None:
    """The value that stands behind an option."""
    words = sys.argv[1:]
    for word, following in zip(words, [*words[1:], None], strict=True):
        name, equals, value = word.partition("=")
        if name in options:
            return value if equals else following
    return None


def _no_such_option(given: str, context: Any) -> str:
    known = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
    name = given.lstrip("-").replace("-", "_")
    ours = OURS.get(name, name)
    if f"--{ours}" in (option.replace("-", "_").replace("__", "--") for option in known):
        return f"there is no option {given}: it is --{ours.replace('_', '-')}."
    if "--set" in known:
        keys = setting_fields() | model_fields() if "--init-from" in known else model_fields()
        plain = ours.removeprefix("no_")
        if plain in keys:
            value = "false" if plain != ours else "true" if keys[plain] == "bool" else "…"
            return f"there is no option {given}: say --set {plain}={value}."
        if name in SAID_AS:
            return f"there is no option {given}: say --set {SAID_AS[name]}."
        near = get_close_matches(ours, [*keys, *(option[2:].replace("-", "_") for option in known)], n=1, cutoff=0.7)
        if near and f"--{near[0].replace('_', '-')}" not in known:
            return f"there is no option {given}: did you mean --set {near[0]}=…?"
    near = get_close_matches(given, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"`{context.command_path} --help` lists what there is."
    return f"there is no option {given}: {hint}"
