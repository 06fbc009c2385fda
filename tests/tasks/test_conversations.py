"""A training on conversations, from the file to an answer."""

import json

import numpy as np
import pytest

import tapeless
from tapeless.errors import TapelessError
from tapeless.models.presets import preset
from tapeless.tasks import conversations, text
from tapeless.tasks.conversations import ConversationReader
from tapeless.tasks.kinds import kind_of
from tapeless.train.session import open_task, resume, start
from tapeless.train.settings import Request, Settings
from tests.tasks.chat.spoken import CHATML, TOKENS, tokenizer_json

SMALL = {"layers": 1, "channels": 32, "heads": 4, "kv_heads": 2, "hidden": 48}
GPT = {"layers": 1, "channels": 32, "heads": 4}


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    rows = [{"prompt": f"Say {word * 3}.", "completion": f"{word}!"} for word in "abcdefghijklmnopqrstuvwxyz"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(data, **changed):
    return Settings(data=str(data), batch=2, time=72, steps=4, backend="reference", record=0, **changed)


def walked(session, most=None):
    session.train(stopping=lambda: "enough" if most is not None and session.trainer.step >= most else None)
    return session


def test_a_llama_packs_them_and_a_gpt2_gives_each_a_row(tmp_path, chats):
    llama = start(Request("llama-4x256", SMALL, settings(chats)), tmp_path / "llama")
    gpt = start(Request("gpt2-4x256", GPT, settings(chats)), tmp_path / "gpt")
    packed, plain = next(llama.trainer.batches)[0], next(gpt.trainer.batches)[0]
    assert isinstance(packed, tapeless.Packed)
    assert isinstance(plain, np.ndarray)
    assert llama.trainer.batches.steps_per_epoch < gpt.trainer.batches.steps_per_epoch
    assert "% of their tokens are the assistant's" in llama.trainer.task.summary()
    assert "cut off" not in llama.trainer.task.summary()
    for session in (llama, gpt):
        walked(session)
        assert session.trainer.best is not None


def test_a_run_goes_on_bit_for_bit_without_the_file(tmp_path, chats):
    whole = walked(start(Request("llama-4x256", SMALL, settings(chats)), tmp_path / "whole"))
    walked(start(Request("llama-4x256", SMALL, settings(chats)), tmp_path / "half"), most=2)
    chats.unlink()
    again = walked(resume(tmp_path / "half", {}, {}))
    for name, array in whole.model.weights().items():
        assert np.array_equal(array, again.model.weights()[name]), name


def test_what_comes_of_it_answers_and_keeps_its_template(tmp_path, chats):
    walked(start(Request("llama-4x256", SMALL, settings(chats)), tmp_path / "run"))
    run = tapeless.load(tmp_path / "run", backend="reference")
    assert run.reader.name == "conversations (bytes)"
    assert isinstance(run.generate("Say aaa.", count=3, temperature=0), str)
    assert isinstance(run.reader, ConversationReader)
    asked = run.reader.speech.invitation([{"role": "user", "content": "Say aaa."}])
    writing = run.stream("Say aaa.", count=3, temperature=0)
    assert writing.whole() == run.decode(writing.tokens)
    assert run.model.generate(asked, 3, temperature=0, stop=[256], window=72) == writing.tokens
    with pytest.raises(TapelessError, match="nothing was said"):
        run.generate(" ")
    saved = tapeless.load(run.save(tmp_path / "copy"), backend="reference")
    assert isinstance(saved.reader, ConversationReader)
    assert saved.reader.speech.chat == run.reader.speech.chat
    kind = kind_of(run.settings.data, run.folder)
    assert kind is conversations.KIND
    assert open_task(run.run, kind).evaluate(run.model, 5).loss > 0


def test_it_learns_to_answer_and_to_end_its_turn(tmp_path, chats):
    rows = [{"prompt": f"Say {word * 3}.", "completion": "Yes!"} for word in "abcdefghijklmnop"]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = Settings(data=str(chats), batch=2, time=72, steps=40, lr=1e-2, schedule="constant", record=0)
    session = walked(start(Request("llama-4x256", SMALL, how), tmp_path / "run"))
    assert session.trainer.best < 0.5
    writing = tapeless.load(tmp_path / "run").stream("Say zzz.", temperature=0)
    assert writing.whole() == "Yes!"
    assert writing.ended == "it ended its turn"


def test_the_answers_that_time_cuts_off_are_said(tmp_path, chats):
    long = {"prompt": "Go on.", "completion": "on and " * 20}
    chats.write_text(chats.read_text() + (json.dumps(long) + "\n"))
    cut = start(Request("llama-4x256", SMALL, settings(chats)), tmp_path / "cut")
    assert "at 72 positions in 1 an answer is cut off: --time 164 holds every one" in cut.trainer.task.summary()
    lost = {"prompt": "Go on. " * 20, "completion": "No."}
    chats.write_text(chats.read_text() + (json.dumps(lost) + "\n"))
    both = start(Request("llama-4x256", SMALL, settings(chats)), tmp_path / "both")
    assert "in 1 an answer is cut off and 1 are left out: --time" in both.trainer.task.summary()


def test_a_prepared_folder_of_another_tokenizer_is_refused(tmp_path, chats):
    from tapeless.tasks.chat.prepare import prepare_chats

    prepare_chats(str(chats), tmp_path / "tokens", tokenizer="bpe", vocab=260)
    walked(start(Request("llama-4x256", SMALL, settings(chats)), tmp_path / "base"))
    base = tapeless.load(tmp_path / "base", backend="reference").run
    with pytest.raises(TapelessError, match="holds tokens of bpe-260, and the model that it starts from reads bytes"):
        start(Request("llama-4x256", {}, settings(tmp_path / "tokens")), tmp_path / "tuned", base=base)
    tuned = start(Request("llama-4x256", {}, settings(chats)), tmp_path / "tuned", base=base)
    assert tuned.trainer.task.tokenizer is not None
    assert tuned.trainer.task.tokenizer.name == "bytes"


def test_a_template_beside_the_tokenizer_reaches_the_run(tmp_path, chats):
    base = tmp_path / "base"
    base.mkdir()
    (base / "tokenizer.json").write_text(tokenizer_json())
    (base / "tokenizer_config.json").write_text(json.dumps(TOKENS | {"chat_template": CHATML}))
    made = start(Request("llama-4x256", SMALL, settings(chats, tokenizer=str(base))), tmp_path / "run")
    assert json.loads((made.run.folder / "chat.json").read_text())["template"] == CHATML
    made.run.release()


def test_what_kind_a_file_is_its_first_row_says(tmp_path, chats):
    assert kind_of(str(chats)) is conversations.KIND
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    assert kind_of(str(tmp_path / "rows.jsonl")) is text.KIND


def test_a_model_that_cannot_learn_text_is_refused(tmp_path, chats):
    with pytest.raises(TapelessError, match="answers once per sequence"):
        start(Request("ops-102k", {}, settings(chats)), tmp_path / "run")
    assert preset("ops-102k").architecture.readout == "last"
