"""Bad input: one sentence that names the value and what to do, before anything is changed."""

import re
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from tapeless import PRESETS, Model, Optimizer, TapelessError
from tapeless.models.config import CHOICES

B, T, V, FEATURES = 2, 4, 11, 3
SHAPE = {"batch": B, "time": T, "layers": 1, "channels": 8, "heads": 2, "vocab": V, "context": 6}
SMALL: dict[str, Any] = SHAPE | {"backend": "reference"}


def gpt(**changes):
    return Model("gpt2-4x256", **(SMALL | changes))


def teacher(**changes):
    """Answers at the last position only."""
    return Model("ops-102k", **(SMALL | changes))


def labeller(**changes):
    """Reads features instead of tokens."""
    return Model("sunfish", **(SMALL | {"features": FEATURES} | changes))


def refusal(action):
    """The sentence with which something is refused."""
    with pytest.raises(TapelessError) as caught:
        action()
    message = str(caught.value)
    assert message == " ".join(message.split()), "one line"
    assert message[-1] in ".?"
    assert not re.search(r"[.?!] ", message), "one sentence"
    for leaked in ("Traceback", "Error", "<class", " object at ", "NoneType", "numpy.", "dtype("):
        assert leaked not in message, "talk of Python's insides"
    return message


def assert_says(message, *fragments):
    for fragment in fragments:
        assert fragment in message


# Making a model.

SIZES = ("batch", "time", "layers", "channels", "heads", "vocab", "context", "hidden", "chunk")
NOT_SIZES = (0, -1, True, False, 2.0, nan, inf, "2", [2], 2j)
OPEN = ("time", "hidden", "chunk")  # None means "the preset's own" here


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [*NOT_SIZES, None], ids=repr)
def test_what_is_no_size_is_refused(name, value):
    if value is None and name in OPEN:
        assert gpt(**{name: value}).parameters > 0
        return
    message = refusal(lambda: gpt(**{name: value}))
    assert_says(message, f"{name} must be a whole number of at least 1", f"not {value!r}")


@pytest.mark.parametrize("name", SIZES)
def test_sizes_from_numpy_work_or_are_refused_by_their_own_name(name):
    size = np.int64({"time": T, "context": T, "channels": 8}.get(name, 2))
    try:
        model = gpt(**{name: size})
    except TapelessError as error:
        assert_says(str(error), name, repr(size))
    else:
        ids = np.zeros((model.batch, model.time), int)
        assert np.isfinite(model.loss(ids, ids))


