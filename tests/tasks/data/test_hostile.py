"""A tokenizer.json that could take forever is one sentence, before anything is built of it."""

import base64
import json
import time
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tapeless.errors import TapelessError
from tapeless.tasks.data.tokenizer import load_tokenizer
from tests.screens import refusal
from tests.tasks.data.texts import description, small_bpe, text


def replaced(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def steps(kind, *each):
    inside = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}[kind]
    return {kind: {"type": "Sequence", inside: list(each)}}


def nested(kind, count, step):
    """Sequences in sequences."""
    found = step
    for _ in range(count - 1):
        found = steps(kind, found, step)[kind]
    return {kind: found}


TEN = replaced({"String": "a"}, "a" * 10)
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DOUBLED = {
    "type": "TemplateProcessing",
    "single": 2 * [{"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}
SPLIT = {"type": "Split", "pattern": {"Regex": "(\\w+\\s?)*!"}, "behavior": "Isolated", "invert": False}
# A trie of nothing, and a text of a thousand bytes to write for a character.
MAPPED = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"x" * 5000 + b"\0").decode()
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
HOSTILE = {
    "nine that write ten for one": (steps("normalizer", *9 * [TEN]), "a normalizer that can make a text 1,000,000,000"),
    "in one another": (nested("normalizer", 9, TEN), "1,000,000,000 times as long, as its steps multiply: at most"),
    "of ninety": (steps("normalizer", *90 * [TEN]), "a normalizer of 90 steps: at most 64"),
    "that do not say what they are": (
        {"normalizer": {"normalizers": 9 * [{k: TEN[k] for k in ("pattern", "content")}]}},
        "a normalizer that can make a text 1,000,000,000",
    ),
    "between all characters": (steps("normalizer", *4 * [replaced({"Regex": ""}, "0123456789")]), "14,641 times"),
    "letters that forms write out": (
        steps("normalizer", *6 * [replaced({"String": "ص"}, "ﷺ"), {"type": "NFKD"}]),
        "a normalizer that can make a text 2",
    ),
    "a map": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": MAPPED}}, "5,000 times as long"),
    "bytes of bytes": (steps("pre_tokenizer", *5 * [BYTES]), "a pre_tokenizer that can make a text 32 times"),
    "behind the model": (steps("decoder", *9 * [TEN]), "a decoder that can make a text 1,000,000,000 times"),
    "repeated": ({"post_processor": DOUBLED}, "a post_processor that repeats a text 2 times"),
    "repeated inside": (
        {"post_processor": {"type": "Sequence", "processors": [DOUBLED]}},
        "a post_processor that repeats a text 2 times",
    ),
    "a pattern": (
        {"pre_tokenizer": SPLIT},
        r'looks for the pattern "(\\w+\\s?)*!", in which what is repeated can match',
    ),
    "a pattern that is replaced": (
        {"normalizer": replaced({"Regex": "(a+)+$"}, "")},
        'looks for the pattern "(a+)+$", in which what is repeated can match in several ways, so that on some texts',
    ),
    "added tokens": (
        {"added_tokens": [{"id": 319 + n, "content": f"{n}" + "a" * 9000, **ADDED} for n in range(9)]}
        | steps("normalizer", *3 * [TEN]),
        "added tokens that its normalizer could make 1,000 times as long",
    ),
    "a long token": ({"added_tokens": [{"id": 319, "content": "a" * 20_000, **ADDED}]}, "a token of 20,000 characters"),
}


def written(folder, changed):
    (folder / "tokenizer.json").write_text(json.dumps(description() | changed))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("name", HOSTILE)
def test_what_could_take_forever_is_one_sentence_at_once(tmp_path, name, capfd):
    changed, said = HOSTILE[name]
    path = written(tmp_path, changed)
    began = time.process_time()
    with pytest.raises(TapelessError) as caught:
        load_tokenizer(path)
    assert time.process_time() - began < 2
    message = str(caught.value)
    assert message.startswith(f"{path} ")
    assert said in message
    assert message.endswith(".")
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_words_of_any_length_are_refused(tmp_path):
    words: dict[str, Any] = {"type": "WordPiece", "vocab": {"a": 0, "</s>": 1, "[UNK]": 2}, "unk_token": "[UNK]"}
    words |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9}
    path = written(tmp_path, {"model": words, "added_tokens": [], "pre_tokenizer": None, "decoder": None})
    with pytest.raises(TapelessError, match="max_input_chars_per_word=1,000,000,000, which takes that to the square"):
        load_tokenizer(path)


def test_what_grows_a_text_by_less_is_tried_on_its_beginning(tmp_path):
    """So that no text becomes a thousand times as long; one that does not grow is read."""
    path = written(tmp_path, steps("normalizer", *3 * [replaced({"String": "q"}, "q" * 10)]))
    loaded = load_tokenizer(path)
    assert loaded.decode(loaded.encode("no such letter")) == "no such letter"
    for read in (loaded.encode, loaded.encode_marked, lambda words: loaded.encode_pieces([words.encode()])):
        with pytest.raises(TapelessError, match=r"makes 512,000 characters of 512 before it reads them, more than 16"):
            read("q" * 10_000)


def test_the_command_says_it_and_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, steps("normalizer", *9 * [TEN]))
    (tmp_path / "a.txt").write_text("a text " * 100)
    assert "can make a text 1,000,000,000 times as long" in refusal(
        "tokenize", "a.txt", "--tokenizer", "tokenizer.json"
    )


# In the manner of those of T5, ALBERT, Llama 2, BERT, XLM-R and GPT-2.
SPACES = normalizers.Replace(" ", "▁")
LIKE_T5 = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"x" * 33 + b"\0").decode()
KNOWN: dict[str, tuple[dict[str, Any], str | None]] = {
    "llama 2": ({"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), SPACES])}, None),
    "bert": ({"normalizer": normalizers.BertNormalizer(), "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}, None),
    "albert": (
        {
            "normalizer": normalizers.Sequence(
                [
                    normalizers.Replace("``", '"'),
                    normalizers.NFKD(),
                    normalizers.StripAccents(),
                    normalizers.Lowercase(),
                ]
            ),
            "pre_tokenizer": pre_tokenizers.Metaspace(),
            "decoder": decoders.Metaspace(),
            "post_processor": processors.TemplateProcessing(single="</s> $A </s>", special_tokens=[("</s>", 1)]),
        },
        LIKE_T5,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_published_ones_do_is_far_from_the_bounds(tmp_path, name):
    from tapeless.tasks.data.tokenizer_bounds import check_bounded

    parts, charsmap = KNOWN[name]
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "</s>": 1}, unk_token="[UNK]"))
    for part, value in parts.items():
        setattr(made, part, value)
    content = json.loads(made.to_str())
    if charsmap is not None:
        several = content["normalizer"]["normalizers"]
        several += [{"type": "Precompiled", "precompiled_charsmap": charsmap}, replaced({"Regex": " {2,}"}, " ")]
    check_bounded("it", content)


def test_a_usual_one_is_read_as_before(tmp_path):
    loaded = load_tokenizer(written(tmp_path, {}))
    assert loaded.encode(text(50)) == small_bpe().encode(text(50))
