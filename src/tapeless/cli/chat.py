"""`tapeless chat`"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from rich.markup import escape

from tapeless.cli.common import Json, PrecisionName, RunFolder, console, count, harmless, plural, print_json, warn
from tapeless.cli.options import BackendName, Newest, Seed, Temperature, Threads, TopK, TopP, take_threads
from tapeless.cli.output import say
from tapeless.cli.progress import work_shown
from tapeless.errors import TapelessError
from tapeless.step import DEFAULT_BACKEND
from tapeless.tasks.chat.talk import COUNT, ENDED, Talk, checked_drawing
from tapeless.tasks.conversations import ConversationReader
from tapeless.tasks.writing import Sampling
from tapeless.trained import Trained, opened

COMMANDS = {
    "/reset": "forget all that was said",
    "/help": "this list",
    "Ctrl-C": "end the answer",
    "Ctrl-D": "leave",
}


def chat(
    run: RunFolder,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    most: Annotated[int, typer.Option("--count", "-n", help="Most tokens of an answer.")] = COUNT,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    newest: Newest = False,
    backend: BackendName = DEFAULT_BACKEND,
    precision: PrecisionName = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Talk with a model, by its own chat template if it has one.

    /reset begins a new conversation, /help lists the commands; Ctrl-C ends an answer, Ctrl-D leaves. When the
    conversation is longer than the model can read, its oldest turns are forgotten. From a pipe, every line is a
    message; if one cannot be answered, an error says why, the next is read, and the exit code is 1.

    Example: tapeless chat runs/smollm2-001 --system "You answer in one sentence."
    """
    take_threads(backend, threads)
    how = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    checked_drawing(Sampling(most, temperature, top_k, top_p, seed))
    with work_shown(quiet=json):
        trained = Trained(opened(run), "newest" if newest else "best", backend=backend, precision=precision)
        talk = trained.chat(system)
        talk.speech.invitation([*talk.messages, {"role": "user", "content": "?"}])  # a template that refuses, says so
    if not json:
        _greet(trained, talk)
    prompted, failed = not json and _typed(), False
    for number, words in enumerate(_typed_lines() if prompted else _piped_lines(), 1):
        try:
            if words.startswith("/"):
                _obey(words.strip(), talk, json)
            elif words.strip():
                _answered(talk, words.strip(), json, count=most, **how)
        except TapelessError as error:
            if prompted:
                console.print(f"[red]{escape(str(error))}[/]")
                continue
            failed = True
            if json:
                print_json({"user": words.strip(), "error": str(error)})
            else:
                sys.stdout.flush()
                say(f"error: line {number:,}: {error}")
    if failed:
        raise typer.Exit(1)


def _typed() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def _greet(trained: Trained, talk: Talk) -> None:
    warn(trained.messages)
    if talk.speech.chat.own:
        told = "its own chat template"
    elif isinstance(trained.reader, ConversationReader):
        told = "the plain chat template"
    else:
        told = "it brings no chat template and has learned no conversations, so the plain one is tried"
    about = f"{count(trained.model.parameters)} parameters, {talk.window:,} positions; {told}. /help"
    console.print(f"[dim]{escape(str(trained.folder))}: {about}[/]")


def _typed_lines() -> Iterator[str]:
    """Until there are no more. Ctrl-C at the prompt takes back what was being typed."""
    with suppress(ImportError):
        import readline  # noqa: F401 (lines can then be edited, and come back)
    while True:
        try:
            yield input("\033[1m>\033[0m " if console.color_system else "> ")
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:
            console.print("\n[dim]Ctrl-D leaves[/]")


def _piped_lines() -> Iterator[str]:
    """Lines of standard input. One that is not UTF-8 is refused when it is answered: here it would end the program."""
    if sys.stdin is not None:
        for line in sys.stdin.buffer:
            yield line.decode("utf-8", "surrogateescape")


def _obey(words: str, talk: Talk, quiet: bool) -> None:
    if words == "/reset":
        talk.reset()
        if not quiet:
            console.print("[dim]all that was said is forgotten[/]")
    elif words == "/help" and quiet:
        print_json({"commands": COMMANDS})
    elif words == "/help":
        width = max(map(len, COMMANDS))
        for name, what in COMMANDS.items():
            console.print(f"[bold]{name:<{width}}[/]  [dim]{what}[/]")
    else:
        raise TapelessError(
            f"there is no {words.split()[0][:20]}: /help lists what there is; begin with a blank to say it."
        )


def _answered(talk: Talk, words: str, json: bool, **how: Any) -> None:
    with _interrupted() as pressed:
        with work_shown(quiet=json):
            writing = talk.say(words, **how)
            piece: str | None = next(writing, None)  # reading: the kernels are compiled here
        if talk.forgotten and not json:
            turns = plural(talk.forgotten, "message")
            console.print(f"[dim]its {talk.window:,} positions are full: the oldest {turns} are forgotten[/]")
        while piece is not None and not pressed:
            if not json:
                sys.stdout.write(harmless(piece))
                sys.stdout.flush()
            piece = next(writing, None)
    ended = "stopped" if pressed else writing.ended
    if json:
        said = {"user": words, "assistant": writing.text, "tokens": len(writing.tokens)}
        print_json(said | {"ended": ended, "forgotten": talk.forgotten})
        return
    sys.stdout.write("\n")
    if ended != ENDED:
        console.print(f"[dim]{escape(ended)}[/]")


@contextmanager
def _interrupted() -> Iterator[list[int]]:
    """What Ctrl-C leaves here instead of ending the program; looked at between two tokens."""
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
