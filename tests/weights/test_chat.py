"""A template goes out with the weights as transformers reads it, and comes back."""

import json

import pytest
from tokenizers import Tokenizer

import tapeless
from tapeless.tasks.chat.template import FILE, kept_chat
from tapeless.train.run import open_run
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tapeless.weights.hugging_face import write_folder
from tapeless.weights.runs import export_run, import_folder
from tests.tasks.chat.spoken import CHATML, HELLO, TOKENS, tokenizer_json

SMALL = {"layers": 1, "channels": 32, "heads": 4, "kv_heads": 2, "hidden": 48}


@pytest.mark.parametrize("kind", ["own", "bytes"])
def test_an_exported_model_is_spoken_with_by_transformers_as_by_us(tmp_path, kind):
    from transformers import AutoTokenizer

    rows = [{"prompt": f"Say {word}.", "completion": f"{word}!"} for word in "abcdefgh"]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = "bytes"
    if kind == "own":
        tokenizer = str(tmp_path / "tokenizer.json")
        (tmp_path / "tokenizer.json").write_text(tokenizer_json())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(TOKENS | {"chat_template": CHATML}))
    how = Settings(
        data=str(tmp_path / "chats.jsonl"),
        tokenizer=tokenizer,
        batch=1,
        time=96,
        steps=1,
        backend="reference",
        record=0,
    )
    start(Request("llama-4x256", SMALL, how), tmp_path / "run").train()
    run = open_run(tmp_path / "run")
    export_run(run, tmp_path / "out", "best")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = tapeless.load(tmp_path / "run", backend="reference").chat().speech
    assert theirs.apply_chat_template(HELLO, tokenize=False) == ours.chat.written(HELLO)
    asked = theirs.apply_chat_template(HELLO[:1], add_generation_prompt=True, return_dict=True)["input_ids"]
    assert asked == ours.invitation(HELLO[:1])
    again = import_folder(tmp_path / "out", tmp_path / "again").run
    chat = kept_chat(again.folder, again.tokenizer_spec())
    assert chat is not None
    assert chat.own
    assert chat.template == ours.chat.template
    assert chat.tokens.items() >= ours.chat.tokens.items()
    assert set(chat.ends) >= set(ours.chat.ends)


def small_gpt(vocab):
    return tapeless.Model(
        "gpt2-4x256", layers=1, channels=16, heads=2, vocab=vocab, context=8, backend="reference", time=1
    )


def test_a_tokenizer_as_transformers_saves_it_is_taken(tmp_path):
    """Where nobody has set a limit, it writes one of thirty digits."""
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer.from_str(tokenizer_json())
    model = small_gpt(words.get_vocab_size())
    write_folder(tmp_path / "out", model.config, model.weights(), None)
    theirs = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=CHATML, **TOKENS)
    theirs.save_pretrained(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] > 1 << 64
    made = import_folder(tmp_path / "out", tmp_path / "run")
    assert made.has_chat
    chat = kept_chat(made.run.folder, made.run.tokenizer_spec())
    assert chat is not None
    assert chat.tokens.items() >= TOKENS.items()


def test_a_model_without_a_template_gets_none(tmp_path):
    model = small_gpt(257)
    write_folder(tmp_path / "out", model.config, model.weights(), "bytes")
    assert not (tmp_path / "out" / "generation_config.json").exists()
    made = import_folder(tmp_path / "out", tmp_path / "run")
    assert not made.has_chat
    assert not (made.run.folder / FILE).exists()
    assert kept_chat(made.run.folder, "bytes") is None
