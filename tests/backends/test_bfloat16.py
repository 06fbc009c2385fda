"""Mixed precision on the reference and on the cpu backend: bfloat16 activations and weights, float32 where it matters,
a master copy."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

from tapeless import Model, TapelessError
from tapeless.backends.backend import backend_named
from tapeless.backends.cpu import CPU
from tapeless.backends.host import store_rounded
from tapeless.check.configurations import CONFIGURATIONS, Configuration
from tapeless.check.examples import examples_of
from tapeless.check.lockstep import lockstep, pair
from tapeless.check.ops import call_alone
from tapeless.check.tolerances import TOLERANCES
from tapeless.kernels import cpu as cpu_kernels
from tapeless.program.call import Weight
from tapeless.program.precision import PRECISIONS, numpy_type
from tapeless.train.base import as_held

CHECKED = ("gpt2-4x256", "gpt2-4x256 recomputed", "gpt2-4x256 read at the end", "ops-102k", "cllm", "sunfish")
BFLOAT16 = PRECISIONS["bfloat16"]


def named(name: str) -> Configuration:
    return next(configuration for configuration in CONFIGURATIONS if configuration.name == name)


def made(configuration: Configuration, precision: str = "bfloat16", backend: str = "reference", **more: Any) -> Model:
    """Smooth throughout: a ReLU that a rounding switches changes a gradient by more than any rounding."""
    fields = {**configuration.fields, "activation": "gelu", **more}
    return Model(
        configuration.preset,
        batch=configuration.batch,
        time=configuration.time,
        backend=backend,
        precision=precision,
        **fields,
    )


def batch_of(configuration: Configuration, model: Model) -> tuple[Any, Any]:
    inputs, targets = configuration.batch_of(np.random.default_rng(0), model)
    features = model.config.features
    return (np.asarray(inputs).astype(numpy_type("bfloat16")).astype(float) if features else inputs), targets


def gradient_errors(configuration: Configuration) -> dict[str, float]:
    narrow, wide = made(configuration), made(configuration, "float64")
    for name, weight in wide.params.items():
        narrow.write(name, weight)
        wide.write(name, narrow.params[name].astype(np.float64))
    for model in (narrow, wide):
        model.forward_backward(*batch_of(configuration, wide))
    return {
        name: float(np.linalg.norm(narrow.grads[name] - true) / np.linalg.norm(true))
        for name, true in wide.grads.items()
    }


@pytest.mark.parametrize("name", CHECKED)
def test_gradients_are_those_of_float64_up_to_roundings(name: str) -> None:
    errors = gradient_errors(named(name))
    assert max(errors.values()) <= TOLERANCES["bfloat16 gradients"], errors
    assert max(errors.values()) > 2.0**-10  # it was rounded


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "momentum", "sgd"])
def test_a_step_moves_the_master_copy_and_the_weights_are_its_rounding(name: str, optimizer: str) -> None:
    configuration = named(name)
    model = made(configuration, optimizer=optimizer)
    inputs, targets = batch_of(configuration, model)
    before = {name: array.copy() for name, array in model.weights().items()}
    losses = []
    for _ in range(20):
        losses.append(model.forward_backward(inputs, targets))
        model.update(1e-3 if optimizer in ("adamw", "muon") else 0.02, clip=1.0)
    assert losses[-1] < losses[0]
    for weight, full in model.weights().items():
        assert full.dtype == np.float32
        assert not np.array_equal(full, before[weight])
        assert np.array_equal(full.astype(numpy_type("bfloat16")), model.params[weight]), weight


def test_weights_are_written_with_their_master_copy_or_not_at_all() -> None:
    model = made(named("gpt2-4x256"))
    with pytest.raises(ValueError, match="read-only"):
        model.params["norm.weight"][...] = 2
    model.write("norm.weight", np.full(model.params["norm.weight"].shape, 1.001))
    assert (model.params["norm.weight"].astype(float) == 1.0).all()
    assert (model.read("norm.weight") == np.float32(1.001)).all()


def test_a_step_smaller_than_a_rounding_is_not_lost() -> None:
    """What the master copy is for: 1 + 2⁻¹² is 1 in bfloat16, but sixteen such steps are not."""
    model = made(named("gpt2-4x256"), optimizer="sgd")
    model.write("norm.weight", np.ones(model.params["norm.weight"].shape))
    model.grads["norm.weight"][...] = -(2.0**-12)
    for step in range(1, 17):
        model.update(1.0)
        assert (model.read("norm.weight") == 1 + step * 2.0**-12).all()
    assert (model.params["norm.weight"].astype(float) == 1.0).all()  # 1 + 2⁻⁸ lies half way, and 1 is even
    model.update(1.0)
    assert (model.params["norm.weight"].astype(float) == 1 + 2.0**-7).all()


@pytest.mark.parametrize("name", CHECKED)
def test_memory_is_planned_to_the_byte(name: str) -> None:
    model = made(named(name))
    assert model.engine.memory.nbytes == model.plan.peak_bytes
    kinds = model.plan.bytes_by_kind()
    region = model.plan.placements["weights"].buffer
    assert model.plan.placements["weights"].bytes == 2 * region.elements
    assert kinds["master"] == model.plan.placements["gradients"].bytes == 4 * region.elements
    assert kinds["state"] == kinds["master"] * len(model.state) + model.plan.placements["step"].bytes
    for placement in model.plan.placements.values():
        assert placement.dtype == BFLOAT16.dtype(placement.buffer.role)
        assert model.engine.view(placement.buffer).dtype == numpy_type(placement.dtype)


def test_sums_keep_float32_and_what_is_passed_on_does_not() -> None:
    program = made(named("gpt2-4x256")).program
    roles = {buffer.name: buffer.role for buffer in program.buffers}
    streams = {name for name, role in roles.items() if role == "stream"}
    assert {"x", "dstream", "blocks.0.sum1", "blocks.1.sum2"} <= streams
    assert not any("norm" in name or "attn" in name or "mlp" in name for name in streams)
    assert roles["blocks.0.norm1.mean"] == roles["blocks.1.attn.lse"] == roles["loss"] == "statistic"
    assert roles["blocks.0.attn.qkv"] == roles["blocks.0.attn.dqkv"] == roles["logits"] == "activation"


def test_reading_out_and_sampling() -> None:
    model = made(named("gpt2-4x256"))
    scores = model.logits(np.zeros((1, 2), int))
    assert scores.dtype == np.float32
    assert len(model.generate([1], 3, temperature=0)) == 3


def test_each_result_is_rounded_once() -> None:
    """An op in bfloat16 is the rounding of the op in float64, where it adds too."""
    for name in ("linear", "layernorm", "gelu"):
        call, wide = call_alone(name, "backward", examples_of(name)[0], adding=True)
        narrow = {key: array.astype(numpy_type("bfloat16")) for key, array in wide.items()}
        exact = {key: array.astype(np.float64) for key, array in narrow.items()}
        reference = backend_named("reference")
        for arrays in (narrow, exact):
            for native in reference.bind(call, [arrays.get(a) for a in call.signature.arguments], added(call)):
                native()
        for argument in call.writes:
            rounded = np.empty(exact[argument.name].shape, numpy_type("bfloat16"))
            store_rounded(rounded, exact[argument.name])
            assert np.array_equal(narrow[argument.name], rounded), (name, argument.name)


def added(call: Any) -> dict[str, Any]:
    names = frozenset(argument.name for argument in call.writes if argument.mode == "add")
    return {"add": names} if names else {}


def test_storing_rounds_once() -> None:
    """By way of float32, what lies just above the middle between two would be rounded to it, and then down."""
    middle = 1 + 2.0**-8
    given = np.array([middle + 2.0**-40, middle - 2.0**-40, middle, -middle - 2.0**-40, 0.0, 1e-300, 1e300, np.inf])
    found = np.empty(len(given), numpy_type("bfloat16"))
    store_rounded(found, given)
    above = 1 + 2.0**-7
    assert found.astype(float).tolist() == [above, 1.0, 1.0, -above, 0.0, 0.0, np.inf, np.inf]
    store_rounded(found[:1], np.array([np.nan]))
    assert np.isnan(found[0])


def test_nan_of_any_bits_is_nan_without_a_warning() -> None:
    """Signalling ones too, which no processor makes, but a file may hold."""
    double = np.array([0x7FF0000000000001, 0xFFF0000000000001, 0x7FFFFFFFFFFFFFFF], np.uint64).view(np.float64)
    single = np.array([0x7F800001, 0xFF80FFFF, 0x7FFFFFFF], np.uint32).view(np.float32)
    matrix = Weight("a", "frozen", (3,), "frozen")
    for given in (double, single):
        for name in ("bfloat16", "float32", "float64"):
            found = np.zeros(3, numpy_type(name))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                store_rounded(found, given)
                held = as_held({"a": given}, [matrix], name)["a"]
            for array in (found, held):
                assert array.dtype == numpy_type(name)
                assert np.isnan(array).all(), (given, name)
    with pytest.warns(RuntimeWarning, match="invalid value"):  # of NaN an index cannot be made
        store_rounded(np.zeros(3, np.int64), double)


ON_CPU = (  # `make bfloat16` takes all
    "gpt2-4x256 dropout, recomputed",
    "ops-102k",
    "sunfish",
    "qwen3-0.6b",
    "llama-4x256 LoRA, one head of keys",
)
fast_here = pytest.mark.skipif("bfloat16" not in CPU.traits.precisions, reason="this processor multiplies no bfloat16")


@fast_here
@pytest.mark.parametrize("name", ON_CPU)
def test_on_the_cpu_every_call_is_as_near_as_its_roundings(name: str) -> None:
    model, reference, inputs, targets = pair(named(name), "cpu", "bfloat16")
    for difference in lockstep(model, reference, inputs, targets):
        assert difference.ok, str(difference)


@fast_here
def test_on_the_cpu_a_step_moves_the_master_copy_and_the_weights_are_its_rounding() -> None:
    for optimizer, lr in {"adamw": 1e-3, "muon": 1e-3, "momentum": 0.02, "sgd": 0.02}.items():
        model = made(named("gpt2-4x256"), backend="cpu", optimizer=optimizer)
        inputs, targets = batch_of(named("gpt2-4x256"), model)
        losses = []
        for _ in range(20):
            losses.append(model.forward_backward(inputs, targets))
            model.update(lr, clip=1.0)
        assert losses[-1] < losses[0]
        for weight, full in model.weights().items():
            assert np.array_equal(full.astype(numpy_type("bfloat16")), model.params[weight]), weight


@fast_here
def test_on_the_cpu_decoding_is_reading() -> None:
    model = made(named("gpt2-4x256"), backend="cpu")
    tokens = model.generate([1, 2], 3, seed=0)
    assert tokens == made(named("gpt2-4x256"), backend="cpu").generate([1, 2], 3, seed=0)


def test_a_processor_without_it_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "has_bfloat16", lambda: False)
    with pytest.raises(TapelessError, match="the cpu backend has no bfloat16: it runs in float32"):
        Model("ops-102k", backend="cpu", precision="bfloat16")


def test_without_ml_dtypes_a_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TapelessError, match="pip install ml_dtypes"):
        Model("ops-102k", backend="reference", precision="bfloat16")


def test_what_is_read_one_by_one_is_read_from_the_master_copy():
    """Embeddings, positions and norms are not rounded on their way in, in training and in evaluation: a rounded row is
    wrong in the same way wherever it is read, and no sum over rows evens that out."""
    model = Model(
        "gpt2-4x256",
        batch=1,
        time=4,
        backend="reference",
        precision="bfloat16",
        layers=1,
        channels=8,
        heads=2,
        hidden=16,
        vocab=11,
        context=6,
    )
    tokens = np.array([[1, 2, 3, 4]])
    seen = {}
    for call, arrays in model.trace(tokens, tokens):
        for name in call.spec.full:
            if name in arrays:
                seen[call.title] = arrays[name].dtype
        if call.title == "embedding.forward":
            assert np.array_equal(arrays["y"].reshape(4, -1), model.read("tokens.weight")[tokens[0]])
    titles = {"embedding.forward", "positions.forward", "layernorm.forward", "layernorm.backward"}
    assert seen == dict.fromkeys(titles, np.dtype("float32"))
    evaluated = next(call for call in model._evaluation.program.calls if call.title == "embedding.forward")
    assert model._evaluation.arguments(evaluated)["weight"].dtype == np.float32
    without = Model(
        "gpt2-4x256",
        batch=1,
        time=4,
        backend="reference",
        precision="bfloat16",
        optimizer=None,
        layers=1,
        channels=8,
        heads=2,
        hidden=16,
        vocab=11,
        context=6,
    )
    without.loss(tokens, tokens)  # where there is no update there is no master copy, and the weights are read