MODELS = {
    "preset, nearly": (lambda: Model("gpt2-124"), "unknown preset 'gpt2-124'", "did you mean 'gpt2-124m'?"),
    "preset in capitals": (lambda: Model("OPS-102k"), "'OPS-102k'", "did you mean 'ops-102k'?"),
    "preset, nothing near": (lambda: Model("zzz"), "unknown preset 'zzz'", "choose one of", *PRESETS),
    "preset, nothing": (lambda: Model(""), "unknown preset ''", "choose one of", *PRESETS),
    "preset None": (lambda: Model(None), "preset", "None"),  # type: ignore[arg-type]
    "preset 5": (lambda: Model(5), "preset", "5"),  # type: ignore[arg-type]
    "preset in a list": (lambda: Model(["cllm"]), "preset", "['cllm']"),  # type: ignore[arg-type]
    "field, nearly": (lambda: gpt(layer=2), "unknown field 'layer'", "did you mean 'layers'?"),
    "field, other habits": (lambda: gpt(n_head=2), "unknown field 'n_head'", "here it is called 'heads'"),
    "field, nothing near": (lambda: gpt(qqqq=2), "unknown field 'qqqq'", "choose one of", "layers", "vocab"),
    "heads do not divide": (lambda: gpt(heads=3), "channels=8", "heads=3", "heads that divides the channels"),
    "more heads than channels": (lambda: gpt(heads=16), "channels=8", "heads=16"),
    "longer than its positions": (lambda: gpt(time=7), "time=7", "6 positions", "at most 6", "override context"),
    "one token too long": (lambda: Model("gpt2-4x256", time=1025), "time=1025", "1024 positions", "this model"),
    "tied with features": (lambda: labeller(tied=True), "tied=True", "features=3", "token embedding"),
    "tied by default": (lambda: gpt(features=5), "tied=True", "features=5", "token embedding"),
    "embeddings of features": (lambda: labeller(loss="squared_error"), "loss='squared_error'", "features=3"),
    "squared error untied": (lambda: gpt(loss="squared_error", tied=False), "squared_error", "tied must be true"),
    "features below zero": (lambda: gpt(features=-1), "features", "0 (tokens)", "not -1"),
    "features bool": (lambda: gpt(features=True), "features", "whole number", "not True"),
    "features float": (lambda: gpt(features=2.0), "features", "whole number", "not 2.0"),
    "causal 1": (lambda: gpt(causal=1), "causal must be true or false", "not 1"),
    "tied 'yes'": (lambda: gpt(tied="yes"), "tied must be true or false", "not 'yes'"),
    "recompute None": (lambda: gpt(recompute=None), "recompute must be true or false", "not None"),
    "attention_bias 0": (lambda: gpt(attention_bias=0), "attention_bias must be true or false", "not 0"),
    "norm_eps 0": (lambda: gpt(norm_eps=0.0), "norm_eps", "between 0 and 1", "not 0.0"),
    "norm_eps NaN": (lambda: gpt(norm_eps=nan), "norm_eps", "between 0 and 1", "not nan"),
    "norm_eps text": (lambda: gpt(norm_eps="1e-5"), "norm_eps", "between 0 and 1", "not '1e-5'"),
    "seed below zero": (lambda: gpt(seed=-1), "seed", "at least 0", "not -1"),
    "seed bool": (lambda: gpt(seed=True), "seed", "whole number", "not True"),
    "seed float": (lambda: gpt(seed=1.0), "seed", "whole number", "not 1.0"),
    "seed None": (lambda: gpt(seed=None), "seed", "whole number", "not None"),
    "optimizer a list": (lambda: gpt(optimizer=["adam"]), "optimizer", "['adam']"),
    "precision empty": (lambda: gpt(precision=""), "precision", "''", "float64"),
    "dtype": (lambda: gpt(dtype="float64"), "dtype", "precision"),
    "beta1 of 1": (lambda: Optimizer("adam", beta1=1.0), "beta1", "below 1", "not 1.0"),
    "beta2 NaN": (lambda: Optimizer("adam", beta2=nan), "beta2", "below 1", "not nan"),
    "momentum below 0": (lambda: Optimizer("momentum", momentum=-0.1), "momentum", "at least 0", "not -0.1"),
    "momentum text": (lambda: Optimizer("momentum", momentum="a"), "momentum", "'a'"),  # type: ignore[arg-type]
    "eps below 0": (lambda: Optimizer("adam", eps=-1e-8), "eps", "0 or a finite number above", "not -1e-08"),
    "eps None": (lambda: Optimizer("adam", eps=None), "eps", "None"),  # type: ignore[arg-type]
    "decay infinite": (lambda: Optimizer("adamw", decay=inf), "decay", "finite", "not inf"),
}


@pytest.mark.parametrize("label", MODELS)
def test_a_model_is_refused(label):
    make, *fragments = MODELS[label]
    assert_says(refusal(make), *fragments)


