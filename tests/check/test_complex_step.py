"""The proof of the gradients: it holds for every op and every configuration, and it finds what is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
import pytest

from tapeless.check import complex_step, ops
from tapeless.check.complex_step import (
    KINK,
    STEP,
    TensorError,
    check_model,
    relative_error,
)
from tapeless.check.configurations import CONFIGURATIONS, Configuration, configurations_of, full_size, small
from tapeless.check.ops import check_op
from tapeless.check.tolerances import TOLERANCES
from tapeless.errors import TapelessError
from tapeless.inputs import unpacked
from tapeless.model import Model
from tapeless.models.config import CHOICES
from tapeless.models.presets import PRESETS
from tapeless.ops import OPS
from tapeless.ops.contract import Array, store
from tests.check.directions import check_directions
from tests.random_cases import some

WITH_BACKWARD = [name for name, op in OPS.items() if op.SPEC.backward is not None]
by_name = pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)


def named(name: str) -> Configuration:
    return next(configuration for configuration in CONFIGURATIONS if configuration.name == name)


@cache
def built(name: str) -> Model:
    """One of each for all that only ask what it is like: to build it takes longer than any of them."""
    return named(name).model("float64")


# It holds


@pytest.mark.parametrize("name", WITH_BACKWARD)
def test_every_op_is_proven(name: str) -> None:
    errors = list(check_op(name))
    gradients = [g for g in OPS[name].SPEC.backward.writes if g[1:] in OPS[name].SPEC.forward.reads]
    assert [error.tensor for error in errors] == gradients
    for error in errors:
        assert error.ok, error
        assert error.elements > 1


def trained_by(model: Model) -> list[str]:
    """Every weight, or what is named, or adapters; without what is frozen."""
    preset, names = model.preset, list(model.params)
    head = "tokens.weight" if model.config.tied else "head.weight"
    meant = {"norms": "*norm*.weight", "biases": "*.bias", "head": head}
    wanted = [meant.get(word, f"{word}.*") for word in preset.train]
    if preset.lora is not None:
        wanted.append("*.lora_?")
    if wanted:
        names = [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)]
    return [name for name in names if not any(fnmatchcase(name, pattern) for pattern in preset.frozen)]


@pytest.mark.parametrize("configuration", some(CONFIGURATIONS, 3), ids=lambda configuration: configuration.name)
def test_every_configuration_is_proven(configuration: Configuration) -> None:
    """Every element of every trained weight, to twelve digits: of a third of the configurations, as `tapeless check`
    and `make soak` take all. `test_directions_agree` moves every element of all of them at once, weight by weight, so
    that one that is wrong shows there too."""
    errors = list(check_model(configuration))
    model = built(configuration.name)
    assert {error.tensor: error.elements for error in errors} == {n: model.params[n].size for n in trained_by(model)}
    for error in errors:
        assert error.ok, error
        assert error.configuration == configuration.name


@by_name
def test_directions_agree(configuration: Configuration) -> None:
    errors = list(check_directions(configuration))
    model = built(configuration.name)
    assert [error.tensor for error in errors] == list(model.grads)
    assert set(model.grads) == set(trained_by(model))
    for error in errors:
        assert error.ok, error


def test_directions_at_full_size() -> None:
    for error in check_directions(full_size("ops-102k")):
        assert error.ok, error


def test_the_tolerance_is_the_one_promised() -> None:
    assert TOLERANCES["complex step"] == 1e-12
    assert STEP == 1e-30
    assert TensorError("c", "t", 1e-12, 1).ok
    assert not TensorError("c", "t", 1.01e-12, 1).ok


# Nothing hides a mistake


def test_there_are_enough_configurations() -> None:
    assert len(CONFIGURATIONS) >= 20
    # One layer alone is checked too, but beside the twenty.
    assert sum(configuration.fields["layers"] > 1 for configuration in CONFIGURATIONS) >= 20
    assert len({configuration.name for configuration in CONFIGURATIONS}) == len(CONFIGURATIONS)
    assert {configuration.preset for configuration in CONFIGURATIONS} == set(PRESETS)
    for name in PRESETS:
        assert all(configuration.preset == name for configuration in configurations_of(name))
        assert configurations_of(name)


def test_every_choice_is_checked() -> None:
    """Each value of each field that changes the mathematics, and both of each switch."""
    made = [built(configuration.name).preset.values() for configuration in CONFIGURATIONS]
    for field in ("placement", "activation", "positions", "readout", "loss"):
        assert {values[field] for values in made} == set(CHOICES[field])
    for switch in ("causal", "tied", "recompute", "attention_bias"):
        assert {values[switch] for values in made} == {True, False}
    for given in ("features", "frozen"):
        assert {bool(values[given]) for values in made} == {True, False}


@pytest.mark.parametrize("name", PRESETS)
def test_a_small_preset_stays_of_its_kind(name: str) -> None:
    """What is made small is sizes; a different mask or norm would prove another model."""
    full, little = PRESETS[name].values(), built(configurations_of(name)[0].name).preset.values()
    for field in ("placement", "activation", "positions", "causal", "tied", "recompute", "attention_bias", "readout"):
        assert little[field] == full[field]
    for field in ("loss", "initialisation"):
        assert little[field] == full[field]
    assert bool(little["features"]) == bool(full["features"])


@by_name
def test_sizes_above_one(configuration: Configuration) -> None:
    model = built(configuration.name)
    c = model.config
    assert min(model.batch, model.time, c.heads, c.channels // c.heads, c.width, c.vocab) > 1
    # Axes of one tensor differ, so that none can be taken for the other without an error.
    assert c.channels not in (c.width, c.vocab)
    assert c.context >= model.time


def test_positions_beyond_the_sequence_are_checked() -> None:
    learned = [m for m in (built(c.name) for c in CONFIGURATIONS) if m.config.positions == "learned"]
    assert any(model.config.context > model.time for model in learned)


@by_name
def test_batches_with_repeated_tokens_and_ignored_targets(configuration: Configuration) -> None:
    model = built(configuration.name)
    inputs, targets = configuration.batch_of(np.random.default_rng(configuration.seed), model)
    inputs, segments = unpacked(inputs)
    assert (segments is not None) == bool(configuration.documents)
    if model.config.features:
        assert inputs.shape == (model.batch, model.time, model.config.features)
    else:
        within = [np.bincount(sequence, minlength=model.config.vocab) for sequence in inputs]
        assert max(counts.max() for counts in within) >= 2
        assert (np.minimum(within[0], within[1]) > 0).any()  # and across sequences
        assert len(np.unique(inputs)) > 1
    assert (targets == -1).any()
    assert (targets >= 0).any()


@by_name
def test_weights_away_from_one_and_zero(configuration: Configuration) -> None:
    model = built(configuration.name)
    configuration.scramble(np.random.default_rng(configuration.seed), model)
    for name, weight in model.params.items():
        assert weight.std() > 0.05, name
        assert np.abs(weight).min() > 0, name
        assert np.abs(weight - 1).min() > 0, name
        assert np.abs(weight - 1).max() > 0.1, name
        assert np.abs(weight).max() > 0.1, name


def test_chunks_do_not_divide_the_rows() -> None:
    """A loss that forgets the last, shorter chunk must not get through because there is none."""
    models = [built(configuration.name) for configuration in CONFIGURATIONS]
    chunked = [m for m in models if m.config.loss == "cross_entropy"]
    ragged = 0
    for model in chunked:
        rows = model.batch * (1 if model.config.readout == "last" else model.time)
        held = model.plan.placements["logits"].buffer.shape[0]
        assert model.preset.layout.chunk
        assert held == min(model.preset.layout.chunk, rows)
        ragged += rows % held != 0
    assert ragged > len(chunked) / 2
    assert ragged >= 20


def test_attention_alone_with_other_lengths() -> None:
    example = OPS["attention"].example(np.random.default_rng(0))
    assert example["q"].shape[1] != example["k"].shape[1]
    assert example["causal"]


# It finds what is wrong

Kernel = Callable[..., None]
Values = dict[str, Array]  # a backward's arguments by name
Change = Callable[[Array, Values], Array]


def spoilt(name: str, output: str, change: Change) -> Kernel:
    """The backward of an op, right but for one output, which `change` makes from the right one and the inputs."""
    right = OPS[name].backward
    signature = OPS[name].SPEC.backward
    parameters = list(inspect.signature(right).parameters)

    def wrong(*args: Any, add: frozenset[str] = frozenset()) -> None:
        values = dict(zip(parameters, args, strict=False))
        out = values[output]
        if out is not None:
            values[output] = np.zeros_like(out)
        extra = {"add": add - {output}} if signature.adds else {}
        right(*values.values(), **extra)
        if out is not None:
            store(out, change(values[output], values), output in add)

    return wrong


def overwriting(name: str, output: str) -> Kernel:
    """= for +=: whatever the call says, this output is overwritten."""
    right = OPS[name].backward

    def wrong(*args: Any, add: frozenset[str] = frozenset()) -> None:
        right(*args, add=add - {output})

    return wrong


def head_width(values: Values) -> int:
    return int(values["q"].shape[2] // values["lse"].shape[1])


def without_mean_term(dx: Array, values: Values) -> Array:
    g = values["dy"] * values["weight"]
    wrong: Array = dx + values["rstd"][:, None] * g.mean(axis=1, keepdims=True)
    return wrong


def without_projection(dx: Array, values: Values) -> Array:
    g, rstd = values["dy"] * values["weight"], values["rstd"][:, None]
    xhat = (values["x"] - values["mean"][:, None]) * rstd
    wrong: Array = dx + rstd * xhat * (g * xhat).mean(axis=1, keepdims=True)
    return wrong


def rms_without_projection(dx: Array, values: Values) -> Array:
    rstd = values["rstd"][..., None]
    dy = values["dy"].reshape(*values["rstd"].shape, -1)
    wrong: Array = (rstd * dy * values["weight"]).reshape(dx.shape)
    return wrong


def document_layernorm(dx: Array, values: Values) -> Array:
    """000's formula: γ outside the sums."""
    dy, rstd, centred = values["dy"], values["rstd"][:, None], values["x"] - values["mean"][:, None]
    sums = dy.sum(axis=1, keepdims=True) + centred * (dy * centred).sum(axis=1, keepdims=True)
    wrong: Array = rstd / dy.shape[1] * (dy.shape[1] * dy - sums) * values["weight"]
    return wrong


