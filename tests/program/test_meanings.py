"""What is meant is said wherever another thing of the same shape and type would do, and held to in every list."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from tapeless.errors import ProgramError
from tapeless.models import decoding, transformer
from tapeless.models.config import CHOICES, Optimizer
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS
from tapeless.ops.contract import FIXED, Scalar
from tapeless.ops.update import MEANINGS
from tapeless.program.builder import Builder
from tapeless.program.call import Program, Weight, write
from tests.program.wiring import BASE, CHANGES

SAYS_ITSELF = ("features", "master", "loss", "scores")  # no other buffer has its shape and role, or its maker is proven


@pytest.mark.parametrize("name", OPS)
def test_whole_numbers_and_scalars_have_a_meaning_in_every_op(name: str) -> None:
    spec = OPS[name].SPEC
    assert {argument for argument, role in spec.roles.items() if role in FIXED} <= spec.meanings.keys()
    signatures = [each for each in (spec.forward, spec.backward) if each]
    known = {each for signature in signatures for each in (*signature.arguments, *signature.scalars)}
    assert spec.meanings.keys() <= known | MEANINGS.keys()


def programs() -> Iterator[Program]:
    for changes in CHANGES.values():
        preset = BASE.override(**changes)
        for optimizer in CHOICES["optimizer"]:
            yield transformer.training(preset, 2, 3, Optimizer(optimizer), master=True)
        yield transformer.evaluation(preset, 2, 3)
        yield transformer.readout(preset, 2, 3)
    yield decoding.decoding(PRESETS["llama-4x256"])
    yield decoding.reading(PRESETS["gpt2-4x256"], 64)


def test_whatever_is_prepared_says_what_it_is() -> None:
    for program in programs():
        for buffer in program.buffers:
            outside = buffer.kind not in ("workspace", "gradient") and not buffer.members
            if outside and buffer.name not in SAYS_ITSELF:
                assert buffer.meaning, buffer
        for weight in program.weights:
            assert weight.decay == (len(weight.shape) == 2 and weight.name != "positions.weight")
        for call in program.calls:
            for name, value in call.scalars:
                if isinstance(value, float) and name != "eps":
                    assert isinstance(value, Scalar), (call, name)


def test_what_says_nothing_is_what_it_is_used_for_first() -> None:
    p = Builder()
    table = Weight("table", "weight", (5, 2), "weight")
    p._declare(table)
    numbers, count = p.buffer("input", "numbers", (3,), "index"), p.buffer("input", "count", (1,), "scalar")
    x, loss = p.workspace("x", 3, 2), p.buffer("output", "loss", (1,), "statistic")
    p.embedding.forward(y=write(x), tokens=numbers, weight=table)
    assert p.verified()
    p.squared_error.forward(loss=write(loss), x=x, table=table, targets=numbers, count=count)
    said = (
        r"^wrong meaning: numbers is targets, as targets of squared_error\.forward at test_meanings\.py:\d+, and token "
    )
    with pytest.raises(
        ProgramError, match=said + r"ids, as tokens of embedding\.forward at test_meanings\.py:\d+: it "
    ):
        p.verified()


def test_a_call_that_is_given_another_is_refused_where_it_is_written() -> None:
    p = Builder()
    starts = p.buffer("input", "starts", (1, 3), "index", meaning="segment starts")
    x, table = p.workspace("x", 1, 3, 2), p.weight("table", 5, 2, meaning="vocabulary")
    said = r"^wrong meaning: starts is declared as segment starts, but tokens of embedding\.forward at \w+\.py:\d+ "
    with pytest.raises(ProgramError, match=said + r"is token ids\.$"):
        p.embedding.forward(y=write(x), tokens=starts, weight=table)
    count = p.buffer("state", "count", (1, 3), "index", meaning="random counter")
    with pytest.raises(ProgramError, match=r"^wrong meaning: count is declared as random counter"):
        p.embedding.forward(y=write(x), tokens=count, weight=table)


def test_a_number_that_says_what_it_is_remains_one() -> None:
    beta = Scalar(0.9, "beta1")
    assert (beta, repr(beta), f"{beta:g}") == (0.9, "0.9", "0.9")
    assert copy.deepcopy(beta).meaning == "beta1"
    program = transformer.training(BASE.override(dropout=0.1), 2, 3, Optimizer("muon"))
    taken = {type(value) for call in program.calls for value in call.numbers if isinstance(value, float)}
    assert taken == {float}, "kernels are given plain numbers"