CHOSEN = CHOICES | {"backend": ("reference",), "precision": ("float32", "float64", "complex128")}
NEARLY = {
    "placement": ("prenorm", "pre"),
    "activation": ("geluu", "gelu"),
    "norm_kind": ("layer_norm", "layernorm"),
    "positions": ("sinusoid", "sinusoidal"),
    "rope_scaling": ("lama3", "llama3"),
    "readout": ("lasts", "last"),
    "loss": ("crossentropy", "cross_entropy"),
    "initialisation": ("gpt-2", "gpt2"),
    "optimizer": ("AdamW", "adamw"),
    "backend": ("referense", "reference"),
    "precision": ("float46", "float64"),
    "frozen_precision": ("bfloat61", "bfloat16"),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_choice_that_is_not_there(name):
    nearly, right = NEARLY[name]
    message = refusal(lambda: gpt(**{name: nearly}))
    assert_says(message, f"unknown {name}", repr(nearly), f"did you mean {right!r}?")
    for value in ("zzz", 3):
        message = refusal(lambda value=value: gpt(**{name: value}))
        assert_says(message, f"unknown {name}", repr(value), "choose one of", *CHOSEN[name])


# A batch. Every way in must refuse it alike, and leave every byte of the arena as it was.

IDS = np.arange(B * T).reshape(B, T) % V
LAST = np.array([3, 4])
SIGNAL = np.linspace(-1, 1, B * T * FEATURES).reshape(B, T, FEATURES)


def but(array, where, value):
    changed = np.array(array, dtype=np.result_type(array, np.asarray(value)))
    changed[where] = value
    return changed


RAGGED = [[1, 2, 3, 4], [1, 2]]
EARLY = but(np.full((B, T), -1), (slice(None), -1), LAST)

TOKENS = {
    "beyond the vocabulary": (but(IDS, (1, 2), 11), "tokens hold 11 at (1, 2)", "between 0 and 10"),
    "far beyond": (but(IDS.astype(np.uint64), (0, 3), 2**63), "9223372036854775808 at (0, 3)", "between 0 and 10"),
    "negative": (but(IDS, (0, 1), -1), "tokens hold -1 at (0, 1)", "between 0 and 10"),
    "the first of several": (but(IDS, (1, slice(1, None)), 99), "tokens hold 99 at (1, 1)"),
    "float": (IDS.astype(float), "tokens must be integers", "float64", ".astype(int)"),
    "bool": (IDS > 3, "tokens must be integers", "bool", ".astype(int)"),
    "complex": (IDS * 1j, "tokens must be integers", "complex128"),
    "text": ([["a"] * T] * B, "tokens must be integers"),
    "one dimension": (IDS[0], "tokens must have shape (2, 4)", "not (4,)"),
    "three dimensions": (IDS[None], "tokens must have shape (2, 4)", "not (1, 2, 4)"),
    "time first": (IDS.T, "tokens must have shape (2, 4)", "not (4, 2)"),
    "batch too large": (np.zeros((3, T), int), "tokens must have shape (2, 4)", "not (3, 4)"),
    "too short": (IDS[:, :3], "tokens must have shape (2, 4)", "not (2, 3)"),
    "no sequence": (IDS[:0], "tokens must have shape (2, 4)", "not (0, 4)"),
    "an empty list": ([], "tokens", "(2, 4)", "(0,)"),
    "ragged": (RAGGED, "tokens", "length"),
    "a string": ("hello", "tokens"),
    "None": (None, "tokens"),
}
TARGETS = {
    "beyond the vocabulary": (but(IDS, (1, 2), 11), "targets hold 11 at (1, 2)", "between -1 and 10"),
    "below −1": (but(IDS, (0, 1), -2), "targets hold -2 at (0, 1)", "between -1 and 10"),
    "all ignored": (np.full((B, T), -1), "all targets are −1", "at least one"),
    "float": (IDS.astype(float), "targets must be integers", "float64", ".astype(int)"),
    "bool": (IDS > 3, "targets must be integers", "bool", ".astype(int)"),
    "text": ([["a"] * T] * B, "targets must be integers"),
    "one dimension": (IDS[0], "targets must have shape (2, 4)", "not (4,)"),
    "time first": (IDS.T, "targets must have shape (2, 4)", "not (4, 2)"),
    "batch too large": (np.zeros((3, T), int), "targets must have shape (2, 4)", "not (3, 4)"),
    "no sequence": (IDS[:0], "targets must have shape (2, 4)", "not (0, 4)"),
    "an empty list": ([], "targets", "(2, 4)", "(0,)"),
    "ragged": (RAGGED, "targets", "length"),
    "a string": ("hello", "targets"),
    "None": (None, "targets"),
}
LAST_TARGETS = {
    "at an earlier position": (but(EARLY, (1, 2), 4), "last position only", "4 at (1, 2)", "must be −1", "(2,)"),
    "at every position": (IDS, "last position only", "0 at (0, 0)", "(2,)"),
    "all ignored": ([-1, -1], "all targets are −1", "at least one"),
    "all ignored, by position": (np.full((B, T), -1), "all targets are −1", "at least one"),
    "beyond the vocabulary": ([3, 11], "targets hold 11 at (1,)", "between -1 and 10"),
    "beyond it, by position": (but(EARLY, (1, 3), 11), "targets hold 11 at (1, 3)", "between -1 and 10"),
    "too many": ([3, 4, 5], "targets must have shape (2,)", "not (3,)"),
    "too short": (EARLY[:, 1:], "targets must have shape (2,)", "not (2, 3)"),
    "float": (LAST.astype(float), "targets must be integers", "float64", ".astype(int)"),
    "float, by position": (EARLY.astype(float), "targets must be integers", "float64", ".astype(int)"),
}
SIGNALS = {
    "NaN": (but(SIGNAL, (1, 2, 0), nan), "features hold nan at (1, 2, 0)", "clean the signal"),
    "infinite": (but(SIGNAL, (0, 3, 2), inf), "features hold inf at (0, 3, 2)", "clean the signal"),
    "minus infinite": (but(SIGNAL, (0, 0, 1), -inf), "features hold -inf at (0, 0, 1)", "clean the signal"),
    "the first of several": (but(SIGNAL, (slice(None), 1, 2), nan), "features hold nan at (0, 1, 2)"),
    "complex": (SIGNAL * 1j, "features must be real", "two features"),
    "bool": (SIGNAL > 0, "features must be numbers", "bool"),
    "text": (np.full(SIGNAL.shape, "a"), "features must be numbers"),
    "ids instead": (IDS, "(2, 4)"),
    "a feature short": (SIGNAL[..., :2], "features must have shape (2, 4, 3)", "not (2, 4, 2)"),
    "an empty list": ([], "(0,)"),
    "ragged": ([[[1.0] * FEATURES] * T, [[1.0] * FEATURES]], "features", "length"),
    "None": (None, "shape"),
}

WAYS = {
    "forward_backward": lambda model, inputs, targets: model.forward_backward(inputs, targets),
    "accumulate": lambda model, inputs, targets: model.forward_backward(inputs, targets, accumulate=True),
    "loss": lambda model, inputs, targets: model.loss(inputs, targets),
    "trace": lambda model, inputs, targets: list(model.trace(inputs, targets)),
    "logits": lambda model, inputs, targets: model.logits(inputs),
}


def trained(make, inputs, targets):
    """A model in use: nothing in its arena is still zero by chance, so a change would show."""
    model = make()
    model.forward_backward(inputs, targets)
    model.update(lr=0.01, clip=1.0)
    return model


def assert_refused_unchanged(model, ways, inputs, targets, fragments):
    before, steps = model.engine.memory.copy(), model.steps
    for way in ways:
        message = refusal(lambda way=way: WAYS[way](model, inputs, targets))
        assert_says(message, *fragments)
        # Weights, gradients, optimizer state, input buffers and workspace, all at once.
        assert np.array_equal(model.engine.memory, before), f"{way} was refused, but changed something"
        assert model.steps == steps


STEPPING = ("forward_backward", "accumulate", "loss", "trace")


@pytest.mark.parametrize("label", TOKENS)
def test_tokens_are_refused(label):
    tokens, *fragments = TOKENS[label]
    assert_refused_unchanged(trained(gpt, IDS, IDS), STEPPING, tokens, IDS[::-1], fragments)


@pytest.mark.parametrize("label", TARGETS)
def test_targets_are_refused(label):
    targets, *fragments = TARGETS[label]
    # Good tokens, other than the last ones: they must not get in before the targets are looked at.
    assert_refused_unchanged(trained(gpt, IDS, IDS), STEPPING, IDS[::-1], targets, fragments)


@pytest.mark.parametrize("label", LAST_TARGETS)
def test_targets_of_a_model_that_answers_once_are_refused(label):
    targets, *fragments = LAST_TARGETS[label]
    assert_refused_unchanged(trained(teacher, IDS, LAST), STEPPING, IDS[::-1], targets, fragments)


@pytest.mark.parametrize("label", SIGNALS)
def test_features_are_refused(label):
    features, *fragments = SIGNALS[label]
    ways = (*STEPPING, "logits")
    assert_refused_unchanged(trained(labeller, SIGNAL, IDS), ways, features, IDS[::-1], fragments)


def test_features_that_overflow_the_model_s_type_are_refused():
    # 1e300 is finite in float64, where it is checked, and infinite in float32, where it is used.
    model = trained(lambda: labeller(precision="float32"), SIGNAL, IDS)
    assert_refused_unchanged(model, STEPPING, but(SIGNAL, (1, 0, 2), 1e300), IDS, ("features", "(1, 0, 2)"))


READINGS = {
    "beyond the vocabulary": (but(IDS, (1, 2), 11), "tokens hold 11 at (1, 2)", "between 0 and 10"),
    "negative": (but(IDS, (0, 1), -1), "tokens hold -1 at (0, 1)", "between 0 and 10"),
    "float": (IDS.astype(float), "tokens must be integers", "float64", ".astype(int)"),
    "bool": (IDS > 3, "tokens must be integers", "bool"),
    "one dimension": (IDS[0], "(batch, time)", "not (4,)"),
    "three dimensions": (IDS[None], "(batch, time)", "not (1, 2, 4)"),
    "longer than its positions": (np.zeros((1, 7), int), "time=7", "at most 6"),
    "no sequence": (IDS[:0], "(batch, time)", "not (0, 4)"),
    "no time": (IDS[:, :0], "(batch, time)", "not (2, 0)"),
    "an empty list": ([], "(batch, time)", "not (0,)"),
    "ragged": (RAGGED, "tokens", "length"),
    "a string": ("hello", "(batch, time)"),
    "None": (None, "(batch, time)"),
}


@pytest.mark.parametrize("label", READINGS)
def test_readings_are_refused(label):
    tokens, *fragments = READINGS[label]
    model = trained(gpt, IDS, IDS)
    before = model.logits(IDS)
    assert_refused_unchanged(model, ("logits",), tokens, None, fragments)
    assert np.array_equal(model.logits(IDS), before)


@pytest.mark.parametrize("ids", [IDS.tolist(), IDS.astype(np.uint8), IDS.astype(np.int32), IDS[:, ::-1][:, ::-1]])
def test_any_integers_of_the_right_shape_are_taken(ids):
    # The other side of the tables above: a check that refused everything would pass them.
    model = gpt()
    assert model.loss(ids, ids) == model.loss(IDS, IDS)


@pytest.mark.parametrize("targets", [LAST, LAST.tolist(), EARLY, EARLY.tolist()])
def test_a_model_that_answers_once_takes_targets_by_sequence_or_by_position(targets):
    model = teacher()
    assert model.loss(IDS, targets) == model.loss(IDS, LAST)


# The update.

RATES = (-1, -1e-9, nan, inf, -inf, "0.1", None, True, 1j, [0.1])
LIMITS = (0, -1, -0.5, nan, "1", True, 1j, [1.0], np.array([1.0, 2.0]))


def assert_update_refused_unchanged(fragments, **arguments):
    model = trained(gpt, IDS, IDS)
    before, steps = model.engine.memory.copy(), model.steps
    assert_says(refusal(lambda: model.update(**arguments)), *fragments)
    assert np.array_equal(model.engine.memory, before)
    assert model.steps == steps


@pytest.mark.parametrize("lr", RATES, ids=repr)
def test_learning_rates_are_refused(lr):
    assert_update_refused_unchanged(("lr must be 0 or a finite number above", f"not {lr!r}"), lr=lr)


@pytest.mark.parametrize("lr", [1e39, 1e300])
def test_a_learning_rate_that_the_weights_type_cannot_hold_is_refused(lr):
    model = Model("ops-102k", precision="float32", backend="reference", batch=1)
    message = refusal(lambda: model.update(lr))
    assert_says(message, "lr must be at most 3.4e+38, the largest number of float32", f"not {lr!r}")
    assert model.steps == 0


@pytest.mark.parametrize("lr", [lr for lr in RATES if lr is not None], ids=repr)
def test_learning_rates_of_a_trace_are_refused(lr):
    # None means no update here. The batch is good, and must not get in before the rate is looked at.
    model = trained(gpt, IDS, IDS)
    before = model.engine.memory.copy()
    message = refusal(lambda: list(model.trace(IDS[::-1], IDS[::-1], lr=lr)))
    assert_says(message, "lr must be 0 or a finite number above", f"not {lr!r}")
    assert np.array_equal(model.engine.memory, before)
    assert model.steps == 1


@pytest.mark.parametrize("clip", LIMITS, ids=repr)
def test_limits_are_refused(clip):
    assert_update_refused_unchanged(("clip must be", "above 0", f"not {clip!r}"), lr=0.1, clip=clip)


@pytest.mark.parametrize(("lr", "clip"), [(0, None), (0.1, 1), (1, inf), (np.float64(0.1), np.float32(1.0))])
def test_any_usable_learning_rate_and_limit_are_taken(lr, clip):
    model = trained(gpt, IDS, IDS)
    assert np.isfinite(model.update(lr=lr, clip=clip))
    assert model.steps == 2


def test_update_without_an_optimizer_is_refused():
    model = gpt(optimizer=None)
    model.forward_backward(IDS, IDS)
    before = model.engine.memory.copy()
    for step in (lambda: model.update(lr=0.1), lambda: list(model.trace(IDS[::-1], IDS[::-1], lr=0.1))):
        assert_says(refusal(step), "optimizer=None", "no update")
        assert np.array_equal(model.engine.memory, before)
        assert model.steps == 0


def test_a_model_too_large_for_the_machine_is_refused() -> None:
    """The plan knows the bytes before anything is allocated."""
    with pytest.raises(TapelessError, match=r"needs [\d,]+ bytes in one block"):
        Model("ops-102k", batch=10**10, backend="reference")


def test_numpy_sizes_are_sizes() -> None:
    sizes: dict[str, Any] = {"batch": np.int64(2), "layers": np.int64(1), "seed": np.int64(3)}
    model = Model("ops-102k", backend="reference", **sizes)
    assert (model.batch, model.config.layers) == (2, 1)
    assert type(model.config.layers) is int


ABSURD: dict[str, dict[str, Any]] = {
    "layers=100000 makes a list of calls that takes too long to prove: use at most 256": {"layers": 100_000},
    "tokens.weight alone takes": {"vocab": 10**18},
    "positions.weight alone takes": {"context": 10**18, "time": 4},
    "bytes, more than any machine has": {"channels": 4 * 10**9},
    "alone takes": {"batch": 10**17},
}


@pytest.mark.parametrize("expected", ABSURD)
def test_sizes_that_no_machine_has_are_refused_before_anything_is_built(expected):
    with pytest.raises(TapelessError, match=expected):
        Model("gpt2-4x256", backend="reference", **ABSURD[expected])


def test_a_deep_model_is_built_without_a_pause(monkeypatch):
    """A hundred layers took six seconds, the more the worse: each call looked at every other."""
    from tapeless.program import adjoints

    asked, right = [], adjoints._fits

    def counted(*calls):
        asked.append(calls)
        return right(*calls)

    monkeypatch.setattr(adjoints, "_fits", counted)
    fields: dict[str, Any] = {"channels": 4, "heads": 1, "vocab": 5, "context": 2}
    counts = []
    for layers in (4, 8):
        asked.clear()
        Model("gpt2-4x256", backend="reference", layers=layers, **fields)
        counts.append(len(asked))
    assert counts[1] < 2.2 * counts[0]


@pytest.mark.parametrize("made", [-3, 1 << 63, 2.0, True, "7", None])
def test_steps_that_cannot_have_been_made_are_refused(made):
    model = gpt()
    model.steps = 5
    assert repr(made) in refusal(lambda: setattr(model, "steps", made))
    assert model.steps == 5


def test_a_model_without_updates_counts_none():
    assert "optimizer=None" in refusal(lambda: setattr(gpt(optimizer=None), "steps", 1))
