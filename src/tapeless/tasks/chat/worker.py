"""The process that renders chat templates. Started by `template.py`, as a script; it imports nothing of ours.

A template is a program that came with somebody's weights. Jinja's sandbox keeps it from Python's inside, and this
process from everything else: it has a bounded memory, opens no file, and a render that takes too long ends it. One
line of JSON asks, one answers.
"""

from __future__ import annotations

import json
import resource
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, ext, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_MEMORY = 1 << 28  # bytes of address space
MOST_OUTPUT = 1 << 24  # characters that one rendering may have
LONGEST_REASON = 200

# What surrounds the words that a template marks as the model's own; no text that anybody wrote before holds it.
MARK = secrets.token_hex(16)


class TooMuchError(Exception):
    pass


class Generation(ext.Extension):
    """{% generation %} … {% endgeneration %}: with these, a template says itself which words the model generates."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{MARK}{caller()}{MARK}"


def environment() -> ImmutableSandboxedEnvironment:
    """As the models' authors expect it: blocks leave no blank lines, and these few functions are there."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda wanted: datetime.now().strftime(wanted)
    return made


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def render(template: Template, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The first so many messages, with what invites an answer or without, for each pair of `views`."""
    made = []
    for count, invited in asked["views"]:
        given = {"messages": asked["messages"][:count], "tools": asked["tools"], "documents": None}
        pieces, size = [], 0
        for piece in template.generate(**asked["tokens"], **given, add_generation_prompt=invited):
            pieces.append(piece)
            size += len(piece)
            if size > MOST_OUTPUT:
                raise TooMuchError(f"it writes more than {MOST_OUTPUT:,} characters")
        made.append(_unmarked("".join(pieces)))
    return made


def _unmarked(text: str) -> dict[str, Any]:
    """The text, and where in it what was marked begins and ends."""
    parts = text.split(MARK)
    spans, place = [], 0
    for number, part in enumerate(parts):
        if number % 2:
            spans.append([place, place + len(part)])
        place += len(part)
    return {"text": "".join(parts), "marked": spans if len(parts) > 1 else None}


def answer(made: ImmutableSandboxedEnvironment, known: dict[str, Template], asked: dict[str, Any]) -> dict[str, Any]:
    source = asked["template"]
    try:
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        if source not in known:
            known[source] = made.from_string(source)
        return {"views": render(known[source], asked)}
    except SecurityError as error:
        return {"refused": f"reaches outside its sandbox: {_brief(error)}"}
    except TemplateSyntaxError as error:
        return {"refused": f"is no Jinja that can be read, at line {error.lineno}: {_brief(error)}"}
    except TooMuchError as error:
        return {"refused": f"was stopped: {_brief(error)}"}
    except MemoryError:
        return {"refused": f"was stopped: it takes more than {MOST_MEMORY >> 20:,} MiB of memory"}
    except OSError:  # as a module that Jinja would import late
        return {"refused": "reaches outside its sandbox: it asks for a file"}
    except RecursionError:
        return {"refused": "was stopped: it calls itself without end"}
    except Exception as error:  # whatever a template can bring about
        return {"refused": f"does not take this conversation: {_brief(error)}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:LONGEST_REASON].rstrip(".") or type(error).__name__


def confine() -> None:
    """From here on nothing is opened, written or started."""
    for what, most in (
        (resource.RLIMIT_AS, MOST_MEMORY),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # not every system has each of them; time and output are bounded on all
            resource.setrlimit(what, (most, most))


def main() -> None:
    made, known = environment(), dict[str, Template]()
    # All that would be imported late, or read from a file, is now.
    with suppress(TemplateError):
        made.from_string("{{ raise_exception(messages | tojson | wordwrap ~ '\\n') }}").render(messages=[])
    time.localtime()
    confine()
    for line in sys.stdin.buffer:
        said = json.dumps(answer(made, known, json.loads(line))).encode()
        sys.stdout.buffer.write(said + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
