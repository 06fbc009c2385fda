"""A step is described once: what is left out is filled in, and program, plan and model are of the same step."""

from typing import Any

import pytest

from tapeless import Model, Optimizer, TapelessError
from tapeless.models.presets import PRESETS, preset
from tapeless.program.listing import describe
from tapeless.step import StepSpec

SMALL = {"layers": 1, "channels": 16, "heads": 2, "vocab": 11, "context": 8}


def test_what_is_left_out_is_filled_in():
    spec = StepSpec.of(preset("cllm"))
    assert (spec.batch, spec.seq_len, spec.optimizer) == (1, 128, Optimizer("adam"))
    assert (spec.backend.name, spec.precision.name, spec.class_weights) == ("cpu", "float32", None)
    assert StepSpec.of("cllm") == spec
    assert StepSpec.of("cllm", optimizer=None).optimizer is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seq_len": 9}, "8 positions"),
        ({"batch": 0}, "batch must be"),
        ({"optimizer": "adamm"}, "did you mean 'adam'"),
        ({"backend": "gpu"}, "unknown backend"),
        ({"precision": "float16"}, "did you mean 'bfloat16'"),
        ({"class_weights": (1.0,)}, "class_weights must be 11 numbers"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(TapelessError, match=said):
        StepSpec.of(preset("gpt2-4x256").override(**SMALL), **given)


def test_program_plan_and_model_are_of_the_same_step():
    weights = tuple(float(number) for number in range(1, 12))
    made = preset("gpt2-4x256").override(**SMALL, lean=True)
    given: dict[str, Any] = {"batch": 3, "optimizer": Optimizer("adamw", beta2=0.9), "class_weights": weights}
    spec = StepSpec.of(made, seq_len=4, backend="reference", precision="bfloat16", **given)
    model = spec.model(seed=2)
    assert model.spec == spec
    assert listed(model.program) == listed(spec.program())
    assert model.plan.peak_bytes == spec.plan().peak_bytes
    same = Model(made, time=4, backend="reference", precision="bfloat16", seed=2, **given)
    assert all((same.read(name) == model.read(name)).all() for name in model.params)


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_explained_is_what_the_cpu_is_given(name):
    """`tapeless explain` lists a preset's step for the reference, which needs NumPy alone."""
    made = preset(name).override(layers=2)
    reference, cpu = (StepSpec.of(made, batch=2, seq_len=8, backend=each).program() for each in ("reference", "cpu"))
    assert listed(reference) == listed(cpu)


def listed(program):
    return [describe(program, number) for number in range(len(program.calls))]
