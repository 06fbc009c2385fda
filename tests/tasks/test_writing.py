"""Text that comes bit by bit, and what people ask of an operations model."""

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.errors import NonFiniteError
from tapeless.tasks.data.tokenizer import ByteTokenizer
from tapeless.tasks.operations import WORDS, ExpressionReader, all_expressions, evaluate, spell
from tapeless.tasks.writing import Sampling, Writing


def writing(text, **asked):
    tokens = list(text.encode())
    return Writing(lambda on_slide: iter(tokens), ByteTokenizer().stream(), Sampling(**asked))


# Pieces


@pytest.mark.parametrize("text", ["", "a", "plain text", "äöü €", "a€", "🙂🙂"])
def test_pieces_put_together_are_the_text(text):
    written = writing(text)
    pieces = list(written)
    assert "".join(pieces) == text == written.text == writing(text).whole()
    assert "" not in pieces
    assert written.tokens == list(text.encode())
    assert written.ended == "the document ended"
    assert repr(written) == f"<{len(text.encode())} tokens so far: {text!r}; the document ended>"


def test_a_character_that_is_not_complete_waits():
    tokens = list("€".encode())
    given = Writing(lambda on_slide: iter([97, *tokens[:2]]), ByteTokenizer().stream(), Sampling())
    assert next(given) == "a"
    assert next(given) == "\N{REPLACEMENT CHARACTER}"  # once it is certain that no more will come
    with pytest.raises(StopIteration):
        next(given)


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("one\n\ntwo", "\n\n", "one"),
        ("aab", "ab", "a"),
        ("abab ac", "ac", "abab "),
        ("stop", "stop", ""),
        ("no end", "never", "no end"),
        ("almost sto", "stop", "almost sto"),
    ],
)
def test_it_ends_before_the_stop_text_and_nothing_of_that_is_given_out(text, stop, kept):
    written = writing(text, stop=stop)
    assert "".join(written) == kept == written.text
    assert written.ended == (f"{stop!r} was reached" if kept != text else "the document ended")


def test_as_many_as_were_asked_for_is_not_an_end_of_the_document():
    written = writing("abc", count=3)
    written.whole()
    assert written.ended == "as many as were asked for"


@pytest.mark.parametrize("stop", ["", 3, b"x"])
def test_a_stop_that_is_no_text_is_refused(stop):
    with pytest.raises(TapelessError, match="stop must be some text"):
        writing("abc", stop=stop)


# Expressions


READER = ExpressionReader()


@pytest.fixture(scope="module")
def model():
    return Model("ops-102k", batch=3, time=8, backend="reference", layers=1, channels=16, heads=2)


def test_all_expressions_are_read_as_they_are_spelled():
    everything = all_expressions()
    for tokens in everything.tokens[::97]:
        assert READER.encode(spell(tokens)) == tokens.tolist()
        assert READER.decode(tokens) == spell(tokens)


@pytest.mark.parametrize("text", ["Max(1,6,2)", " Max( 1, 6, 2 )\n", "Max(1,\t6,2)"])
def test_blanks_are_nothing(text):
    assert READER.decode(READER.encode(text)) == "Max(1,6,2)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max(1,2,3)", "'max(1,2,3)' begins with no word"),
        ("Max(1,2,3)?", "'?' begins with no word"),
        ("", "'' is no whole expression"),
        ("Max(1,2,", "is no whole expression"),
        ("Max(1,2,3(", "'Max(1,2,3(' is no expression"),
        ("pad", "'pad' begins with no word"),
    ],
)
def test_what_is_no_expression_is_refused(text, said):
    with pytest.raises(TapelessError):
        READER.batches(None, text)  # type: ignore[arg-type]  # at once, not when the first is asked for
    with pytest.raises(TapelessError) as refusal:
        READER.expressions(text)
    assert said in str(refusal.value)
    assert "write one such as Max(1,6,2)" in str(refusal.value)


def test_the_right_answers_are_known(model):
    asked = READER.expressions("Max(1,6,2) Min(1,6,2) First(4,0,0) Last(0,0,7)")
    assert READER.decode(asked.answers) == "6147"
    batches = list(READER.batches(model, "Max(1,6,2) Min(1,6,2) First(4,0,0) Last(0,0,7)"))
    assert [inputs.shape for inputs, _ in batches] == [(3, 8), (3, 8)]
    assert np.concatenate([targets.reshape(3, -1)[:, -1] for _, targets in batches]).tolist() == [
        *asked.answers,
        -1,
        -1,
    ]
    for inputs, targets in batches:
        model.loss(inputs, targets)  # takes them


def test_it_measures_as_the_task_does(model):
    measured = READER.measure(model, "Max(1,6,2) Min(1,6,2)", 8)
    loss, accuracy = evaluate(model, READER.expressions("Max(1,6,2) Min(1,6,2)"))
    assert (measured.loss, measured.accuracy) == (loss, accuracy)


def test_the_answer_is_the_likeliest_unless_a_temperature_is_asked_for(model):
    scores = model.logits([READER.encode("Max(1,6,2)")])[0]
    likeliest = WORDS[int(scores.argmax())]
    assert READER.write(model, "Max(1,6,2)", Sampling(), 8).whole() == likeliest
    drawn = {READER.write(model, "Max(1,6,2)", Sampling(seed=seed, temperature=5.0), 8).whole() for seed in range(20)}
    assert len(drawn) > 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seed": 0}, "seed would have no effect at temperature 0, where the likeliest is taken"),
        ({"seed": 3, "temperature": 0}, "seed would have no effect at temperature 0, where the likeliest is taken"),
        ({"count": 200}, "count would have no effect, as an answer is one word: leave it out."),
        ({"stop": "6"}, "stop would have no effect, as an answer is one word: leave it out."),
    ],
)
def test_what_no_answer_depends_on_is_refused(model, asked, said):
    with pytest.raises(TapelessError) as refusal:
        READER.write(model, "Max(1,6,2)", Sampling(**asked), 8)
    assert said in str(refusal.value)


def test_one_expression_is_answered_at_a_time(model):
    with pytest.raises(TapelessError, match="is 2 expressions: ask one at a time"):
        READER.write(model, "Max(1,6,2) Max(1,6,2)", Sampling(), 8)


def test_scores_that_are_no_numbers_are_no_answer():
    broken = Model("ops-102k", time=8, backend="reference", layers=1, channels=16, heads=2)
    broken.write("head.weight" if "head.weight" in broken.params else "tokens.weight", np.nan)
    with pytest.raises(NonFiniteError, match="scores are not finite"):
        READER.write(broken, "Max(1,6,2)", Sampling(), 8)