def last_token_wins(dweight: Array, values: Values) -> Array:
    wrong = np.zeros_like(dweight)
    wrong[values["tokens"]] = values["dy"]
    return wrong


def one_element_off(value: Array, values: Values) -> Array:
    """The last element alone, by 1e-9 of the largest."""
    wrong = value.copy()
    wrong.reshape(-1)[-1] += 1e-9 * np.abs(value).max()
    return wrong


# (op, output, what is wrong with it, a configuration in which the op runs)
FAULTS: dict[str, tuple[str, str, Change, str]] = {
    "attention without 1/√D in dq": ("attention", "dq", lambda d, v: d * sqrt(head_width(v)), "gpt2-4x256"),
    "attention without 1/√D in dk": ("attention", "dk", lambda d, v: d * sqrt(head_width(v)), "gpt2-4x256"),
    "attention as the identity": ("attention", "dq", lambda d, v: v["dy"] + 0.01 * d, "cllm"),
    "attention without dv": ("attention", "dv", lambda d, v: 0 * d, "sunfish"),
    "layernorm without mean(g)": ("layernorm", "dx", without_mean_term, "gpt2-4x256"),
    "layernorm without x̂·mean(g·x̂)": ("layernorm", "dx", without_projection, "ops-102k"),
    "layernorm of document 000": ("layernorm", "dx", document_layernorm, "gpt2-4x256"),
    "layernorm dweight from dy alone": ("layernorm", "dweight", lambda d, v: v["dy"].sum(axis=0), "gpt2-4x256"),
    "layernorm dbias summed over channels": ("layernorm", "dbias", lambda d, v: 0 * d + d.sum(), "gpt2-4x256"),
    "linear dbias as a mean": ("linear", "dbias", lambda d, v: v["dy"].mean(axis=0), "gpt2-4x256"),
    "linear dx halved": ("linear", "dx", lambda d, v: 0.5 * d, "gpt2-4x256"),
    "linear one element off": ("linear", "dweight", one_element_off, "gpt2-4x256"),
    "embedding assigned, not added": ("embedding", "dweight", last_token_wins, "gpt2-4x256"),
    "positions of the first sequence": ("positions", "dtable", lambda d, v: _first(d, v["dy"]), "gpt2-4x256"),
    "gelu without the inner slope": ("gelu", "dx", lambda d, v: v["dy"] * _half_slope(v["x"]), "gpt2-4x256"),
    "relu passing everything": ("relu", "dx", lambda d, v: v["dy"], "ops-102k"),
    "tanh with 1 − t": ("tanh", "dx", lambda d, v: v["dy"] * (1 - np.tanh(v["x"])), "cllm"),
    "dropout not dropped back": ("dropout", "dx", lambda d, v: v["dy"], "gpt2-4x256 dropout"),
    "last position in the first": ("last_position", "dx", lambda d, v: np.roll(d, 1, axis=1), "ops-102k"),
    "rmsnorm without x̂·mean(g·x̂)": ("rmsnorm", "dx", rms_without_projection, "llama-4x256"),
    "rmsnorm dweight halved": ("rmsnorm", "dweight", lambda d, v: d / 2, "qwen3-0.6b"),
    "rope not turned back": ("rope", "dx", lambda d, v: v["dy"], "llama-3.2-1b"),
    "swiglu gate without its slope": ("swiglu", "dgate", lambda d, v: v["dy"] * v["up"], "smollm2-135m"),
    "adapt without its scale": ("adapt", "dlow", lambda d, v: d / v["scale"], "gpt2-4x256 LoRA"),
    "swiglu up doubled": ("swiglu", "dup", lambda d, v: 2 * d, "llama-4x256 documents"),
    "attention with the values of one head": ("attention", "dv", lambda d, v: d / 2, "llama-4x256 one head of keys"),
    "classifier over all rows": ("classifier", "dx", lambda d, v: d * v["count"] / len(d), "gpt2-4x256"),
    "classifier dweight doubled": ("classifier", "dweight", lambda d, v: 2 * d, "sunfish"),
    "squared error without its 2": ("squared_error", "dx", lambda d, v: d / 2, "cllm"),
}


