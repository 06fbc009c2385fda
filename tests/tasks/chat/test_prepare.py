"""From a file of conversations to a folder of tokens: whole, split by conversations, and believed only when sound."""

import json

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.tasks.chat.prepare import holds_conversations, open_chats, prepare_chats
from tapeless.tasks.data.reading import Reading
from tests.tasks.chat.spoken import CHATML, TOKENS, tokenizer_json


def chats(folder, count=40, extra=()):
    path = folder / "chats.jsonl"
    rows = [{"prompt": f"What is {number}?", "completion": f"It is {number}."} for number in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *extra]))
    return str(path)


def test_whole_conversations_are_held_out_and_the_same_stay_together(tmp_path):
    twice = [{"prompt": "Again?", "completion": "Again."}] * 6
    about = prepare_chats(chats(tmp_path, extra=twice), tmp_path / "out", validation=0.2, seed=3)
    data = open_chats(tmp_path / "out")
    assert holds_conversations(tmp_path / "out")
    assert data.about == about
    assert about.training.conversations + about.validation.conversations == 46
    assert 0.1 < about.validation.tokens / (about.validation.tokens + about.training.tokens) <= 0.2
    texts = []
    for side in (data.training, data.validation):
        ends = np.cumsum(side.lengths)
        texts.append(
            [
                data.tokenizer.decode(side.ids[end - length : end])
                for end, length in zip(ends, side.lengths, strict=True)
            ]
        )
    assert not set(texts[0]) & set(texts[1])
    assert all(text.startswith("User:\n") for text in texts[0] + texts[1])
    assert sorted(texts[0] + texts[1]).count("User:\nAgain?\n\nAssistant:\nAgain.") == 6


def test_the_template_beside_a_tokenizer_is_taken_and_kept(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "tokenizer.json").write_text(tokenizer_json())
    (base / "tokenizer_config.json").write_text(json.dumps(TOKENS | {"chat_template": CHATML}))
    for spec in (base, base / "tokenizer.json"):
        out = tmp_path / f"out-{spec.name}"
        prepare_chats(chats(tmp_path), out, tokenizer=str(spec))
        data = open_chats(out)
        assert data.chat.template == CHATML
        side, end = data.training, data.tokenizer.specials["<|im_end|>"]
        assert (side.ids[np.cumsum(side.lengths) - 1] == end).all()


def test_a_vocabulary_can_be_learned_from_the_words(tmp_path):
    prepare_chats(chats(tmp_path), tmp_path / "out", tokenizer="bpe", vocab=300)
    assert open_chats(tmp_path / "out").about.vocab == 300


def test_what_is_left_out_is_told_and_duplicates_on_request(tmp_path):
    extra = [
        {"prompt": "What ends it?", "completion": "<|endoftext|> does."},
        {"prompt": "What is 1?", "completion": "It is 1."},
    ]
    about = prepare_chats(
        chats(tmp_path, 5, extra), tmp_path / "out", reading=Reading(drop_duplicates=True), validation=0.3
    )
    assert about.skipped == {"that spell a special token": 1, "duplicate": 1}
    assert about.examples["duplicate"].endswith("chats.jsonl, line 7")


def test_too_little_and_wrong_options_are_refused_with_nothing_written(tmp_path):
    out = tmp_path / "out"
    same = [{"prompt": "a", "completion": "b"}] * 3
    with pytest.raises(TapelessError, match="holds 1 conversation, and one is to be held out"):
        prepare_chats(chats(tmp_path, 0, same), out)
    source = chats(tmp_path, 4, [{"messages": [{"role": "user", "content": "a"}]}])
    with pytest.raises(TapelessError, match="line 5: nobody answers"):
        prepare_chats(source, out)
    with pytest.raises(TapelessError, match="leave it out, or choose tokenizer bpe"):
        prepare_chats(chats(tmp_path), out, vocab=300)
    with pytest.raises(TapelessError, match="half a surrogate"):
        prepare_chats(chats(tmp_path, 4, [{"prompt": "\ud800", "completion": "b"}]), out)
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]


def test_a_damaged_folder_is_refused(tmp_path):
    out = tmp_path / "out"
    prepare_chats(chats(tmp_path), out)
    about = json.loads((out / "conversations.json").read_text())

    def refused(said, **changed):
        (out / "conversations.json").write_text(json.dumps(about | changed))
        with pytest.raises(TapelessError, match=said):
            open_chats(out)

    refused("must be at least 1", training=about["training"] | {"tokens": 0})
    refused("tokenizer", vocab=256)
    refused("has version 2", version=2)
    refused("SHA-256 differs", validation=about["validation"] | {"sha256": "0" * 64})
    refused("does not fit together", validation=about["validation"] | {"conversations": 1})
    (out / "training.safetensors").unlink()
    refused("cannot read .*No such file")
