"""A conversation as a model reads it: its tokens, and which of them are the assistant's, to be learned.

The assistant's are those that a model must write itself when it is spoken with: all that follows what invites an
answer, up to the token that ends the turn. Where a template marks what the model generates, it is that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from secrets import token_hex

import numpy as np

from tapeless.errors import TapelessError
from tapeless.ops.contract import Array
from tapeless.tasks.chat.layouts import ASSISTANT, ROLES, Conversation
from tapeless.tasks.chat.template import Chat, Message, RenderedChat
from tapeless.tasks.data.tokenizer import Tokenizer


class SpecialError(TapelessError):
    """Somebody spells a special token out."""


@dataclass(frozen=True)
class Turns:
    """Ids, and of each whether it is learned. `text` and `spans`: what they stand for, for people."""

    ids: Array
    learned: Array
    text: str
    spans: Array  # (N, 2), characters of the text


class Speech:
    """A way of speaking and the tokens that it is spoken in."""

    def __init__(self, chat: Chat, tokenizer: Tokenizer) -> None:
        self.chat, self.tokenizer = chat, tokenizer

    @cached_property
    def ends(self) -> frozenset[int]:
        """What ends a turn: what the model's files say, and what the template does."""
        return frozenset(self.chat.ends) | ({self.turn_end} if self.turn_end is not None else frozenset())

    @cached_property
    def turn_end(self) -> int | None:
        """The first special token that the template puts behind an answer."""
        word, known = "word", frozenset(self.tokenizer.specials.values())
        text = self.chat.written([{"role": "user", "content": word}, {"role": ASSISTANT, "content": word}])
        behind = self.tokenizer.encode_marked(text.rpartition(word)[2])[0]
        return next((int(each) for each in behind if int(each) in known), None)

    def invitation(self, messages: Sequence[Message]) -> list[int]:
        """What stands before an answer."""
        check_words(messages, self.tokenizer)
        ids, _ = self.tokenizer.encode_marked(self.chat.written(messages, invited=True))
        return [int(each) for each in ids]

    def turns(self, conversation: Conversation) -> Turns:
        """All of a conversation."""
        messages = conversation.messages
        check_speakers(messages, self.chat)
        check_words(messages, self.tokenizer)
        asked = [(len(messages), False)]
        for number, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                asked += [(number, True), (number + 1, False)]
        whole, *parts = self.chat.views(messages, asked, conversation.tools)
        ids, spans = self.tokenizer.encode_marked(whole.text)
        if whole.marked is None:
            ends = np.isin(ids, list(self.ends))
            turns = list(zip(parts[::2], parts[1::2], strict=True))
            wrong = next((n for n, (before, _) in enumerate(turns) if not whole.text.startswith(before.text)), None)
            if wrong is None:
                learned = _between(whole, turns, spans, ends)
            else:
                learned = np.zeros(len(ids), bool)
                for begin, end in self._placed(conversation, asked, whole, wrong):
                    learned |= _until(_within(spans, begin, end), ends)
        else:
            learned = np.zeros(len(ids), bool)
            for begin, end in whole.marked:
                learned |= _within(spans, begin, end)
        return Turns(ids, learned, whole.text, spans)

    def _placed(
        self, conversation: Conversation, asked: Sequence[tuple[int, bool]], whole: RenderedChat, wrong: int
    ) -> Iterator[tuple[int, int]]:
        """From where to where each answer reaches, for a template that writes what comes before an answer otherwise
        once more follows: Mistral's has the system message in front of the last question. All is written once more
        with marks around what is said. An answer begins where what invited it ends, behind the message before it, and
        ends where it does when nothing follows."""
        marks = [token_hex(16) for _ in conversation.messages]
        messages = [_marked(*each) for each in zip(conversation.messages, marks, strict=True)]
        again, *parts = (_unmarked(view.text, marks) for view in self.chat.views(messages, asked, conversation.tools))
        answers = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
        for number, before, after in zip(answers, parts[::2], parts[1::2], strict=True):
            found = [place for place, (mark, _) in enumerate(again.marks) if mark == number]
            if again.text != whole.text or len(found) != 2 or not after.marks or after.marks[-1][0] != number:
                raise _otherwise(wrong)
            first, last = found
            behind, begin = again.marks[first - 1] if first else (None, 0)
            asking, place = before.marks[-1] if before.marks else (None, 0)
            invitation = before.text[place:]
            if behind != asking or not again.text.startswith(invitation, begin):
                raise _otherwise(wrong)
            end = again.marks[last][1]
            rest = again.text[end : again.marks[last + 1][1] if last + 1 < len(again.marks) else None]
            alone = after.text[after.marks[-1][1] :]
            same = takewhile(lambda pair: pair[0] == pair[1], zip(rest, alone, strict=False))
            yield begin + len(invitation), end + len(list(same))


