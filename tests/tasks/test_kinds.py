"""Each task says for itself what its defaults are, which data are its own, and what there is to say at the end."""

import shlex
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.labelling.run import EVERY_KIND
from tapeless.labelling.run import KIND as LABELLED
from tapeless.model import Model
from tapeless.tasks import operations, text
from tapeless.tasks.data.tokenizer import load_tokenizer
from tapeless.tasks.data.tokens import TokenData, Tokens
from tapeless.tasks.kinds import kind_of, usual_data
from tapeless.tasks.operations import LENGTH, WORDS, Operations, final_scores, spell
from tapeless.tasks.task import Ended
from tapeless.tasks.text import Text, continuation
from tapeless.train.settings import Settings, usual_settings

TINY: dict[str, Any] = {"layers": 1, "channels": 16, "heads": 2, "backend": "reference"}


def ended(model, folder, **changes):
    given = {
        "step": 3,
        "lr": 1e-3,
        "prompt": None,
        "preset": "ops-102k",
        "spelled": "'a b'",
        "command": "tapeless",
    }
    return Ended(model, folder=folder, **{**given, **changes})


def test_what_data_names_tells_the_task(tmp_path):
    assert kind_of("operations") is operations.KIND
    assert kind_of("notes.txt") is kind_of(None) is text.KIND
    assert kind_of("labelled", tmp_path, EVERY_KIND) is text.KIND, "a text of that name"
    (tmp_path / "source.json").touch()
    assert kind_of("labelled", tmp_path, EVERY_KIND) is LABELLED
    assert kind_of("labelled", tmp_path) is text.KIND, "for whom nobody handed in how to open it"
    assert (usual_data("ops-102k"), usual_data("gpt2-4x256")) == ("operations", None)


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind.name)
def test_defaults_are_those_of_settings_that_were_not_given(kind):
    names = {each.name for each in fields(Settings)}
    assert set(kind.defaults) <= names
    assert all(getattr(Settings(), name) is None for name in kind.defaults), "else nobody could tell what was given"
    assert ("time" in kind.defaults) == (kind.length is None)
    for name in names:
        assert usual_settings(name, [kind]) == {kind.name: kind.defaults.get(name, getattr(Settings(), name))}


def test_operations_say_what_was_answered(tmp_path):
    model = Model("ops-102k", time=LENGTH, **TINY)
    task = Operations(model.config, 0)
    said = task.farewell(ended(model, tmp_path))
    answers = final_scores(model, task.validation.tokens).argmax(axis=1)
    right = answers == task.validation.answers
    assert task.summary() == "4,000 expressions to train, 1,000 held out"
    assert len(said.rows) == min(5, right.sum()) + 5
    spelled = {spell(tokens): index for index, tokens in enumerate(task.validation.tokens)}
    for asked, _, answer, mark in said.rows:
        index = spelled[asked]
        assert answer == (WORDS[answers[index]] if answers[index] < len(WORDS) else f"word {answers[index]}")
        assert mark == ("✓" if right[index] else f"✗ it is {WORDS[task.validation.answers[index]]}")
    assert [row[3][0] for row in said.rows] == sorted(row[3][0] for row in said.rows), "what is right comes first"
    assert said.next[0][0] == "tapeless explain ops-102k --values"


def test_text_says_how_it_goes_on(tmp_path):
    model = Model("gpt2-4x256", time=16, vocab=257, context=16, **TINY)
    trained = Tokens([np.arange(200, dtype="<u2")])
    held_out = Tokens([np.array([*b"one", 256, *b"\n  \n  It's a line that goes on for long\n", 256], "<u2")])
    task = Text(TokenData(trained, held_out, 257, load_tokenizer("bytes"), "digest"), 16, 0)
    said = task.farewell(ended(model, tmp_path))
    assert said.text == continuation(model, task.tokenizer, "It's a line that goes", 96, seed=3)
    assert said.next == ((f"tapeless sample 'a b' --prompt {shlex.quote(task.prompt(3))}", "let it write"),)
    assert task.prompt(2) == "one"  # of another document
    assert task.farewell(ended(model, tmp_path, prompt="import ")).text.startswith("import ")
    assert (task.summary(), task.identity()) == ("200 tokens to train, 45 held out", {"data": "digest"})


def test_a_prompt_is_found_in_any_text():
    """One line without spaces, nothing but spaces, a character cut off."""
    for content, prompt in ((b"x" * 99, "x" * 24), (b" \n \n", ""), ("€".encode()[1:] + b"\nword\n", "word")):
        tokens = Tokens([np.array([*content, 256], "<u2")])
        assert Text(TokenData(tokens, tokens, 257, load_tokenizer("bytes"), ""), 16, 0).prompt(0) == prompt


def test_without_a_tokenizer_nothing_is_written(tmp_path):
    model = Model("gpt2-4x256", time=16, vocab=257, context=16, **TINY)
    tokens = Tokens([np.arange(200, dtype="<u2")])
    task = Text(TokenData(tokens, tokens, 257, None, ""), 16, 0)
    assert not task.farewell(ended(model, tmp_path)).text
    with pytest.raises(TapelessError, match="this data has none: leave --sample out"):
        continuation(model, task.tokenizer, "a", 3, seed=0)
