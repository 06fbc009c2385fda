"""A conversation with a model: what was said stays, and what was read is not read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, brief
from tapeless.generate import Decoder, check_sampling, checked_window, choose
from tapeless.model import Model
from tapeless.models.config import check_size
from tapeless.tasks.chat.layouts import ASSISTANT
from tapeless.tasks.chat.template import Message
from tapeless.tasks.chat.turns import Speech
from tapeless.tasks.text import TEMPERATURE
from tapeless.tasks.writing import Sampling, Writing

ENDED, FULL = "it ended its turn", "the positions that it reads are full"
COUNT = 400  # tokens of an answer where nobody says
ROOM = 4  # a share of the positions is kept free for an answer: one in so many


class Talk:
    """`say` something, and the answer comes piece by piece; what came of it, whole or not, is remembered with what was
    said. When the model's positions are full, the oldest turns are forgotten, and `forgotten` says how many were for
    the last answer. What the model is told first, by `system`, stays."""

    def __init__(self, model: Model, speech: Speech, window: int | None = None, system: str | None = None) -> None:
        if system is not None and not isinstance(system, str):
            raise TapelessError(f"system must be text, not {brief(system)}.")
        self.speech, self.window = speech, checked_window(model, window)
        self.forgotten = 0
        self._decoder = Decoder(model, room=self.window)
        self._cached: list[int] = []  # tokens whose keys and values the decoder holds
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._turns: list[Message] = []
        self._writing: Writing | None = None  # the answer that is being given
        self._said = 0

    @property
    def messages(self) -> list[Message]:
        """All that is remembered."""
        answer = [] if self._writing is None else [_answer(self._writing)]
        return [*self._system, *self._turns, *answer]

    def reset(self) -> None:
        """Forget all that was said."""
        self._turns, self._writing, self.forgotten = [], None, 0

    def say(
        self,
        words: str,
        count: int = COUNT,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Writing:
        """What the model answers, in at most `count` tokens, to be read piece by piece: `.whole()` is all of it. How
        tokens are drawn is said as to `generate`."""
        if not isinstance(words, str) or not words.strip():
            raise TapelessError("nothing was said: give some words.")
        asked = Sampling(count, temperature, top_k, top_p, seed)
        how = checked_drawing(asked)
        turns = [*self.messages[len(self._system) :], {"role": "user", "content": words}]
        read, kept = self._fitting(turns, min(count, max(1, self.window // ROOM)))
        self.forgotten, self._turns, self._writing = len(turns) - len(kept), kept, None
        self._said += 1
        rng = np.random.default_rng([how.pop("seed"), self._said])  # a question asked twice may be answered otherwise
        why = [ENDED]

        def tokens(on_slide: Callable[[], None]) -> Iterator[int]:
            yield from self._drawn(read, count, lambda scores: choose(scores, **how, rng=rng))
            if len(self._cached) == self.window:
                why[0] = FULL

        self._writing = Writing(tokens, self.speech.tokenizer.stream(), asked, lambda: why[0])
        return self._writing

    def _fitting(self, turns: list[Message], room: int) -> tuple[list[int], list[Message]]:
        """The conversation without as many of its oldest turns as leave no room for an answer. Turns go as they came:
        with what the user said goes what was answered."""
        while True:
            read = self.speech.invitation([*self._system, *turns])
            if len(read) + room <= self.window:
                return read, turns
            later = next((n for n, turn in enumerate(turns) if n and turn["role"] == "user"), None)
            if later is None:
                raise TapelessError(
                    f"what you said is {len(read):,} tokens with what stands around it, and of the {self.window:,} "
                    f"positions that this model reads {room:,} are for its answer: say less."
                )
            turns = turns[later:]

    def _drawn(self, read: list[int], count: int, draw: Callable[[np.ndarray], int]) -> Iterator[int]:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(read[:-1], self._cached, strict=False)))
        self._cached = []  # whatever happens meanwhile
        self._decoder.read(read[:-1], known=same)
        self._cached = read[:-1]
        last = read[-1]
        for _ in range(count):
            if len(self._cached) == self.window:
                return
            token = draw(self._decoder.step(last))
            self._cached.append(last)
            if token in self.speech.ends:
                return
            yield token
            last = token


def checked_drawing(asked: Sampling) -> dict[str, Any]:
    """How tokens are drawn, where that can be done: the same for all that is said."""
    how = asked.drawing(TEMPERATURE)
    check_sampling(**how)
    check_size("count", asked.most)
    return how


def _answer(writing: Writing) -> Message:
    return {"role": ASSISTANT, "content": writing.text}