def _first(dtable: Array, dy: Array) -> Array:
    wrong = np.zeros_like(dtable)
    wrong[: dy.shape[1]] = dy[0]
    return wrong


def _half_slope(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_every_backward_of_a_model_is_among_the_faults() -> None:
    """unembed and proximity are read out only; no model goes back through them."""
    assert {fault[0] for fault in FAULTS.values()} == set(WITH_BACKWARD) - {"unembed", "proximity"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_formula_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the op alone, in the model by elements, and in the model by directions."""
    name, output, change, configuration = FAULTS[fault]
    monkeypatch.setattr(OPS[name], "backward", spoilt(name, output, lambda d, v: d))
    assert all(error.ok for error in check_op(name))  # what the spoiling itself does is harmless
    assert all(error.ok for error in check_directions(named(configuration)))
    monkeypatch.undo()
    monkeypatch.setattr(OPS[name], "backward", spoilt(name, output, change))
    assert {error.tensor for error in check_op(name) if not error.ok} == {output}
    assert any(not error.ok for error in check_directions(named(configuration)))
    assert any(not error.ok for error in check_model(named(configuration)))


@pytest.mark.parametrize("name", ["unembed", "proximity"])
@pytest.mark.parametrize("output", ["dx", "dweight"])
def test_a_wrong_readout_is_found(name: str, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPS[name], "backward", spoilt(name, output, lambda d, v: 1.000001 * d))
    assert {error.tensor for error in check_op(name) if not error.ok} == {output}


@pytest.mark.parametrize(
    ("name", "output", "configuration"),
    [
        ("layernorm", "dx", "gpt2-4x256"),  # the stream, which a branch adds to
        ("linear", "dx", "ops-102k"),  # the same, post-norm
        ("embedding", "dweight", "gpt2-4x256"),  # tied: the head was there first
    ],
)
@pytest.mark.parametrize("check", [check_model, check_directions])
def test_overwriting_instead_of_adding_is_found(
    name: str,
    output: str,
    configuration: str,
    check: Callable[[Configuration], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OPS[name], "backward", overwriting(name, output))
    assert all(error.ok for error in check_op(name))  # alone it is right: only the model shows it
    assert any(not error.ok for error in check(named(configuration)))


def test_a_wrong_forward_of_the_evaluation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss that is differentiated is the evaluation's: if it is another, the gradient is not its gradient."""
    op = OPS["classifier"]
    right = op.forward

    def biased(loss: Array, *rest: Any) -> None:
        right(loss, *rest)
        loss *= 1.000001

    monkeypatch.setattr(op, "forward", biased)
    assert not any(error.ok for error in check_model(named("gpt2-4x256")))


@pytest.mark.parametrize("where", ["everywhere", "in one element"])
def test_nan_is_not_ok(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(value: Array, values: Values) -> Array:
        wrong = value.copy()
        wrong.reshape(-1)[:: 1 if where == "everywhere" else value.size] = nan
        return wrong

    monkeypatch.setattr(OPS["linear"], "backward", spoilt("linear", "dbias", spoil))
    configuration = named("gpt2-4x256")
    for errors in (check_model(configuration), check_directions(configuration)):
        faulty = [error for error in errors if not error.ok]
        assert len(faulty) == 8  # four linears in each of two blocks, their biases and nothing else
        assert all(error.tensor.endswith(".bias") and not isfinite(error.error) for error in faulty)
    assert [error.tensor for error in check_op("linear") if not error.ok] == ["dbias"]


def test_relative_error() -> None:
    zeros, some = np.zeros(3), np.array([1.0, -4.0, 2.0])
    assert relative_error(zeros, zeros) == 0
    assert relative_error(some, some) == 0
    assert relative_error(some, some + np.array([0, 0, 1])) == 0.25
    assert relative_error(zeros, some) == relative_error(some, zeros) == 1
    for one, two in ((some, np.array([1.0, nan, 2.0])), (zeros, np.full(3, nan))):
        assert not TensorError("c", "t", relative_error(one, two), 3).ok
        assert not TensorError("c", "t", relative_error(two, one), 3).ok


def test_an_op_whose_backward_yields_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to check is not the same as all is well."""
    monkeypatch.setattr(ops, "_derivatives", lambda *args: iter(()))
    with pytest.raises(TapelessError, match="the backward of relu yields no gradient to check"):
        list(check_op("relu"))


# The kink


def relu_model() -> tuple[Configuration, Model, Array, Array]:
    configuration = named("ops-102k")
    rng = np.random.default_rng(0)
    model = built(configuration.name)
    inputs, targets = configuration.batch_of(rng, model)
    configuration.scramble(rng, model)
    return configuration, model, inputs, targets


def test_the_distance_to_the_kink_is_what_it_says() -> None:
    _, model, inputs, targets = relu_model()
    distances = [
        np.abs(values["x"]).min()
        for call, values in model.trace(inputs, targets)
        if (call.op, call.direction) == ("relu", "forward")
    ]
    assert len(distances) >= 2
    assert complex_step._distance_to_kink(model, inputs, targets) == min(distances) > 0


def test_a_unit_on_the_kink_is_reported() -> None:
    _, model, inputs, targets = relu_model()
    model.params["blocks.1.mlp.up.weight"][:, 2] = 0
    model.params["blocks.1.mlp.up.bias"][2] = 0  # this unit's input is exactly 0 in every row
    assert complex_step._distance_to_kink(model, inputs, targets) == 0
    model.params["blocks.1.mlp.up.bias"][2] = KINK / 2
    assert complex_step._distance_to_kink(model, inputs, targets) == KINK / 2


def test_other_activations_have_no_kink() -> None:
    configuration = named("gpt2-4x256")
    model = built(configuration.name)
    inputs, targets = configuration.batch_of(np.random.default_rng(0), model)
    assert complex_step._distance_to_kink(model, inputs, targets) == np.inf


def on_the_kink(configuration: Configuration, rng: np.random.Generator, model: Model) -> None:
    for name, weight in model.params.items():
        weight[...] = 0 if "mlp.up" in name else rng.normal(size=weight.shape)


def test_a_model_that_stays_on_the_kink_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Configuration, "scramble", on_the_kink)
    with pytest.raises(TapelessError, match="ops-102k: no seed keeps every ReLU away from its kink"):
        next(check_model(named("ops-102k")))


def test_a_seed_on_the_kink_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next seed is taken instead, and the model that is checked keeps its distance."""
    right, calls = Configuration.scramble, []

    def twice_on_the_kink(configuration: Configuration, rng: np.random.Generator, model: Model) -> None:
        calls.append(model)
        (on_the_kink if len(calls) <= 2 else right)(configuration, rng, model)

    monkeypatch.setattr(Configuration, "scramble", twice_on_the_kink)
    model, probe, inputs, targets = complex_step.paired(named("ops-102k"))
    assert len(calls) >= 3
    assert complex_step._distance_to_kink(model, inputs, targets) > KINK
    assert probe.precision.name == "complex128"
    for name, weight in model.params.items():
        assert np.array_equal(probe.params[name], weight.astype(complex))


# How it works


def test_the_probe_is_left_as_it_was() -> None:
    """Each perturbation is taken back: at the end the complex twin has the weights it began with."""
    configuration = named("ops-102k")
    pairs = []
    original = complex_step.paired

    def remember(c: Configuration) -> Any:
        pairs.append(original(c))
        return pairs[-1]

    for check in (check_model, check_directions):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(complex_step, "paired", remember)
            list(check(configuration))
        model, probe, _, _ = pairs[-1]
        for name, weight in model.params.items():
            assert np.array_equal(probe.params[name], weight.astype(complex))


def test_small_changes_only_what_it_is_told() -> None:
    fields = small("sunfish", layers=3)
    assert fields["layers"] == 3
    assert fields["features"] == 3
    assert "features" not in small("gpt2-4x256")
    values = PRESETS["sunfish"].override(**fields).values()
    assert (values["placement"], values["recompute"], values["causal"]) == ("post", True, False)
