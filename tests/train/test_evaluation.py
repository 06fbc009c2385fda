"""A run judged by what it held out, or by a text: beside transformers with the same weights, and by hand."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tapeless import load
from tapeless.errors import NonFiniteError, TapelessError
from tapeless.tasks.chat.prepare import prepare_chats
from tapeless.tasks.data.prepare import prepare
from tapeless.tasks.data.reading import Reading
from tapeless.tasks.data.tokenizer import load_tokenizer
from tapeless.train import checkpoint
from tapeless.train.attending import attend, over_training
from tapeless.train.evaluation import evaluate
from tapeless.train.run import open_run
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings
from tapeless.weights.runs import export_run

MODEL = {"layers": 1, "channels": 16, "heads": 2}


def trained(folder, preset="gpt2-4x256", model=MODEL, **settings):
    session = start(Request(preset, model, Settings(batch=2, steps=3, backend="reference", **settings)), folder)
    session.train()
    return open_run(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    (folder / "text").mkdir()
    for number in range(10):
        words = f"Wörter {number} über die naïve façade, twice {number * 7}.\n" * 5
        (folder / "text" / f"{number}.txt").write_text(words, encoding="utf-8")
    (folder / "other.txt").write_text(
        "a façade that nobody saw: Größe, 数, done.\nand some more of it\n" * 2, encoding="utf-8"
    )
    text = str(folder / "text")
    trained(folder / "bpe", data=text, tokenizer="bpe", time=12, model=MODEL | {"vocab": 300})
    trained(folder / "bytes", data=text, time=12)
    trained(folder / "operations", preset="ops-102k", data="operations", model={"layers": 1, "channels": 16})
    return folder


def test_bits_per_byte_are_those_of_transformers_with_the_same_weights(place, tmp_path):
    """Token by token, each in a window of its own, over the bytes of the file: nothing of ours but the weights."""
    import torch
    from transformers import AutoTokenizer, GPT2LMHeadModel

    opened = open_run(place / "bpe")
    found = evaluate(opened, str(place / "other.txt"), backend="reference")
    export_run(opened, tmp_path / "theirs", "best")
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "theirs").double().eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    content = (place / "other.txt").read_bytes()
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    sequence = [end, *tokenizer.encode(content.decode(), add_special_tokens=False), end]
    count, window, bits, right = len(sequence) - 1, 12, 0.0, 0
    ends = [*range(window, count, window // 2), count]
    for target in range(count):
        begin = max(next(end for end in ends if target < end) - window, 0)
        with torch.no_grad():
            scores = theirs(torch.tensor([sequence[begin : target + 1]])).logits[0, -1]
        bits -= torch.log_softmax(scores, 0)[sequence[target + 1]].item() / np.log(2)
        right += int(scores.argmax()) == sequence[target + 1]
    assert len(content) > len(sequence)  # or bytes and tokens could not be told apart
    assert found.targets == count
    assert found.bytes == len(content)
    assert found.bits_per_byte == pytest.approx(bits / len(content), rel=1e-6)
    assert found.loss == pytest.approx(bits * np.log(2) / count, rel=1e-6)
    assert found.accuracy == right / count
    assert found.perplexity == pytest.approx(2 ** (bits / count), rel=1e-6)


@pytest.mark.parametrize("name", ["bpe", "bytes"])
def test_what_was_held_out_is_all_of_it(place, name):
    """The same as the held-out documents given as a folder of text."""
    opened = open_run(place / name)
    lines = [json.loads(line) for line in (opened.data / "documents.jsonl").read_text().splitlines()]
    files = [line["file"] for line in lines if line["split"] == "validation"]
    folder = place / f"held out of {name}"
    folder.mkdir()
    for file in files:
        shutil.copy(file, folder)
    own, given = evaluate(opened, backend="reference"), evaluate(opened, str(folder), backend="reference")
    assert own.data == "held out"
    assert (own.targets, own.bytes, own.bits_per_byte) == (given.targets, given.bytes, given.bits_per_byte)
    assert own.bytes == sum(Path(file).stat().st_size for file in files)
    assert own.loss == given.loss
    assert evaluate(opened).loss == pytest.approx(own.loss, rel=1e-5)  # on the cpu backend


def test_any_checkpoint_can_be_judged(place):
    opened = open_run(place / "bytes")
    newest = evaluate(opened, checkpoint="newest", backend="reference")
    assert (newest.step, evaluate(opened, checkpoint="3", backend="reference")) == (3, newest)
    first = evaluate(opened, checkpoint="1", backend="reference")
    assert first.step == 1
    assert first.loss > newest.loss
    with pytest.raises(TapelessError, match="has no checkpoint of step 7: those it has are of 1, 2, 3"):
        evaluate(opened, checkpoint="7")
    for wrong in ("latest", "", "٣"):
        with pytest.raises(TapelessError, match="checkpoint must be 'best', 'newest' or the number of a step"):
            evaluate(opened, checkpoint=wrong)


def test_operations_are_judged_by_what_was_held_out(place):
    found = evaluate(open_run(place / "operations"), backend="reference")
    assert found.accuracy is not None
    assert 0 < found.accuracy < 1
    assert (found.perplexity, found.bits_per_byte, found.targets) == (None, None, None)
    for what, said in (({"data": "x.txt"}, "--data"), ({"stride": 3}, "--stride")):
        with pytest.raises(TapelessError, match=f"did not learn from text, so {said} .*: leave it out"):
            evaluate(open_run(place / "operations"), **what)


def test_tokens_are_taken_where_they_are_of_the_same_tokenizer(place, tmp_path):
    prepare(str(place / "text"), tmp_path / "same", tokenizer=str(place / "bpe" / "tokenizer.json"))
    prepare(str(place / "text"), tmp_path / "bytes")
    opened, on_bytes = open_run(place / "bpe"), open_run(place / "bytes")
    own = evaluate(opened, backend="reference")
    given = evaluate(opened, str(tmp_path / "same"), backend="reference")
    assert (given.loss, given.bits_per_byte, given.data) == (
        own.loss,
        own.bits_per_byte,
        f"held out in {tmp_path / 'same'}",
    )
    assert evaluate(on_bytes, str(tmp_path / "bytes"), backend="reference").bytes == given.bytes
    for run, folder in ((opened, "bytes"), (on_bytes, "same")):
        with pytest.raises(TapelessError, match="tokens of another tokenizer"):
            evaluate(run, str(tmp_path / folder))


def test_bare_tokens_have_no_bytes(place, tmp_path):
    (np.arange(60, dtype="<u2") % 90).tofile(tmp_path / "ids.bin")
    found = evaluate(open_run(place / "bytes"), str(tmp_path / "ids.bin"), backend="reference")
    assert (found.targets, found.bits_per_byte) == (59, None)
    np.full(60, 300, "<u2").tofile(tmp_path / "large.bin")
    with pytest.raises(TapelessError, match=r"a token 300 among these, and .* knows those below 257"):
        evaluate(open_run(place / "bytes"), str(tmp_path / "large.bin"))


def test_a_tokenizer_that_loses_text_has_no_bits_per_byte(place, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {"a": 0, "b": 1, " ": 2, "\n": 3, "<|endoftext|>": 4, "?": 5}
    inner = Tokenizer(models.WordLevel(known, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.save(str(tmp_path / "letters.json"))
    (tmp_path / "text.txt").write_text("ab ba\n" * 60)
    opened = trained(
        tmp_path / "run", data=str(tmp_path / "text.txt"), tokenizer=str(tmp_path / "letters.json"), time=8
    )
    assert load_tokenizer(tmp_path / "run").decode([0, 1]) != "ab"  # it puts spaces between
    (tmp_path / "odd.txt").write_text("ab zb\n" * 9)
    found = evaluate(opened, str(tmp_path / "odd.txt"), backend="reference")
    assert found.bits_per_byte is None
    assert any("loses part of this text, such as 'z'" in message for message in found.messages)


def test_data_that_are_gone_or_others_are_told(place, tmp_path):
    prepare(str(place / "text"), tmp_path / "tokens")
    opened = trained(tmp_path / "run", data=str(tmp_path / "tokens"), time=12)
    assert evaluate(opened, backend="reference").bytes
    (tmp_path / "tokens").rename(tmp_path / "away")
    with pytest.raises(TapelessError, match="is not there: name a text with --data"):
        evaluate(opened)
    prepare(str(place / "other.txt"), tmp_path / "tokens")
    with pytest.raises(TapelessError, match="no longer holds the tokens"):
        evaluate(opened)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(TapelessError, match=r"empty\.txt is empty"):
        evaluate(opened, str(tmp_path / "empty.txt"))


def test_text_is_read_as_it_is_for_training(place, tmp_path):
    """The same text as a packed row, in another encoding, and plain; what a folder leaves out is told."""
    content = (place / "other.txt").read_text(encoding="utf-8")
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(json.dumps({"body": content}).encode()))
    (tmp_path / "wide.txt").write_bytes(content.replace("\n", "\r\n").encode("utf-16"))
    opened = open_run(place / "bytes")
    plain = evaluate(opened, str(place / "other.txt"), backend="reference")
    packed = evaluate(opened, str(tmp_path / "rows.jsonl.gz"), reading=Reading(field="body"), backend="reference")
    wide = evaluate(opened, str(tmp_path / "wide.txt"), backend="reference")
    assert plain.loss == packed.loss == wide.loss
    assert plain.bytes == packed.bytes == wide.bytes == len(content.encode())
    found = evaluate(opened, str(tmp_path), reading=Reading(), backend="reference")
    assert any("1 without a field 'text'" in message for message in found.messages)
    with pytest.raises(TapelessError, match="field says how text is read, and what was held out is tokens already"):
        evaluate(opened, reading=Reading(field="body"), backend="reference")


def spoken_loss(opened, rows):
    """By hand: each conversation alone, its text spelled out, and the assistant's words scored with their end."""
    model, _, _ = opened.model("best", backend="reference", time=1)
    tokenizer, losses = load_tokenizer(opened.tokenizer_spec()), []
    for row in rows:
        asked = tokenizer.encode(f"User:\n{row['prompt']}\n\nAssistant:\n")
        ids = np.array([*asked, *tokenizer.encode(row["completion"]), tokenizer.end])
        scores = model.logits(ids[None, :-1])[0]
        surprise = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), ids[1:]]
        losses += list(surprise[len(asked) - 1 :])
    return len(losses), np.mean(losses)


