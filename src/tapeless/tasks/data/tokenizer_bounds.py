"""What a tokenizer.json may ask for: how much longer it may make a text, and how long its patterns may search.

Such a file comes from anywhere, and describes a computation that nothing can stop once it runs: nine steps that each
write ten letters for one make a billion of a word. So what it could come to is bounded before it is built, from what it
says alone. The bounds are loose, and published tokenizers stay far below them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tapeless.errors import TapelessError
from tapeless.tasks.data.patterns import Endless, check_pattern

MOST_STEPS = 64
LONGEST_TOKEN = 10_000  # characters
LONGEST_WORD = 1_000  # characters that WordPiece may look for pieces in: it takes their square
# How many times as many bytes as a text has, a section may make of it, counted for the worst text that there is.
MOST_GROWTH = {"normalizer": 4096, "pre_tokenizer": 16, "decoder": 64}
MOST_ADDED = 1 << 26  # bytes that the normalizer may make of the added tokens, which it reads at once
# A real text grows less. Where the worst could grow more than this, the beginning of each text is tried first.
USUAL_GROWTH = 16
FORMS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")
FORMS_GROWTH = 17  # of the three bytes of U+FDFA NFKD makes 33, and small letters may take half as much again
GROWTH = {"BertNormalizer": 34, "ByteLevel": 2, "Metaspace": 4}


def check_bounded(origin: str, content: Mapping[str, Any]) -> float:
    """How many times as long the normalizer makes a text at most; a description that could take forever is refused."""
    growth = {}
    for section, most in MOST_GROWTH.items():
        steps = list(_steps(content.get(section)))
        if len(steps) > MOST_STEPS:
            raise TapelessError(f"{origin} has a {section} of {len(steps):,} steps: at most {MOST_STEPS} are taken.")
        growth[section] = _growth(steps)
        if growth[section] > most:
            raise TapelessError(
                f"{origin} has a {section} that can make a text {_times(growth[section])} times as long, as its steps "
                f"multiply: at most {most:,} times is taken."
            )
        for step in steps:
            _check_patterns(origin, step)
    _check_repeated(origin, content.get("post_processor"))
    _check_tokens(origin, content, growth["normalizer"])
    return growth["normalizer"]


def _steps(given: Any) -> Iterator[dict[str, Any]]:
    """The steps of a section, also those of sequences in it, in their order. A sequence is told by what it holds, since
    the package reads steps that do not say their type, too."""
    if not isinstance(given, dict):
        return
    inside = [value for value in given.values() if isinstance(value, list)]
    if any(isinstance(each, dict) for value in inside for each in value):
        for value in inside:
            for each in value:
                yield from _steps(each)
    else:
        yield given


def _growth(steps: list[dict[str, Any]]) -> float:
    total, formed = 1.0, False
    for step in steps:
        kind = step.get("type")
        if kind in FORMS:
            total *= 1 if formed else FORMS_GROWTH
            formed = True  # once more makes nothing longer, unless something new was written between
        elif "precompiled_charsmap" in step:
            total *= _longest_mapped(step["precompiled_charsmap"])
            formed = False
        elif "pattern" in step or "content" in step:
            written, pattern = str(step.get("content", "")), step.get("pattern")
            found = pattern.get("String") if isinstance(pattern, dict) else pattern
            length = len(written.encode("utf-8", "replace"))
            # A regular expression may find nothing between any two characters, and write there.
            total *= max(1.0, length / len(found.encode())) if isinstance(found, str) and found else 1 + length
            formed = formed and written.isascii()
        else:
            total *= GROWTH.get(str(kind), 1)
    return total


def _longest_mapped(given: Any) -> int:
    """The most bytes that SentencePiece's map, a trie and texts that end in NUL, may write for a character."""
    try:
        blob = base64.b64decode(given, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return 1  # the package refuses it
    begin = 4 + int.from_bytes(blob[:4], "little")
    return max((len(each) for each in blob[begin:].split(b"\0")), default=1) or 1


def _check_patterns(origin: str, step: Mapping[str, Any]) -> None:
    pattern = step.get("pattern")
    source = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(source, str):
        try:
            check_pattern(source)
        except Endless as error:
            raise TapelessError(f"{origin} looks for the pattern {_short(source)}, {error}.") from None


def _check_repeated(origin: str, given: Any) -> None:
    """A template that has the text in it twice doubles it."""
    for step in _pieces(given):
        texts = sum(1 for piece in step if isinstance(piece, dict) and "Sequence" in piece)
        if texts > 1:
            raise TapelessError(f"{origin} has a post_processor that repeats a text {texts:,} times: it must be once.")


def _pieces(given: Any) -> Iterator[list[Any]]:
    if isinstance(given, dict):
        if isinstance(given.get("single"), list):
            yield given["single"]
        for value in given.values():
            for each in value if isinstance(value, list) else ():
                yield from _pieces(each)


def _check_tokens(origin: str, content: Mapping[str, Any], growth: float) -> None:
    model = content["model"]
    vocab = model.get("vocab")
    pairs, added = (each if isinstance(each, list) else [] for each in (vocab, content.get("added_tokens")))
    named = vocab if isinstance(vocab, dict) else [each[0] for each in pairs if isinstance(each, list) and each]
    texts = [each.get("content") for each in added if isinstance(each, dict)]
    longest = max((len(each) for each in (*named, *texts) if isinstance(each, str)), default=0)
    if longest > LONGEST_TOKEN:
        raise TapelessError(f"{origin} has a token of {longest:,} characters: at most {LONGEST_TOKEN:,} are taken.")
    if growth * sum(len(each.encode("utf-8", "replace")) for each in texts if isinstance(each, str)) > MOST_ADDED:
        raise TapelessError(
            f"{origin} has added tokens that its normalizer could make {_times(growth)} times as long, more than "
            f"{MOST_ADDED:,} bytes in all: it is not taken."
        )
    word = model.get("max_input_chars_per_word")
    if isinstance(word, int) and word > LONGEST_WORD:
        raise TapelessError(
            f"{origin} has max_input_chars_per_word={_times(word)}, which takes that to the square: at most "
            f"{LONGEST_WORD:,} is taken."
        )


def _times(number: float) -> str:
    return f"{number:,.0f}" if number < 1e12 else f"{number:.0e}"


def _short(source: str) -> str:
    return json.dumps(source if len(source) <= 60 else source[:59] + "…", ensure_ascii=False)
