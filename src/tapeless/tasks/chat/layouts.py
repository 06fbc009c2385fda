"""Conversations as people keep them: JSON lines, or one JSON list, of objects in one of three layouts.

{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
{"prompt": "…", "completion": "…"}
{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tapeless.errors import TapelessError
from tapeless.files.compressed import unpacked
from tapeless.tasks.chat.template import Message
from tapeless.tasks.data.documents import opened, unreadable
from tapeless.tasks.data.files import user_path
from tapeless.tasks.data.reading import (
    USUAL,
    as_utf8,
    bare_suffix,
    json_kind,
    json_objects,
    listed_objects,
    marked_encoding,
)

ASSISTANT = "assistant"
ROLES = ("system", "developer", "user", ASSISTANT, "tool", "function")
# What ShareGPT and its kin call who speaks.
SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "assistant": ASSISTANT,
    "model": ASSISTANT,
    "bot": ASSISTANT,
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
LISTS, PAIR = ("messages", "conversations"), "prompt and completion"
LAYOUTS = "messages (of role and content), prompt and completion, or conversations (of from and value)"
LINES, LIST = (".jsonl", ".ndjson"), ".json"
LOOKED_AT = 1 << 22  # bytes of a file's beginning in which its first row must end, to be known for a conversation
MARKED = 4  # bytes of a byte-order mark


@dataclass(frozen=True)
class Conversation:
    messages: Sequence[Message]
    place: str  # for sentences: where it stands
    tools: Any = None  # that the template is told of


def are_conversations(source: str, named: bool = False) -> bool:
    """Whether a file, by its name and its first row, holds conversations, or what was meant to be some: where another
    field is `named` as the text, sound ones alone. A row with a field `text` is text; a file that is empty is neither,
    and refused."""
    path = user_path(source)
    try:
        if bare_suffix(path) not in (*LINES, LIST) or not path.is_file():
            return False
        with opened(path) as raw:
            head = unpacked(path, raw).read(LOOKED_AT)
    except (OSError, ValueError, TapelessError):  # whoever reads all of it will say so
        return False
    if len(head) < LOOKED_AT and not head.strip():
        raise TapelessError(f"{path} is empty: give a file with text or conversations.")
    row = _first_row(head, bare_suffix(path))
    if not isinstance(row, dict) or USUAL in row:
        return False
    layouts = _layouts(row)
    return PAIR in layouts or any(isinstance(row[name], list) or not named for name in layouts)


def _first_row(head: bytes, suffix: str) -> Any:
    text = head.decode(marked_encoding(head[:MARKED]) or "utf-8-sig", "replace").lstrip()
    if suffix == LIST:
        if not text.startswith("["):
            return None
        text = text[1:].lstrip()
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _layouts(row: dict[str, Any]) -> list[str]:
    """Those that a row has, sound or not. A number may count messages, and null is nothing."""
    found = [name for name in LISTS if isinstance(row.get(name), list | dict | str)]
    return [*found, PAIR] if {"prompt", "completion"} <= row.keys() else found


def read_conversations(source: str, encoding: str | None = None) -> Iterator[Conversation]:
    """One after the other, each checked."""
    path = user_path(source)
    with _streamed(path, encoding) as stream:
        for line, row in (listed_objects if bare_suffix(path) == LIST else json_objects)(stream, path):
            place = f"{path}, line {line:,}"
            try:
                messages = _messages(row)
                _check_answered(messages)
                if not isinstance(row.get("tools"), list | None):
                    raise _UnfitError(
                        f"tools holds {json_kind(row['tools'])}, and a template is told of a list of them"
                    )
            except _UnfitError as error:
                raise TapelessError(f"{place}: {error}.") from None
            yield Conversation(messages, place, row.get("tools") or None)


@contextmanager
def _streamed(path: Path, encoding: str | None) -> Iterator[BinaryIO]:
    """As UTF-8 without a mark."""
    try:
        with opened(path) as raw:
            marked = marked_encoding(unpacked(path, raw).read(MARKED))
            raw.seek(0)
            yield as_utf8(unpacked(path, raw), path, marked or encoding)
    except OSError as error:
        unreadable(path, error)


class _UnfitError(Exception):
    """What is wrong with a row, as the end of a sentence."""


def _messages(row: dict[str, Any]) -> list[Message]:
    layouts = _layouts(row)
    if len(layouts) > 1:
        raise _UnfitError(
            f"it has {' and also '.join(layouts)}, and one of them is the conversation: leave out the rest"
        )
    if layouts == [PAIR]:
        return [*_said("user", row["prompt"]), *_said(ASSISTANT, row["completion"])]
    for name in layouts or [each for each in LISTS if each in row]:
        if not isinstance(row[name], list):
            raise _UnfitError(f"{name} holds {json_kind(row[name])}, and must hold a list of what was said")
        return [(_message if name == "messages" else _spoken)(each) for each in row[name]]
    names = ", ".join(repr(name[:40]) for name in list(row)[:8]) or "nothing"
    raise _UnfitError(f"there is no conversation in it, but {names}; it must have {LAYOUTS}")


def _said(role: str, given: Any) -> list[Message]:
    """Text that somebody says, or messages themselves."""
    if isinstance(given, list):
        return [_message(each) for each in given]
    return [{"role": role, "content": _text(role, given)}]


def _message(given: Any) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str) or not given["role"]:
        raise _UnfitError("a message must be an object with a role and a content")
    if given.get("content") is None and given.get("tool_calls"):
        return {**given, "content": ""}
    return {**given, "content": _text(given["role"], given.get("content"))}


def _spoken(given: Any) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("from"), str):
        raise _UnfitError("each of conversations must be an object with from and value")
    role = SPEAKERS.get(given["from"].lower())
    if role is None:
        raise _UnfitError(f"nobody knows who speaks as {given['from'][:40]!r}: say {', '.join(SPEAKERS)}")
    return {"role": role, "content": _text(role, given.get("value"))}


def _text(role: str, given: Any) -> str:
    """Text, or parts of it."""
    if isinstance(given, list):
        parts = [each.get("text") if isinstance(each, dict) and each.get("type") == "text" else None for each in given]
        if all(isinstance(part, str) for part in parts):
            return "".join(str(part) for part in parts)
        raise _UnfitError(f"what {role[:20]!r} says has parts that are no text")
    if not isinstance(given, str):
        raise _UnfitError(f"what {role[:20]!r} says must be text, not {json_kind(given)}")
    return given


def _check_answered(messages: list[Message]) -> None:
    if not any(message["role"] == ASSISTANT for message in messages):
        roles = ", ".join(dict.fromkeys(str(message["role"])[:20] for message in messages)) or "nobody"
        raise _UnfitError(
            f"nobody answers: a conversation needs an assistant, whose words are learned, and here {roles} "
            f"speak{'s' * (', ' not in roles)}"
        )