@pytest.mark.parametrize("family", ["gpt2-4x256", "llama-4x256"])
def test_conversations_are_judged_by_the_assistants_words(place, tmp_path, family):
    """A run that learned text and one that learned conversations, packed in rows or not; what is held out of a folder
    of tokens is what the run says of it itself."""
    rows = [{"prompt": f"What is {n}?", "completion": f"It is {n * n}!"} for n in range(9)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = MODEL | ({"kv_heads": 1, "hidden": 16} if family.startswith("llama") else {})
    writer = trained(tmp_path / "text", family, model, data=str(place / "text"), time=72)
    talker = trained(tmp_path / "chat", family, model, data=str(tmp_path / "chats.jsonl"), time=72)
    for opened in (writer, talker):
        found = evaluate(opened, str(tmp_path / "chats.jsonl"), backend="reference")
        count, loss = spoken_loss(opened, rows)
        assert (found.targets, found.conversations, found.messages) == (count, 9, [])
        assert found.loss == pytest.approx(loss, rel=1e-12)
        assert found.perplexity == pytest.approx(np.exp(loss), rel=1e-12)
    own, given = (evaluate(talker, data, backend="reference") for data in (None, str(talker.data)))
    assert (own.loss, own.conversations, own.data) == (given.loss, given.conversations, "held out")
    assert own.conversations in range(1, 9)
    assert evaluate(talker, str(place / "other.txt"), backend="reference").bits_per_byte


def test_conversations_that_cannot_be_judged_are_told(place, tmp_path):
    rows = [{"prompt": "a", "completion": "b" * 40}, {"prompt": "a" * 40, "completion": "b"}]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    opened = trained(tmp_path / "run", data=str(place / "text"), time=32)
    found = evaluate(opened, str(tmp_path / "long.jsonl"), backend="reference")
    assert found.messages == ["at 32 positions in 1 an answer is cut off and 1 are left out: it reads no more."]
    assert (found.conversations, found.targets) == (1, 32 - len("User:\na\n\nAssistant:\n") + 1)
    (tmp_path / "lost.jsonl").write_text(json.dumps(rows[1]))
    (tmp_path / "spelled.jsonl").write_text(json.dumps({"prompt": "a", "completion": "<|endoftext|>"}))
    (tmp_path / "alone.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}))
    prepare_chats(str(tmp_path / "long.jsonl"), tmp_path / "bpe tokens", tokenizer="bpe", vocab=260)
    for name, how, said in (
        ("lost.jsonl", {}, "no conversation has an answer within its first 32 positions"),
        ("spelled.jsonl", {}, r"holds no conversation to judge by \(1 that spell a special token left out\)"),
        ("alone.jsonl", {}, r"alone\.jsonl, line 1: nobody answers"),
        ("long.jsonl", {"stride": 3}, "is conversations, each read by itself: leave --stride out"),
        ("long.jsonl", {"reading": Reading(field="prompt")}, "holds conversations, so no field or column"),
        ("bpe tokens", {}, r"holds tokens of bpe-260, and .* reads bytes: give the conversations themselves"),
        ("bpe tokens", {"reading": Reading(encoding="latin-1")}, "is tokens already"),
    ):
        with pytest.raises(TapelessError, match=said):
            evaluate(opened, str(tmp_path / name), backend="reference", **how)
    with pytest.raises(TapelessError, match="did not learn from text"):
        evaluate(open_run(place / "operations"), str(tmp_path / "long.jsonl"))


def with_weight(opened, value, name="blocks.0.attn.qkv.weight"):
    """The run's best checkpoint once more, with weights that it never learned."""
    found, _ = checkpoint.best(opened.checkpoints)
    assert found is not None
    tensors = {stem: found.tensors(stem) for stem in found.stems}
    tensors["weights"][name][1] = value
    checkpoint.save(opened.checkpoints, found.step, tensors, found.state, best=True)
    return opened


ASKED = {
    "evaluate": lambda run, out: evaluate(run, backend="reference"),
    "sample": lambda run, out: load(run.folder, backend="reference").generate("a", 3),
    "attend": lambda run, out: attend(run, "a façade", backend="reference"),
    "attend over training": lambda run, out: over_training(run, "a façade", backend="reference"),
    "export": lambda run, out: export_run(run, out / "theirs", "best"),
    "init-from": lambda run, out: start(Request("gpt2-4x256", {}, Settings(data=str(out))), out / "on", base=run),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_named(place, tmp_path, asked, value):
    shutil.copytree(place / "bytes", tmp_path / "run")
    broken = with_weight(open_run(tmp_path / "run"), value)
    (tmp_path / "text.txt").write_text("some words to train on\n" * 40)
    named = rf"step-0000000\d are not finite: blocks.0.attn.qkv.weight\[1, 0\] is {value}"
    with pytest.raises(NonFiniteError, match=named):
        ASKED[asked](broken, tmp_path)
    assert not (tmp_path / "theirs").exists()
    assert not (tmp_path / "on").exists()


@pytest.mark.parametrize("name", ["bytes", "operations"])
def test_a_loss_that_is_no_number_is_no_evaluation(place, tmp_path, name):
    shutil.copytree(place / name, tmp_path / "run")
    broken = with_weight(open_run(tmp_path / "run"), 3e38)
    told = r"the loss of .*run at step 3 is nan: .* \(the largest is 3e\+38, in blocks.0.attn.qkv.weight\)"
    with pytest.raises(NonFiniteError, match=told):
        evaluate(broken, backend="cpu")
