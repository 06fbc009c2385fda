"""How a model is spoken with: the template that its conversations are written by, and the tokens that end its turns.

Templates are Jinja, as the models' authors publish them. They are rendered in a process of their own (`worker.py`).
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError, brief
from tapeless.files.disk import write_whole
from tapeless.files.plain import fits, read_json, read_plain
from tapeless.tasks.data.files import LARGEST_JSON, user_path
from tapeless.tasks.data.tokenizer import Tokenizer, load_tokenizer
from tapeless.tasks.data.tokenizer_files import NAMES, read_named, read_object

FILE = "chat.json"
FORMAT = 1
LONGEST_TEMPLATE = 1 << 20
SECONDS = 5.0  # of its process's own time, that a template may take for one conversation
PATIENCE = 120.0  # seconds for an answer from a process that counts its own time: more than a busy machine needs
LEAVING = 20.0  # seconds that it may take to end by itself
# Where a model brings none: plain words, and the end of the text after each answer. No header ends in a space, which a
# tokenizer would join with the word behind it, so that what was trained on is what an answer begins with.
PLAIN = """\
{% for message in messages %}
{{ message['role'] | capitalize }}:
{{ message['content'] | trim }}{{ eos_token if message['role'] == 'assistant' else '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
Assistant:
{% endif %}
"""

Message = Mapping[str, Any]  # role, content, and what else a template may know of


@dataclass(frozen=True)
class RenderedChat:
    """A conversation, or its beginning, as the template writes it; where the template marks what the model says, from
    which character to which."""

    text: str
    marked: list[tuple[int, int]] | None


@dataclass(frozen=True)
class Chat:
    template: str
    tokens: Mapping[str, str]  # those that a template knows by name, such as eos_token
    ends: tuple[int, ...]  # ids that end a turn
    own: bool = True  # the model's own, not the plain one
    _process: list[_Process] = field(default_factory=list, compare=False, repr=False)

    def views(
        self, messages: Sequence[Message], views: Sequence[tuple[int, bool]], tools: Any = None
    ) -> list[RenderedChat]:
        """For each pair of a number and whether an answer is invited: so many of the messages, written out."""
        if not self._process:
            self._process.append(_Process())
        asked = {"template": self.template, "tokens": dict(self.tokens), "messages": list(messages), "tools": tools}
        said = self._process[0].ask(asked | {"views": views, "seconds": SECONDS})
        if "refused" in said:
            raise TapelessError(f"{self.described} {said['refused']}.")
        return [RenderedChat(each["text"], each["marked"]) for each in said["views"]]

    def written(self, messages: Sequence[Message], invited: bool = False) -> str:
        """All of a conversation; `invited` with what stands before an answer."""
        return self.views(messages, [(len(messages), invited)])[0].text

    @property
    def described(self) -> str:
        return "the model's chat template" if self.own else "the plain chat template"

    def save(self, folder: Path) -> None:
        """Beside the tokenizer."""
        kept = {"format": FORMAT, "template": self.template, "tokens": dict(self.tokens), "ends": list(self.ends)}
        write_whole(folder / FILE, json.dumps(kept | {"own": self.own}, indent=2).encode() + b"\n")


class _Process:
    """Renders, one conversation after the other."""

    def __init__(self) -> None:
        if find_spec("jinja2") is None:
            raise TapelessError("chat templates need Jinja: pip install 'tapeless[chat]'.")
        self._begin()

    def _begin(self) -> None:
        command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is meant for us
        )
        self._end = weakref.finalize(self, _ended, self._child)

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        line = b""
        try:
            self._child.stdin.write(json.dumps(asked).encode() + b"\n")
            self._child.stdin.flush()
            if select.select([self._child.stdout], [], [], PATIENCE)[0]:
                line = self._child.stdout.readline()
            else:
                self._child.kill()
        except BrokenPipeError:
            pass
        except BaseException:  # Ctrl-C in between: its answer would be taken for that to the next question
            self._child.kill()
            self._again()
            raise
        if line:
            said: dict[str, Any] = json.loads(line)
            return said
        code = self._again()
        if code == -signal.SIGPROF:
            return {"refused": f"was stopped: it takes longer than {SECONDS:g} seconds, as one that loops does"}
        return {"refused": f"was stopped: its process ended ({code})"}

    def _again(self) -> int:
        """How the process ended, or was ended; the next conversation gets a new one."""
        self._end()
        code = self._child.returncode
        self._begin()
        return code


def _ended(child: subprocess.Popen[bytes]) -> None:
    """Nothing more is asked, so that it ends; if it does not, it is ended."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):  # with something left in it
                pipe.close()
    try:
        child.wait(LEAVING)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def plain_chat(tokenizer: Tokenizer) -> Chat:
    """For a model that brings no template."""
    return Chat(PLAIN, {"eos_token": tokenizer.end_text}, (tokenizer.end,), own=False)


def chat_beside(spec: str | Path | None, tokenizer: Tokenizer) -> Chat:
    """What lies beside a tokenizer, in a run or in a folder in the Hugging Face layout; else the plain one."""
    if spec is None or str(spec) in ("bytes", "bpe"):
        return plain_chat(tokenizer)
    path = user_path(spec)
    folder = path if path.is_dir() else path.parent
    if (folder / FILE).is_file():
        return _kept(folder / FILE, tokenizer)
    return published_chat(folder, tokenizer)


def kept_chat(run: Path, spec: str | Path | None) -> Chat | None:
    """What a run keeps, where it came with a template, or has learned conversations."""
    return None if spec is None or not (run / FILE).is_file() else _kept(run / FILE, load_tokenizer(spec))


def _kept(path: Path, tokenizer: Tokenizer) -> Chat:
    content = read_json(path, LARGEST_JSON)
    shape = {
        "format": lambda value: value == FORMAT,
        "template": str,
        "tokens": {...: str},
        "ends": [lambda value: type(value) is int and 0 <= value < tokenizer.vocab],
        "own": bool,
    }
    if not fits(content, shape):
        raise TapelessError(f"{path} is damaged: put it back as it was, or remove it for the plain template.")
    return Chat(content["template"], content["tokens"], tuple(content["ends"]), content["own"])


def published_chat(folder: Path, tokenizer: Tokenizer) -> Chat:
    """As transformers finds it: chat_template.jinja, or in tokenizer_config.json."""
    about, named = read_object(folder / NAMES), read_named(folder)
    template = _template_file(folder / "chat_template.jinja") or _chosen(folder, about.get("chat_template"))
    ends = {tokenizer.end, *named.stops, tokenizer.specials.get(named.tokens.get("eos_token", ""), tokenizer.end)}
    found = tuple(sorted(each for each in ends if 0 <= each < tokenizer.vocab))
    if template is None:
        return replace(plain_chat(tokenizer), ends=found)
    if len(template) > LONGEST_TEMPLATE:
        raise TapelessError(
            f"{folder} has a chat template of {len(template):,} characters, more than {LONGEST_TEMPLATE:,}."
        )
    return Chat(template, named.tokens, found)


def _template_file(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return read_plain(path, LONGEST_TEMPLATE).decode("utf-8")
    except OSError as error:
        raise TapelessError(f"cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise TapelessError(f"{path} is not UTF-8: save it as that.") from None


def _chosen(folder: Path, given: Any) -> str | None:
    """A template, or of several the one called default."""
    if isinstance(given, list):
        named = [each.get("template") for each in given if isinstance(each, dict) and each.get("name") == "default"]
        given = named[-1] if named else None
    if given is not None and not isinstance(given, str):
        raise TapelessError(f"{folder / NAMES} has a chat_template that is no text: {brief(given)}.")
    return given
