"""A tokenizer.json as GGUF has it: every token in its place, how words are split, what is joined in which order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.files.plain import read_json
from tapeless.tasks.chat.template import Chat
from tapeless.tasks.chat.turns import Speech
from tapeless.tasks.data.files import LARGEST_JSON
from tapeless.tasks.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

# How llama.cpp calls the ways in which tokenizers split text before they join its bytes.
NUMBERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {NUMBERS % "{1,3}": "llama-bpe", NUMBERS % "": "qwen2"}
# With nothing to join, the file must still have a merge: of two bytes that never follow each other in UTF-8.
IDLE_MERGE = "ÿ ÿ"
META = "▁"  # SentencePiece's blank


def read_vocabulary(spec: str | Path, count: int, chat: Chat | None) -> dict[str, Any]:
    """What GGUF says of words, by the names that its writer has; None for what it does not say. `count`: how many
    tokens the model knows, of which a tokenizer may name fewer."""
    tokenizer = load_tokenizer(spec)
    if spec == "bytes":
        content: dict[str, Any] = json.loads(ByteTokenizer().as_json())
    else:
        content = read_json(Path(spec), LARGEST_JSON, foreign=True)
    model = content["model"]
    if model.get("type") != "BPE":
        raise _refused(spec, f"it is {model.get('type')}, not BPE")
    pairs = [each if isinstance(each, str) else " ".join(each) for each in model.get("merges", ())]
    pieces = bool(model.get("byte_fallback"))
    splits = "default" if pieces else _splits(spec, content, bool(pairs))
    tokens, kinds = _listed(content, count, pieces)
    if pieces:
        _check_pieces(spec, content)
    begin, begins = _begin(content, tokenizer, chat)
    end, turn_end, message_end = _ends(tokenizer, chat)
    for special in (begin, end, turn_end, message_end):
        if special is not None and kinds[special] == "NORMAL":
            kinds[special] = "CONTROL"
    return {
        "tokenizer_model": "llama" if pieces else "gpt2",  # SentencePiece's, or bytes that are joined
        "tokenizer_pre": splits,
        "token_list": tokens,
        "token_types": kinds,
        "token_scores": _scores(tokens, pairs) if pieces else None,
        "token_merges": None if pieces else pairs or [IDLE_MERGE],
        "eos_token_id": end,
        "eot_token_id": turn_end,  # where another token ends a turn
        "eom_token_id": message_end,  # and where a third ends a message
        "bos_token_id": begin,
        "unk_token_id": model["vocab"].get(model.get("unk_token")),
        "pad_token_id": tokenizer.specials.get(tokenizer.named.get("pad_token", "")),
        "add_bos_token": begins,  # before every text
        "add_space_prefix": _spaced(content) if pieces else None,
        "chat_template": None if chat is None else chat.template,
    }


def _refused(spec: str | Path, why: str) -> TapelessError:
    return TapelessError(f"the tokenizer {spec} cannot be written as GGUF: {why}, which llama.cpp has no way for.")


def _listed(content: Mapping[str, Any], count: int, pieces: bool) -> tuple[list[str], list[str]]:
    tokens, kinds = [f"[PAD{number}]" for number in range(count)], ["UNUSED"] * count
    unknown = content["model"].get("unk_token")
    for token, number in content["model"]["vocab"].items():
        byte = pieces and len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        tokens[number] = token
        kinds[number] = "BYTE" if byte else "UNKNOWN" if token == unknown else "NORMAL"
    for added in content.get("added_tokens") or ():
        tokens[added["id"]] = added["content"]
        if kinds[added["id"]] != "UNKNOWN":
            kinds[added["id"]] = "CONTROL" if added.get("special") else "USER_DEFINED"
    return tokens, kinds


def _splits(spec: str | Path, content: Mapping[str, Any], joins: bool) -> str:
    """The name of how text is split, of those that are known to be the same here and there."""
    normalizer = content.get("normalizer") or {"type": None}
    if normalizer["type"] not in (None, "NFC"):
        raise _refused(spec, f"it changes text before it reads it ({normalizer['type']})")
    given = content.get("pre_tokenizer") or {"type": None}
    steps = given["pretokenizers"] if given["type"] == "Sequence" else [given]
    *before, last = steps
    if last["type"] != "ByteLevel" or last.get("add_prefix_space"):
        raise _refused(spec, "it does not join bytes, or puts a blank before every text")
    if not joins:
        return "gpt-2"  # where nothing is joined, it does not matter where a text is split
    if last.get("use_regex", True):
        if not before:
            return "gpt-2"
        if len(before) == 1 and before[0]["type"] == "Digits" and before[0].get("individual_digits"):
            return "smollm"
    elif len(before) == 1 and before[0]["type"] == "Split":
        found = PATTERNS.get(before[0]["pattern"].get("Regex", ""))
        if found is not None and before[0].get("behavior") == "Isolated" and not before[0].get("invert"):
            return found
    raise _refused(spec, "it splits text in a way of its own")


def _check_pieces(spec: str | Path, content: Mapping[str, Any]) -> None:
    """SentencePiece's way: blanks become ▁, and text is split nowhere else."""
    kinds = {each["type"] for each in _steps(content, "normalizer", "normalizers")}
    splits = {each["type"] for each in _steps(content, "pre_tokenizer", "pretokenizers")}
    if not (kinds <= {"Prepend", "Replace"} and splits <= {"Metaspace"} and kinds | splits):
        raise _refused(spec, "it falls back on bytes, but is not as SentencePiece's are")


