"""What the files beside a tokenizer.json say of its special tokens, in the order in which transformers believes them.

A token is named by tokenizer_config.json, or by the older special_tokens_map.json, which counts where the first has no
`added_tokens_decoder`. Generating stops at what generation_config.json lists as `eos_token_id`; without that file, at
what config.json lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError, brief
from tapeless.files.disk import write_whole
from tapeless.files.plain import read_json
from tapeless.tasks.data.files import LARGEST_JSON

NAMES, MAP = "tokenizer_config.json", "special_tokens_map.json"
GENERATION, MODEL = "generation_config.json", "config.json"
END_OF_TEXT = "<|endoftext|>"
# What well-known vocabularies call the end of a document, the likeliest first: where no file says which it is.
END_NAMES = (
    END_OF_TEXT,
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<|eos|>",
    "<｜end▁of▁sentence｜>",
    "<|im_end|>",
    "[SEP]",
)
IDS = ("eos_token_id", "bos_token_id")
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class NamedTokens:
    """`tokens`: how a token is written, by its role. `stops`: ids at which generating stops. `ends` and `begins`: ids
    that config.json and generation_config.json give for the end and the beginning of a text, the likeliest first."""

    tokens: Mapping[str, str] = field(default_factory=dict)
    stops: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()

    def end(self, origin: str, ids: Mapping[str, int]) -> tuple[str, str]:
        """The token that ends a text: the one that is named, else the one whose id is given, else the first known one
        of a vocabulary; and in the last case, what to say of it."""
        named = self.tokens.get("eos_token")
        if named is not None and named not in ids:
            raise TapelessError(
                f"{origin} has no token {named[:40]!r}, which the files beside it name as eos_token: add it to the "
                f"vocabulary, or name another in {NAMES}."
            )
        if found := named or _first(self.ends, ids):
            return found, ""
        guess = next((name for name in END_NAMES if name in ids), None)
        if guess is None:
            raise TapelessError(
                f"{origin} has no token that is known to end a text: name the one that does as eos_token in a {NAMES} "
                f"beside it."
            )
        return guess, (
            f"no file beside {origin} says which token ends a text, so {guess!r} is taken, by its name: if it is "
            f"another, name it as eos_token in a {NAMES} there"
        )

    def begin(self, ids: Mapping[str, int]) -> str | None:
        named = self.tokens.get("bos_token")
        return named if named in ids else _first(self.begins, ids)


def _first(numbers: tuple[int, ...], ids: Mapping[str, int]) -> str | None:
    texts = {number: text for text, number in ids.items()} if numbers else {}
    return next((texts[each] for each in numbers if each in texts), None)


def read_named(folder: Path) -> NamedTokens:
    """What the files of a folder say; one that is not there says nothing."""
    about = read_object(folder / NAMES)
    tokens = _spelled(folder / NAMES, about)
    if "added_tokens_decoder" not in about:
        tokens |= _spelled(folder / MAP, read_object(folder / MAP))
    model, generation = ({name: _ids(folder / file, name) for name in IDS} for file in (MODEL, GENERATION))
    stops = (generation if (folder / GENERATION).is_file() else model)["eos_token_id"]
    ends, begins = (model[name] + generation[name] for name in IDS)
    return NamedTokens(tokens, stops, ends, begins)


def write_named(folder: Path, tokens: Mapping[str, str], stops: tuple[int, ...]) -> None:
    """The same as files, for `read_named`."""
    write_whole(folder / NAMES, json.dumps(dict(tokens), indent=2).encode() + b"\n")
    if stops:
        write_whole(folder / GENERATION, json.dumps({"eos_token_id": list(stops)}, indent=2).encode() + b"\n")


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file; of one that is not there, an empty one."""
    return read_json(path, LARGEST_JSON, foreign=True) if path.is_file() else {}


def _spelled(path: Path, about: Mapping[str, Any]) -> dict[str, str]:
    """Each token is given as text, or as an object that describes it."""
    found = {}
    for role in ROLES:
        given = about.get(role)
        text = given.get("content") if isinstance(given, dict) else given
        if given is None:
            continue
        if not isinstance(text, str):
            raise TapelessError(f"{path} has {role}={brief(given)}: it must be the text of a token, or null.")
        if text:
            found[role] = text
    return found


def _ids(path: Path, name: str) -> tuple[int, ...]:
    """One id, or a list of them. An id outside the vocabulary means nothing, as in transformers, and is no mistake."""
    given = read_object(path).get(name)
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(each) is int for each in ids):
        raise TapelessError(f"{path} has {name}={brief(given)}: it must be the id of a token, a list of ids, or null.")
    return tuple(ids)
