"""Talking: what was said stays, what was read is not read again, and what no longer fits is forgotten."""

from typing import Any

import numpy as np
import pytest

from tapeless import Model
from tapeless.errors import TapelessError
from tapeless.tasks.chat.talk import ENDED, FULL, Talk
from tapeless.tasks.chat.template import plain_chat
from tapeless.tasks.chat.turns import Speech
from tapeless.tasks.data.tokenizer import ByteTokenizer

LIKELIEST: dict[str, Any] = {"count": 8, "temperature": 0}


@pytest.fixture(scope="module", params=["llama-4x256", "gpt2-4x256"])
def model(request):
    small: dict[str, Any] = {"layers": 2, "channels": 32, "heads": 4, "vocab": 257, "context": 160}
    return Model(request.param, time=1, backend="reference", optimizer=None, seed=1, **small)


@pytest.fixture(scope="module")
def speech():
    return Speech(plain_chat(ByteTokenizer()), ByteTokenizer())


def test_answers_are_those_of_the_whole_conversation_read_anew(model, speech, monkeypatch):
    talk, said = Talk(model, speech), list[tuple[int, int]]()
    read = talk._decoder.read

    def counted(tokens, known=0):
        said.append((len(tokens), known))
        read(tokens, known)

    monkeypatch.setattr(talk._decoder, "read", counted)
    for words in ("One?", "Two?", "Three?"):
        before = talk.messages
        writing = talk.say(words, **LIKELIEST)
        asked = speech.invitation([*before, {"role": "user", "content": words}])
        writing.whole()
        assert writing.tokens == model.generate(asked, 8, temperature=0, stop=speech.ends)
    assert [turn["role"] for turn in talk.messages] == ["user", "assistant"] * 3
    assert said[0][1] == 0
    assert all(known > 0.7 * earlier for (_, known), (earlier, _) in zip(said[1:], said, strict=False))


def test_an_answer_that_is_left_is_remembered_as_far_as_it_came(model, speech):
    talk = Talk(model, speech)
    writing = talk.say("Hello?", count=50, temperature=1.0, seed=4)
    pieces = [next(writing), next(writing)]
    assert talk.messages[-1] == {"role": "assistant", "content": "".join(pieces)}
    talk.say("And?", **LIKELIEST).whole()
    assert [turn["content"] for turn in talk.messages[:3]] == ["Hello?", "".join(pieces), "And?"]
    talk.reset()
    assert talk.messages == []


def test_the_oldest_turns_are_forgotten_and_what_it_was_told_first_stays(model, speech):
    talk = Talk(model, speech, system="Be brief.")
    forgotten = []
    for number in range(6):
        talk.say(f"Question {number}?", **LIKELIEST).whole()
        forgotten.append(talk.forgotten)
    assert forgotten[:2] == [0, 0]
    assert sum(forgotten) > 2
    assert talk.messages[0] == {"role": "system", "content": "Be brief."}
    assert talk.messages[1]["role"] == "user"
    assert talk.messages[-2]["content"] == "Question 5?"
    assert len(talk._cached) <= talk.window


def test_too_long_a_question_is_refused_and_not_remembered(model, speech):
    talk = Talk(model, speech)
    talk.say("Hello?", **LIKELIEST).whole()
    before = talk.messages
    with pytest.raises(
        TapelessError, match="of the 160 positions that this model reads 8 are for its answer: say less"
    ):
        talk.say("x" * 150, **LIKELIEST)
    with pytest.raises(TapelessError, match="nothing was said"):
        talk.say("  ")
    with pytest.raises(TapelessError, match="temperature must be"):
        talk.say("a", temperature=-1)
    assert talk.messages == before


def test_an_answer_ends_where_the_positions_do(model, speech):
    talk = Talk(model, speech, window=64)
    writing = talk.say("Hello?", count=500, temperature=0)
    writing.whole()
    assert writing.ended == FULL
    assert len(talk.speech.invitation(talk.messages[:1])) + len(writing.tokens) == 64 + 1


def test_an_answer_ends_with_its_turn(model, speech, monkeypatch):
    talk = Talk(model, speech)
    scores = iter([np.eye(257)[ord("a")], np.eye(257)[256]])
    monkeypatch.setattr(talk._decoder, "step", lambda token: next(scores))
    writing = talk.say("Hello?", **LIKELIEST)
    assert (writing.whole(), writing.ended) == ("a", ENDED)


def test_the_same_question_may_be_answered_otherwise_but_not_from_the_same_seed(model, speech):
    asked: dict[str, Any] = {"count": 8, "temperature": 5.0, "seed": 3}
    one, other = Talk(model, speech), Talk(model, speech)
    first = one.say("Hello?", **asked).whole()
    assert first == other.say("Hello?", **asked).whole()
    one.reset()
    assert first != one.say("Hello?", **asked).whole()
