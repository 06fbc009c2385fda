"""Frozen matrices in bfloat16 beside float32: half the bytes, and exactly the numbers that a model has whose frozen
matrices were rounded beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.backends.backend import precision_for
from tapeless.backends.traits import Traits
from tapeless.check.configurations import CONFIGURATIONS, LARGER
from tapeless.check.lockstep import lockstep, pair
from tapeless.errors import NotYetError
from tapeless.generate import Decoder
from tapeless.kernels import cpu as cpu_kernels
from tapeless.models import decoding, transformer
from tapeless.models.presets import PRESETS
from tapeless.program.precision import PRECISIONS, numpy_type

NARROW = [each for each in (*CONFIGURATIONS, *LARGER) if each.fields.get("frozen_precision")]
SIZES: dict[str, Any] = {"batch": 2, "time": 40, "layers": 2, "channels": 64, "heads": 4, "context": 100}
# Every op that reads a frozen matrix; the vocabulary is below and beyond where its scores are held transposed.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama-4x256", {"lora": 4, "vocab": 1500}),
    "gpt2": ("gpt2-4x256", {"lora": 4, "vocab": 300, "lora_targets": ("qkv",)}),
    "untied": ("gpt2-4x256", {"train": ("blocks.1", "norms"), "tied": False, "vocab": 1200}),
    "proximity": ("cllm", {"lora": 2, "vocab": 70}),
    "features": ("sunfish", {"train": ("norms",)}),
}


def twins(name: str, backend: str = "cpu", **more: Any) -> tuple[Model, Model, Any, Any]:
    """The same weights once in bfloat16 and once in the precision's own type, and a batch."""
    preset, fields = MODELS[name]
    narrow = Model(preset, backend=backend, frozen_precision="bfloat16", **SIZES | fields | more)
    wide = Model(preset, backend=backend, **SIZES | fields | more)
    rng = np.random.default_rng(3)
    for weight in narrow.program.weights:
        narrow.write(weight.name, 0.2 * rng.normal(size=weight.shape) + (len(weight.shape) == 1))
        wide.write(weight.name, narrow.read(weight.name))
    config = narrow.config
    shape = (narrow.batch, narrow.time)
    inputs = rng.normal(size=(*shape, config.features)) if config.features else rng.integers(0, config.vocab, shape)
    wanted = shape if config.readout == "all" else shape[:1]
    return narrow, wide, inputs, rng.integers(0, config.vocab, wanted)


def is_narrow(model: Model, name: str) -> bool:
    return bool(model.params[name].dtype == numpy_type("bfloat16"))


@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_rounded_weights_to_the_last_bit(name: str) -> None:
    with cpu_kernels.using_gemm_library("own"):
        narrow, wide, inputs, targets = twins(name)
        for _ in range(3):
            steps = [model.step(inputs, targets, lr=1e-2, clip=1.0) for model in (narrow, wide)]
            assert steps[0].loss == steps[1].loss
            assert steps[0].norm == steps[1].norm
        assert all(np.array_equal(values, wide.read(name)) for name, values in narrow.weights().items())
        assert narrow.loss(inputs, targets) == wide.loss(inputs, targets)
        assert np.array_equal(narrow.logits(inputs), wide.logits(inputs))
        if narrow.config.causal and not narrow.config.features and narrow.config.readout == "all":
            readers = [Decoder(model) for model in (narrow, wide)]
            for reader in readers:
                reader.read(list(range(3)))
            for token in (5, 1):
                first, second = (reader.step(token) for reader in readers)
                assert np.array_equal(first, second)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", MODELS)
def test_the_reference_widens_them(name: str, precision: str) -> None:
    """In float32 it computes in float64 what is of several types, and rounds once."""
    narrow, wide, inputs, targets = twins(name, "reference", precision=precision)
    losses = [model.forward_backward(inputs, targets) for model in (narrow, wide)]
    exactly = precision == "float64"
    assert losses[0] == losses[1] if exactly else losses[0] == pytest.approx(losses[1], rel=1e-5)
    for weight, gradient in narrow.grads.items():
        scale = np.abs(wide.grads[weight]).max()
        assert np.abs(gradient - wide.grads[weight]).max() <= (0 if exactly else 1e-4 * scale), weight


@pytest.mark.parametrize("configuration", NARROW, ids=lambda each: each.name)
@pytest.mark.parametrize("products", ["own", "mkl"])
def test_every_call_beside_the_reference(configuration: Any, products: str) -> None:
    if products == "mkl" and cpu_kernels.mkl() is None:
        pytest.skip("MKL is not installed")
    with cpu_kernels.using_gemm_library(products):
        model, reference, inputs, targets = pair(configuration, "cpu")
        assert any(is_narrow(model, name) and is_narrow(reference, name) for name in model.params)
        for difference in lockstep(model, reference, inputs, targets):
            assert difference.ok, str(difference)
            # What is allowed is float32's: nothing was rounded to bfloat16 on its way.
            assert difference.tolerance < 2.0**-9, str(difference)


