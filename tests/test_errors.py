"""Suggestions that make sense, and lists where there is nothing to suggest."""

import pytest

from tapeless.errors import unknown
from tapeless.models.config import OVERRIDABLE
from tapeless.models.presets import PRESETS

GPT2 = "choose one of gpt2-4x256, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1558m."


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("gpt2", GPT2),  # the family, not whichever is spelled most alike
        ("gpt2-medium", GPT2),
        ("gpt2-125m", GPT2),
        ("gpt2-124", "did you mean 'gpt2-124m'?"),
        ("gpt2_124m", "did you mean 'gpt2-124m'?"),
        ("GPT2-124M", "did you mean 'gpt2-124m'?"),
        ("ops", "did you mean 'ops-102k'?"),
        ("llama-7b", "choose one of llama-3.2-1b, llama-4x256"),
        ("bert", "choose one of cllm, gpt2-4x256, gpt2-124m,"),
        ("", "choose one of cllm,"),
        ("x" * 10**6, "choose one of cllm,"),
    ],
)
def test_a_preset_that_is_not_there(value, said):
    message = str(unknown("preset", value, PRESETS))
    assert said in message
    assert len(message) < 400


@pytest.mark.parametrize("value", ["bfloat16", "float16", "bf16", "half"])
def test_another_number_is_another_thing(value):
    message = str(unknown("dtype", value, ("float32", "float64")))
    assert message == f"unknown dtype '{value}': choose one of float32, float64."


def test_a_slip_of_the_fingers():
    assert "did you mean 'float64'" in str(unknown("dtype", "flaot64", ("float32", "float64")))
    assert "here it is called 'heads'" in str(unknown("field", "n_head", OVERRIDABLE))
    assert "choose one of activation" in str(unknown("field", "dilation", OVERRIDABLE))  # and not recompute


def test_very_many_names_are_not_all_listed():
    message = str(unknown("sequence", "x", (f"scaffold{number}" for number in range(10**4))))
    assert "and 9,940 more" in message
    assert len(message) < 1500


def test_a_value_that_is_no_text():
    assert "unknown preset 7: choose one of" in str(unknown("preset", 7, PRESETS))
    assert "choose one of" in str(unknown("preset", [[1] * 10**5], PRESETS))
