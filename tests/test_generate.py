"""Sampling: token for token what a model without a cache says, and drawn as the definitions say."""

from itertools import islice
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless import Model, TapelessError
from tapeless.errors import NonFiniteError
from tapeless.generate import choose, generate, likeliest
from tests.models.test_decoding import CONFIGURATIONS, CONTEXT, small_model, tokens_for
from tests.random_cases import SOAK, cases, some


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("tapeless.generate.CHUNK", 4)


def without_cache(model, prompt, count, seed=0, **options):
    """The definition: all that is in the window is read anew for every token. Also says how often it slid."""
    settings = {"temperature": 1.0, "top_k": None, "top_p": None} | options
    rng, window, found, slides = np.random.default_rng(seed), list(prompt), [], 0
    for _ in range(count):
        if len(window) > model.config.context:
            window = window[-max(1, model.config.context // 2) :]
            slides += 1
        scores = model.logits([window])[0, -1].astype(np.float64)
        found.append(choose(scores, rng=rng, **settings))
        window.append(found[-1])
    return found, slides


# Beside decoding without a cache


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 3.0, "seed": 5}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", some(list(CONFIGURATIONS), 3, 2))
def test_the_tokens_are_those_without_a_cache(name, backend, options):
    """Prompts shorter and longer than a chunk and than the context, each past the window at least twice."""
    model = small_model(name, backend)
    for length in (1, 4, 6, CONTEXT + 3) if SOAK > 1 else (4, CONTEXT + 3):
        prompt, on_slide = tokens_for(model, length, seed=length), Mock()
        found = list(generate(model, prompt, 20, **options, on_slide=on_slide))
        true, slides = without_cache(model, prompt, 20, **options)
        assert found == true
        assert on_slide.call_count == slides >= 2
        assert options["temperature"] == 0 or len(set(found)) > 5  # else equality would say little


def test_the_window_keeps_its_last_half():
    """What lies before that half does not matter any more, its first token does."""
    model, half = small_model("pre-norm", "cpu"), CONTEXT // 2
    tokens = tokens_for(model, CONTEXT + 1)
    before = [(token + 1) % 40 for token in tokens[:-half]] + tokens[-half:]
    within = [*tokens[:-half], (tokens[-half] + 1) % 40, *tokens[-half + 1 :]]
    runs = [
        [list(generate(model, prompt, 6, temperature=3.0, seed=seed)) for seed in range(20)]
        for prompt in (tokens, before, within)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_a_context_of_one():
    model = small_model("pre-norm", "reference", context=1)
    assert list(generate(model, [3], 5, temperature=2.0)) == without_cache(model, [3], 5, temperature=2.0)[0]


def test_a_token_is_there_before_the_next_is_computed():
    """Two generations of one model, taken in turns, are two: each has a cache of its own."""
    model = small_model("pre-norm", "cpu")
    alone = [list(generate(model, [seed], 8, temperature=2.0, seed=seed)) for seed in (1, 2)]
    turns = [generate(model, [seed], 8, temperature=2.0, seed=seed) for seed in (1, 2)]
    assert [list(pair) for pair in zip(*alone, strict=True)] == [[next(each) for each in turns] for _ in range(8)]
    assert list(islice(generate(model, [1], 10**9, temperature=2.0, seed=1), 8)) == alone[0]


def test_the_same_seed_gives_the_same_tokens():
    model = small_model("untied", "cpu")
    runs = [tuple(generate(model, [1, 2], 20, temperature=3.0, seed=seed)) for seed in (0, 0, 1, 2)]
    assert runs[0] == runs[1]
    assert len(set(runs)) == 3


def test_greedy_needs_no_seed():
    model = small_model("untied", "cpu")
    assert len({tuple(generate(model, [1, 2], 9, temperature=0, seed=seed)) for seed in range(3)}) == 1


def test_it_ends_before_a_stop_token():
    model = small_model("pre-norm", "cpu")
    whole = list(generate(model, [1], 20, temperature=3.0))
    end = whole[7]
    first = whole.index(end)
    assert list(generate(model, [1], 20, temperature=3.0, stop=[end])) == whole[:first]
    assert list(generate(model, [1], 20, temperature=3.0, stop=frozenset({end, whole[2]}))) == whole[: min(first, 2)]
    missing = next(token for token in range(40) if token not in whole)
    assert list(generate(model, [end], 20, temperature=3.0, stop=(missing,)))  # not those of the prompt
    assert len(list(generate(model, [1], 20, temperature=3.0, stop=[]))) == 20


def test_an_array_is_as_good_as_a_list():
    model = small_model("pre-norm", "reference")
    arrays: dict[str, Any] = {"tokens": np.array([1, 2, 3], np.uint16), "count": np.int64(4), "top_k": np.int32(3)}
    found = list(generate(model, **arrays, temperature=2.0))
    assert found == list(generate(model, [1, 2, 3], 4, temperature=2.0, top_k=3))
    assert all(type(token) is int for token in found)


# Which tokens may be drawn


def plain(scores, temperature, top_k, top_p):
    """The definition, on plain lists: sort, cut, add up."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    order = order[: top_k or len(order)]
    masses = {i: float(np.exp((scores[i] - scores[order[0]]) / temperature)) for i in order}
    if top_p is None:
        return masses
    kept: dict[int, float] = {}
    for i in order:
        kept[i] = masses[i]
        if sum(kept.values()) >= top_p * sum(masses.values()):
            break
    return kept


@cases(150)
@given(
    st.lists(st.integers(-12, 12), min_size=1, max_size=40),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.none() | st.integers(1, 50),
    st.none() | st.sampled_from([0.013, 0.3, 0.777, 0.95, 0.9999]),
)
def test_what_may_be_drawn_at_random_is_what_the_definition_says(whole, temperature, top_k, top_p):
    """Whole numbers, so that many scores are equal: then the lower id is the likelier."""
    scores = np.array(whole) / 3
    ids, masses = likeliest(scores, temperature, top_k, top_p)
    true = plain(scores.tolist(), temperature, top_k, top_p)
    assert set(ids.tolist()) == set(true)
    assert len(ids) == len(true)
    assert masses == pytest.approx([true[i] for i in ids.tolist()], rel=1e-12)


def test_of_equals_the_first_are_kept():
    scores = np.array([1.0, 5.0, 5.0, 5.0, 5.0])
    assert likeliest(scores, 1.0, 2, None)[0].tolist() == [1, 2]
    assert likeliest(scores, 1.0, None, 0.5)[0].tolist() == [1, 2, 3]  # two hold 49.8 %
    assert choose(scores, 0, None, None, np.random.default_rng(0)) == 1


def test_top_k_of_one_and_a_tiny_top_p_are_greedy():
    scores = np.random.default_rng(0).normal(size=1000)
    rng = np.random.default_rng(1)
    for top_k, top_p in ((1, None), (None, 1e-9), (5, 1e-9)):
        assert {choose(scores, 50.0, top_k, top_p, rng) for _ in range(20)} == {int(scores.argmax())}


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_a_temperature_near_zero_is_greedy(temperature):
    scores = np.array([1.0, -3e30, 1.5, 0.0])
    assert {choose(scores, temperature, None, 0.9, np.random.default_rng(seed)) for seed in range(9)} == {2}


@pytest.mark.parametrize(("drawn", "token"), [(0.0, 1), (1 - 2**-53, 3)])
def test_the_ends_of_the_line_belong_to_tokens_that_have_some_mass(drawn, token):
    """The first and the last number that can be drawn; tokens 0 and 4 are too unlikely for a float64."""
    scores = np.array([-1e6, 1.0, 1.0, 1.0, -1e6])
    assert choose(scores, 1.0, None, None, Mock(random=lambda: drawn)) == token


# How often each is drawn: chi-square over 8,000 draws


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, None), (2.5, None, None), (1.0, 5, None), (1.3, None, 0.8), (3.0, 7, 0.9)],
)
def test_each_token_is_drawn_as_often_as_it_should(temperature, top_k, top_p):
    draws = 8_000
    scores, rng = np.random.default_rng(2).normal(size=12) * 1.5, np.random.default_rng(3)
    counts = np.bincount([choose(scores, temperature, top_k, top_p, rng) for _ in range(draws)], minlength=12)
    true = plain(scores.tolist(), temperature, top_k, top_p)
    assert {i for i in range(12) if counts[i]} == set(true)
    expected = {i: draws * mass / sum(true.values()) for i, mass in true.items()}
    distance = sum((counts[i] - e) ** 2 / e for i, e in expected.items())
    freedom = len(true) - 1
    assert distance < freedom + 5 * np.sqrt(2 * freedom)  # five standard deviations above the mean


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": []}, r"tokens must be one sequence of at least one id, not of shape \(0,\)"),
        ({"tokens": [[1, 2]]}, r"tokens must be one sequence of at least one id, not of shape \(1, 2\)"),
        ({"tokens": 3}, r"tokens must be one sequence"),
        ({"tokens": [[1, 2], [3]]}, "tokens must be a rectangular array"),
        ({"tokens": [1.0, 2.0]}, "tokens must be integers, not float64"),
        ({"tokens": [True]}, "tokens must be integers, not bool"),
        ({"tokens": "ab"}, "tokens must be one sequence"),
        ({"tokens": [1, 40]}, r"tokens hold 40 at \(1,\); they must lie between 0 and 39"),
        ({"tokens": [-1]}, r"tokens hold -1 at \(0,\); they must lie between 0 and 39"),
        ({"count": 0}, "count must be a whole number of at least 1, not 0"),
        ({"count": 2.5}, "count must be a whole number of at least 1, not 2.5"),
        ({"temperature": -0.1}, "temperature must be 0 .* or a finite number above, not -0.1"),
        ({"temperature": float("nan")}, "temperature must be 0 .*, not nan"),
        ({"temperature": float("inf")}, "temperature must be 0 .*, not inf"),
        ({"temperature": "hot"}, "temperature must be 0 .*, not 'hot'"),
        ({"temperature": True}, "temperature must be 0 .*, not True"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1, not 0"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, or None for no limit, not 0"),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1"),
        ({"top_p": float("nan")}, "top_p must be above 0 and at most 1"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        ({"stop": [40]}, r"stop hold 40 at \(0,\); they must lie between 0 and 39"),
        ({"stop": 3}, "stop must be a collection of token ids, or None, not 3"),
        ({"stop": "end"}, "stop must be a collection of token ids, or None, not 'end'"),
        ({"stop": ["a"]}, "stop must be integers"),
        ({"stop": {"a", 1}}, "stop must be integers"),
        ({"stop": [1.5]}, "stop must be integers, not float64"),
    ],
)
def test_bad_input_gets_a_sentence_before_anything_is_drawn(changes, message):
    """At the call, not at the first token."""
    model = small_model("pre-norm", "reference")
    with pytest.raises(TapelessError, match=message):
        generate(model, **({"tokens": [1], "count": 1} | changes))


def test_a_model_that_cannot_decode_is_refused_at_the_call():
    model = Model("ops-102k", backend="reference", optimizer=None)
    with pytest.raises(TapelessError, match=r"sees the future \(causal=False\), so it cannot generate"):
        generate(model, [1], 1)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_scores_that_are_no_numbers_are_refused(backend, temperature):
    model = small_model("pre-norm", backend)
    model.params["norm.weight"][0] = np.nan
    with pytest.raises(NonFiniteError, match="the model's scores are not finite"):
        next(generate(model, [1], 1, temperature=temperature))
