"""What a model writes, as text that comes bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from tapeless.errors import TapelessError

COUNT = 200  # tokens, where nobody says how many


class SamplingFields(TypedDict, total=False):
    """The names of a `Sampling` but for its count, as keywords of a call."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    stop: str | None


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn, as `tapeless.generate.generate` has it; None for what was not asked for. Without a
    temperature, as suits the task."""

    count: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | None = None  # text, before which it ends

    @property
    def most(self) -> int:
        """How many tokens are written, at most."""
        return COUNT if self.count is None else self.count

    def drawing(self, usual: float) -> dict[str, Any]:
        """What `generate` takes of it; `usual`: the temperature where none was asked for."""
        temperature = usual if self.temperature is None else self.temperature
        for name in ("top_k", "top_p", "seed"):
            if temperature == 0 and getattr(self, name) is not None:
                raise TapelessError(
                    f"{name} would have no effect at temperature 0, where the likeliest is taken: leave it out or give "
                    f"a temperature."
                )
        seed = 0 if self.seed is None else self.seed
        return {"temperature": temperature, "top_k": self.top_k, "top_p": self.top_p, "seed": seed}


class Spelling(Protocol):
    """Ids in, one at a time; out comes the text that can no longer change."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class Writing:
    """An iterator over pieces of text, each as soon as it is certain. It ends before `stop`, if that is written, and
    what may be the beginning of `stop` is held back until it is not. `text`, `tokens`, `ended` and `slid` say what has
    come so far."""

    def __init__(
        self,
        tokens: Callable[[Callable[[], None]], Iterable[int]],
        spelling: Spelling,
        asked: Sampling,
        complete: str | Callable[[], str] = "the document ended",
    ) -> None:
        """`tokens` is given what to call whenever the model's window slides. `complete`: what has happened where it
        ends by itself, or who knows."""
        if asked.stop is not None and not (isinstance(asked.stop, str) and asked.stop):
            raise TapelessError(f"stop must be some text, not {asked.stop!r}: leave it out to write on.")
        self.text = ""
        self.tokens: list[int] = []
        self.ended = ""  # why, once it has
        self.slid = 0  # how often the beginning fell out of what the model sees
        self._pieces = self._written(tokens(self._note_slide), spelling, asked, complete)

    def __repr__(self) -> str:
        return f"<{len(self.tokens)} tokens so far: {self.text!r}{f'; {self.ended}' if self.ended else ' …'}>"

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def whole(self) -> str:
        """All of it, once it has ended."""
        for _ in self:
            pass
        return self.text

    def _note_slide(self) -> None:
        self.slid += 1

    def _written(
        self, tokens: Iterable[int], spelling: Spelling, asked: Sampling, complete: str | Callable[[], str]
    ) -> Iterator[str]:
        given, stop = 0, asked.stop
        for token in tokens:
            self.tokens.append(token)
            self.text += spelling.push(token)
            if stop is not None and stop in self.text:
                self.text, self.ended = self.text[: self.text.index(stop)], f"{stop!r} was reached"
                break
            certain = len(self.text) - (0 if stop is None else _overlap(self.text, stop))
            if given < certain:
                yield self.text[given:certain]
                given = certain
        else:
            self.text += spelling.finish()
            by_itself = complete if isinstance(complete, str) else complete()
            self.ended = by_itself if len(self.tokens) < asked.most else "as many as were asked for"
        if given < len(self.text):
            yield self.text[given:]


def _overlap(text: str, stop: str) -> int:
    """How much of the text's end could be the beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-n:])), 0)