@pytest.mark.parametrize("name", MODELS)
def test_frozen_matrices_take_two_bytes_and_nothing_else_changes(name: str) -> None:
    narrow, wide, _, _ = twins(name)
    assert narrow.engine.memory.nbytes == narrow.plan.peak_bytes
    held = {weight.name for weight in narrow.program.weights if is_narrow(narrow, weight.name)}
    assert held == {
        weight.name
        for weight in narrow.program.weights
        if weight.kind == "frozen" and len(weight.shape) > 1 and not weight.adapter
    }
    assert held
    for each in narrow.plan.placements.values():
        same = wide.plan.placements.get(each.buffer.name)
        if each.kind != "kernel scratch" and same is not None:
            assert each.bytes == (same.bytes // 2 if each.buffer.name in held else same.bytes)
    saved = sum(2 * weight.elements for weight in narrow.program.weights if weight.name in held)
    kinds, before = narrow.plan.bytes_by_kind(), wide.plan.bytes_by_kind()
    assert before.pop("frozen") - kinds.pop("frozen") == saved
    assert {**kinds, "workspace": 0} == {**before, "workspace": 0}


def test_programs_that_only_read_know_their_type() -> None:
    """What they ask for besides, they ask for by it: our own products pack, and MKL's would not."""
    preset = PRESETS["llama-4x256"].override(lora=2, frozen_precision="bfloat16")
    trained = {each.name: each.role for each in transformer.training(preset, 1, 8, None).weights}
    assert set(trained.values()) == {"frozen", "weight"}
    for program in (
        transformer.evaluation(preset, 1, 8),
        transformer.readout(preset, 1, 8),
        decoding.reading(preset, 8),
        decoding.decoding(preset),
    ):
        assert {each.name: each.role for each in program.weights} == trained


def test_adapters_stay_wide_where_they_are_frozen() -> None:
    model = Model("llama-4x256", **SIZES, vocab=70, lora=2, frozen=("*lora_a",), frozen_precision="bfloat16")
    assert is_narrow(model, "blocks.0.attn.qkv.weight")
    assert not is_narrow(model, "blocks.0.attn.qkv.lora_a")


def test_in_bfloat16_it_changes_nothing() -> None:
    """There frozen matrices are bfloat16 anyway."""
    made = [
        Model("llama-4x256", **SIZES, lora=2, backend="reference", precision="bfloat16", frozen_precision=said)
        for said in (None, "bfloat16")
    ]
    assert made[0].plan.bytes_by_kind() == made[1].plan.bytes_by_kind()
    with pytest.raises(TapelessError, match=r"frozen_precision='float32' is of no use in precision .* say that, or"):
        Model("llama-4x256", **SIZES, lora=2, backend="reference", precision="bfloat16", frozen_precision="float32")


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    with pytest.raises(TapelessError, match=r"unknown frozen_precision 'int8': choose one of bfloat16, float32\."):
        Model("gpt2-4x256", lora=2, frozen_precision="int8")
    trained: tuple[dict[str, Any], ...] = ({}, {"train": ("*",)}, {"frozen": ("*.bias",)})
    for fields in trained:
        with pytest.raises(TapelessError, match=r"of matrices that are not trained, and here all are: freeze some"):
            Model("gpt2-4x256", layers=1, frozen_precision="bfloat16", **fields)


class Elsewhere:
    """A backend that multiplies matrices of one type."""

    name, traits = "cuda", Traits(("float32", "bfloat16"), mixed_gemm=False)


def test_a_backend_that_cannot_says_what_to_do() -> None:
    backend: Any = Elsewhere()
    with pytest.raises(NotYetError, match=r"the cuda backend multiplies no float32 .*: take precision bfloat16 there"):
        precision_for(backend, None, "bfloat16")
    assert precision_for(backend, "bfloat16", "bfloat16") == PRECISIONS["bfloat16"]
    assert precision_for(backend, "float32", "float32") == PRECISIONS["float32"]


def test_the_cuda_backend_cannot() -> None:
    torch = pytest.importorskip("torch")
    assert torch is not None
    from tapeless.backends.device import Device

    with pytest.raises(NotYetError, match="take precision bfloat16"):
        Model("gpt2-4x256", layers=1, lora=2, frozen_precision="bfloat16", backend=Device("cpu"))