def _steps(content: Mapping[str, Any], name: str, inside: str) -> list[dict[str, Any]]:
    given = content.get(name)
    if given is None:
        return []
    return list(given[inside]) if given["type"] == "Sequence" else [given]


def _spaced(content: Mapping[str, Any]) -> bool:
    steps = _steps(content, "normalizer", "normalizers") + _steps(content, "pre_tokenizer", "pretokenizers")
    return any(each["type"] == "Prepend" or each.get("prepend_scheme") in ("always", "first") for each in steps)


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """The sooner two pieces are joined, the higher what they become: so SentencePiece's order is that of the merges."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault(pair.replace(" ", ""), rank)
    return [-float(ranks.get(token, len(merges) + number)) for number, token in enumerate(tokens)]


def _begin(content: Mapping[str, Any], tokenizer: Tokenizer, chat: Chat | None) -> tuple[int, bool]:
    """The token that begins a text, and whether the tokenizer puts it there by itself. Where there is none, a text
    begins behind the end of another, as in training; without any llama.cpp would take the one of GPT-2 or of Llama."""
    steps = _steps(content, "post_processor", "processors")
    for step in steps:
        first = (step.get("single") or [{}])[0] if step["type"] == "TemplateProcessing" else {}
        if "SpecialToken" in first and first["SpecialToken"]["id"] in tokenizer.specials:
            return tokenizer.specials[first["SpecialToken"]["id"]], True
    for named in (_named(tokenizer, chat, "bos_token"), tokenizer.begin):
        if named is not None:
            return named, False
    return tokenizer.end, False


def _named(tokenizer: Tokenizer, chat: Chat | None, role: str) -> int | None:
    return None if chat is None else tokenizer.specials.get(chat.tokens.get(role, ""))


def _ends(tokenizer: Tokenizer, chat: Chat | None) -> tuple[int, int | None, int | None]:
    """The token that ends a text, and up to two others at which writing stops, first that which ends a turn."""
    behind = None if chat is None else Speech(chat, tokenizer).turn_end
    stops = dict.fromkeys(([] if behind is None else [behind]) + list(tokenizer.stops))
    stops |= dict.fromkeys(() if chat is None else chat.ends)
    named = _named(tokenizer, chat, "eos_token")
    end = tokenizer.end if named is None else named
    others = [*(each for each in stops if each != end), None, None]
    return end, others[0], others[1]
