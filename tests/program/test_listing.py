"""A program and its plan as data: what the command line draws, and anything else may."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import tapeless
from tapeless.models import transformer
from tapeless.models.config import Optimizer
from tapeless.models.presets import PRESETS
from tapeless.program.arena import make_plan
from tapeless.program.call import Program
from tapeless.program.listing import listing, planned
from tapeless.program.precision import PRECISIONS

HOME = Path(tapeless.__file__).parents[1]


def program(name: str, **fields: object) -> Program:
    config = PRESETS[name].override(**fields)
    return transformer.training(config, 2, 8, Optimizer(config.optimizer))


@pytest.mark.parametrize("name", ["ops-102k", "gpt2-4x256", "cllm", "sunfish"])
@pytest.mark.parametrize("recompute", [False, True])
def test_every_backward_call_knows_its_forward_call(name: str, recompute: bool) -> None:
    made = program(name, recompute=recompute)
    assert len(made.partners) == len(made.calls)
    differentiated = []
    for call, partner in zip(made.calls, made.partners, strict=True):
        wanted = call.direction == "backward" and not call.spec.fused
        assert (partner is not None) == (wanted or call.phase == "recompute"), call.at
        if partner is None:
            continue
        forward = made.calls[partner]
        assert (forward.op, forward.direction, forward.phase) == (call.op, "forward", "forward")
        assert forward.section == call.section
        shared = {argument.name: argument.view for argument in forward.arguments}
        assert all(shared.get(a.name, a.view) == a.view for a in call.arguments if a.mode == "read")
        if wanted:
            differentiated.append(partner)
    assert differentiated == sorted(set(differentiated), reverse=True)  # each once, in exact reverse


def test_partners_of_programs_without_a_backward() -> None:
    made = transformer.evaluation(PRESETS["ops-102k"], 2, 8)
    assert made.partners == (None,) * len(made.calls)


def test_every_call_knows_the_lines_that_led_to_it() -> None:
    """From the line that makes the call up to the function of the program; so no two calls of a block are alike."""
    made = program("gpt2-4x256", recompute=True)
    for call in made.calls:
        for place in call.stack:
            file, _, line = place.rpartition(":")
            assert (HOME / file).read_text(encoding="utf-8").splitlines()[int(line) - 1].strip()
        assert Path(call.stack[0]).name == call.source
        assert call.stack[-1].startswith("tapeless/models/transformer.py:")
    counted = Counter((call.stack, call.section) for call in made.calls)
    assert max(counted.values()) == 1, counted.most_common(1)


def test_a_refusal_names_the_user_of_a_part() -> None:
    made = program("gpt2-4x256")
    norm = next(call for call in made.calls if call.op == "layernorm" and call.section == "head")
    assert norm.at.startswith(f"layernorm.forward at {norm.source}, from transformer.py:")


def test_both_are_plain_data() -> None:
    made = program("gpt2-4x256")
    plan = make_plan(made, PRECISIONS["float32"])
    calls, places = listing(made), planned(plan)
    assert json.loads(json.dumps(calls)) == calls
    assert json.loads(json.dumps(places)) == places
    assert [entry["partner"] for entry in calls] == list(made.partners)
    assert places["peak_bytes"] == plan.peak_bytes
    assert len(places["live_bytes"]) == len(made.calls)
    assert sum(each["bytes"] for each in places["buffers"] if each["kind"] == "weight") == 4 * made.parameters
