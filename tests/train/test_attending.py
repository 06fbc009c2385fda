"""What the heads of a run look at, at any checkpoint, in its words."""

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.tasks.operations import WORDS
from tapeless.train.attending import attend, chosen, over_training, read_prompt
from tapeless.train.run import open_run
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings


def trained(folder, preset, model, **settings):
    session = start(Request(preset, model, Settings(steps=4, backend="reference", save_every=1, **settings)), folder)
    session.train()
    return open_run(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("some words to learn from\n" * 90)
    small = {"layers": 2, "channels": 8, "heads": 2}
    trained(folder / "operations", "ops-102k", small, data="operations", keep=9)
    trained(folder / "bytes", "gpt2-4x256", small, data=str(folder / "text.txt"), time=8, batch=2)
    return folder


def test_an_expression_in_its_words(place):
    opened = open_run(place / "operations")
    found, messages = attend(opened, "Max(1, 2,6)", backend="reference")
    assert (found.words.shown, messages) == (["Max", "(", "1", ",", "2", ",", "6", ")"], [])
    assert found.words.tokens == [WORDS.index(word) for word in found.words.shown]
    model, _, _ = opened.model("best", backend="reference")
    true = model.attention([found.words.tokens])
    assert {name: array.shape for name, array in found.weights.items()} == {
        "blocks.0": (2, 8, 8),
        "blocks.1": (2, 1, 8),
    }
    for block, array in found.weights.items():
        np.testing.assert_array_equal(array, true[block][0])


def test_text_in_pieces_that_can_be_seen(place):
    words = read_prompt(open_run(place / "bytes"), "a\n é\t")
    assert words.shown == ["a", "⏎", "␣", "‹195›", "‹169›", "⇥"]


def test_over_training_is_every_checkpoint_as_it_was(place):
    opened = open_run(place / "operations")
    found, messages = over_training(opened, "Max(1,2,6)", backend="reference")
    assert ([each.step for each in found], messages) == ([1, 2, 3, 4], [])
    for each in found:
        alone, _ = attend(opened, "Max(1,2,6)", at=str(each.step), backend="reference")
        np.testing.assert_array_equal(alone.weights["blocks.1"], each.weights["blocks.1"])
    assert not np.array_equal(found[0].weights["blocks.1"], found[3].weights["blocks.1"])


def test_a_damaged_checkpoint_is_passed_over(place, tmp_path):
    opened = trained(tmp_path / "run", "ops-102k", {"layers": 1, "channels": 8}, data="operations")
    (opened.checkpoints / "step-00000003" / "weights.safetensors").write_bytes(b"")
    found, messages = over_training(opened, "Max(1,2,6)", backend="reference")
    assert [each.step for each in found] == [2, 4]
    assert len(messages) == 1
    assert messages[0].startswith("step-00000003")


def test_layers_and_heads_can_be_chosen(place):
    found, _ = attend(open_run(place / "operations"), "Max(1,2,6)", backend="reference")
    assert [name for name, _ in chosen(found, None, None)] == ["0.0", "0.1", "1.0", "1.1"]
    assert [name for name, _ in chosen(found, 1, None)] == ["1.0", "1.1"]
    assert [name for name, _ in chosen(found, None, 1)] == ["0.1", "1.1"]
    np.testing.assert_array_equal(chosen(found, 0, 1)[0][1], found.weights["blocks.0"][1])
    for layer, head, said in ((2, None, "layers 0 to 1"), (None, 2, "heads 0 to 1"), (-1, None, "no layer -1")):
        with pytest.raises(TapelessError, match=said):
            chosen(found, layer, head)


@pytest.mark.parametrize(
    ("run", "prompt", "said"),
    [
        ("operations", "Max(1,2,x)", "'x\\)' begins with no word of the operations task"),
        ("operations", "Max(1,2,6)1", "the prompt has 9 tokens and .* reads 8: shorten it"),
        ("operations", "  ", "the prompt is empty"),
        ("bytes", "", "the prompt is empty"),
        ("bytes", "nine bytes", "has 10 tokens and .* reads 8"),
        ("bytes", "\udcff", "not UTF-8"),
    ],
)
def test_prompts_that_cannot_be_read(place, run, prompt, said):
    with pytest.raises(TapelessError, match=said):
        read_prompt(open_run(place / run), prompt)


def test_characters_that_the_tokenizer_lacks(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({"a": 0, "b": 1, "\n": 2, "<|endoftext|>": 3, "?": 4}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.save(str(tmp_path / "letters.json"))
    (tmp_path / "text.txt").write_text("ab\n" * 90)
    small = {"layers": 1, "channels": 8, "heads": 2}
    data = {"data": str(tmp_path / "text.txt"), "tokenizer": str(tmp_path / "letters.json")}
    opened = trained(tmp_path / "run", "gpt2-4x256", small, time=8, batch=2, **data)
    with pytest.raises(TapelessError, match="loses part of this prompt, such as 'z'"):
        read_prompt(opened, "z")