@dataclass(frozen=True)
class _Unmarked:
    """A text, and which marks stood where in it."""

    text: str
    marks: list[tuple[int, int]]


def _marked(message: Message, mark: str) -> Message:
    """Blanks around what is said stay outside, as a template may trim them; nothing said stays nothing."""
    words = message["content"]
    inner = words.strip()
    return {**message, "content": words.replace(inner, f"{mark}{inner}{mark}")} if inner else message


def _unmarked(text: str, marks: Sequence[str]) -> _Unmarked:
    numbers = {mark: number for number, mark in enumerate(marks)}
    parts, found, place = [], list[tuple[int, int]](), 0
    for part in re.split(f"({'|'.join(marks)})", text):
        if part in numbers:
            found.append((numbers[part], place))
        else:
            parts.append(part)
            place += len(part)
    return _Unmarked("".join(parts), found)


def _otherwise(number: int) -> TapelessError:
    return TapelessError(
        f"the chat template writes what comes before answer {number + 1} otherwise once more follows, so its words "
        f"cannot be told from the rest: mark them in the template with {{% generation %}}."
    )


def check_speakers(messages: Sequence[Message], chat: Chat) -> None:
    """Most templates would write any word down as a name. A speaker of a model's own, such as Llama 3's ipython, stands
    in its template."""
    for role in dict.fromkeys(message["role"] for message in messages):
        named = chat.own and any(f"{quote}{role}{quote}" in chat.template for quote in "'\"")
        if role not in ROLES and not named:
            raise TapelessError(f"nobody knows who speaks as {role[:40]!r}: say {', '.join(ROLES)}.")


def check_words(messages: Sequence[Message], tokenizer: Tokenizer) -> None:
    """Who says `<|im_end|>` would end the turn: such words cannot be told from the template's own."""
    for message in messages:
        for token in tokenizer.specials:
            if token in message["content"]:
                raise SpecialError(
                    f"what {message['role']} says holds {token!r}, which this model reads as a token of its own and "
                    f"not as words: take it out."
                )


def _between(whole: RenderedChat, turns: list[tuple[RenderedChat, RenderedChat]], spans: Array, ends: Array) -> Array:
    """For each answer, the conversation up to its invitation and that up to its end: what the second has more."""
    learned = np.zeros(len(spans), bool)
    for number, (before, after) in enumerate(turns):
        begin, end = len(before.text), len(after.text)
        if not whole.text.startswith(after.text):  # an earlier answer is written shorter, say without its thoughts
            following = [later.text for later, _ in turns[number + 1 :]]
            end = len(following[0]) if following else len(whole.text)
        learned |= _until(_within(spans, begin, end), ends)
    return learned


def _until(inside: Array, ends: Array) -> Array:
    """Up to the first token that ends a turn."""
    ended = np.flatnonzero(inside & ends)
    if len(ended):
        inside[ended[0] + 1 :] = False
    return inside


def _within(spans: Array, begin: int, end: int) -> Array:
    inside: Array = (spans[:, 0] < end) & (spans[:, 1] > begin)
    return inside
