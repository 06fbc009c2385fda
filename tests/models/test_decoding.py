"""Decoding with a cache: the programs and their ops, held to the model that reads everything every time."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless import Model, TapelessError
from tapeless.backends.backend import backend_named, run_call
from tapeless.check.lockstep import compare, compare_fused
from tapeless.check.tolerances import TOLERANCES
from tapeless.errors import ProgramError
from tapeless.generate import Decoder
from tapeless.models.decoding import decoding, reading
from tapeless.models.presets import preset
from tapeless.ops import OPS
from tapeless.program.arena import make_plan
from tapeless.program.builder import Builder
from tapeless.program.call import add, update, write
from tapeless.program.precision import PRECISIONS
from tests.random_cases import cases

pytestmark = pytest.mark.usefixtures("two_threads")

cpu = backend_named("cpu")
reference = backend_named("reference")

CONTEXT, CHUNK = 11, 4  # a context that is no multiple of the chunk
SMALL: dict[str, Any] = {"layers": 2, "channels": 12, "heads": 2, "vocab": 40, "context": CONTEXT}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "pre-norm": ("gpt2-4x256", {}),
    "post-norm": ("gpt2-4x256", {"placement": "post"}),
    "sinusoidal": ("gpt2-4x256", {"positions": "sinusoidal"}),
    "untied": ("gpt2-4x256", {"tied": False}),
    "relu without attention bias": ("gpt2-4x256", {"activation": "relu", "attention_bias": False}),
    "one head, one layer": ("gpt2-4x256", {"heads": 1, "layers": 1}),
    "three heads": ("gpt2-4x256", {"heads": 3, "layers": 3}),
    "squared error": ("cllm", {}),
    "causal encoder": ("ops-102k", {"causal": True, "readout": "all"}),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("tapeless.generate.CHUNK", CHUNK)


def small_model(name, backend, precision=None, **changes):
    """No weight keeps a value, like a norm's 1 or a bias's 0, behind which a mistake could hide."""
    base, fields = CONFIGURATIONS[name]
    model = Model(base, backend=backend, precision=precision, time=1, optimizer=None, **(SMALL | fields | changes))
    rng = np.random.default_rng(3)
    for weight in model.params.values():
        weight[...] = rng.normal(0.2, 0.5, weight.shape)
    return model


def tokens_for(model, count, seed=0):
    return [int(token) for token in np.random.default_rng(seed).integers(0, model.config.vocab, count)]


def error_of(found, true):
    return np.abs(found - true).max() / np.abs(true).max()


# float32 keeps 7 digits; a token goes through some hundred roundings.
BOUNDS = {"reference": TOLERANCES["complex step"], "cpu": TOLERANCES["float32 gradients"]}


@pytest.mark.parametrize("backend", BOUNDS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_scores_are_those_of_the_whole_sequence(name, backend):
    """At every position, from every number of tokens read before it."""
    model = small_model(name, backend)
    tokens = tokens_for(model, CONTEXT)
    true = model.logits([tokens])[0]
    decoder = Decoder(model)
    for start in range(CONTEXT):
        decoder.read(tokens[:start])
        for position in range(start, CONTEXT):
            assert decoder.position == position
            assert error_of(decoder.step(tokens[position]), true[position]) <= BOUNDS[backend], (start, position)


def test_a_complex_model_decodes_too():
    model = small_model("pre-norm", "reference", precision="complex128")
    tokens = tokens_for(model, 6)
    decoder = Decoder(model)
    decoder.read(tokens[:-1])
    scores = decoder.step(tokens[-1])
    assert scores.dtype == np.float64
    assert error_of(scores, model.logits([tokens])[0, -1].real) <= BOUNDS["reference"]


def test_with_the_chunk_as_it_is(monkeypatch):
    monkeypatch.undo()
    model = small_model("pre-norm", "cpu", context=150)
    tokens = tokens_for(model, 150)
    true = model.logits([tokens])[0]
    decoder = Decoder(model)
    assert decoder.chunk == 64
    for start in (63, 64, 65, 149):
        decoder.read(tokens[:start])
        assert error_of(decoder.step(tokens[start]), true[start]) <= BOUNDS["cpu"]


@pytest.mark.parametrize("backend", BOUNDS)
def test_nothing_beyond_the_position_is_ever_seen(backend):
    """NaN all over the cache before reading, and over what padding left in it afterwards: the same scores."""
    model = small_model("pre-norm", backend)
    tokens = tokens_for(model, CONTEXT)
    for start in range(CONTEXT):
        clean, poisoned = Decoder(model), Decoder(model)
        poisoned.reading.memory[:] = 0xFF
        for decoder in (clean, poisoned):
            decoder.read(tokens[:start])
        for cache in caches(poisoned):
            assert np.isnan(cache[:, :, max(start, CHUNK) :]).all()
            assert np.isfinite(cache[:, :, :start]).all()
            cache[:, :, start:] = np.nan
        for token in tokens[start:]:
            assert np.array_equal(clean.step(token), poisoned.step(token))


def caches(decoder):
    placements = decoder.decoding.plan.placements.values()
    return [decoder.decoding.view(p.buffer) for p in placements if p.kind == "state"]


def test_reading_again_forgets():
    model = small_model("post-norm", "cpu")
    one, two = tokens_for(model, 9), tokens_for(model, 5, seed=1)
    decoder, fresh = Decoder(model), Decoder(model)
    decoder.read(one)
    decoder.step(3)
    for each in (decoder, fresh):
        each.read(two)
    assert np.array_equal(decoder.step(7), fresh.step(7))


def test_the_weights_are_the_model_s_own():
    """A decoder made before an update decodes with the weights after it."""
    model = small_model("untied", "cpu")
    decoder = Decoder(model)
    decoder.step(3)
    for weight in model.params.values():
        weight *= 1.5
    decoder.read([3])
    assert error_of(decoder.step(5), model.logits([[3, 5]])[0, -1]) <= BOUNDS["cpu"]


def test_a_full_context_is_refused_before_anything_is_read():
    model = small_model("pre-norm", "reference")
    decoder = Decoder(model)
    with pytest.raises(TapelessError, match="12 tokens are more than the 11 positions"):
        decoder.read(tokens_for(model, CONTEXT + 1))
    assert decoder.position == 0
    decoder.read(tokens_for(model, CONTEXT))
    with pytest.raises(TapelessError, match="all 11 positions of this model are taken"):
        decoder.step(1)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("gpt2-4x256", {"causal": False}, "this model sees the future"),
        ("ops-102k", {"causal": True}, "this model answers once per sequence"),
        ("sunfish", {"causal": True}, "this model reads features"),
    ],
)
def test_what_cannot_be_decoded_is_refused(name, fields, message):
    model = Model(name, time=1, backend="reference", optimizer=None, layers=1, vocab=40, **fields)
    with pytest.raises(TapelessError, match=message + r".*use model\.logits"):
        Decoder(model)


# The programs


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_call_of_both_programs_in_lockstep(name):
    fast, true = (small_model(name, backend) for backend in ("cpu", "reference"))
    for key, weight in true.params.items():
        weight[...] = fast.params[key]
    decoders = [Decoder(model) for model in (fast, true)]
    tokens = tokens_for(fast, 6)
    for decoder in decoders:
        decoder.read(tokens)
        decoder.step(tokens[0])  # leaves the inputs of a token at position 6 in place
    found, wanted = (decoder.decoding for decoder in decoders)
    check_lockstep(found, wanted, position=6, tokens=tokens[:1])
    found, wanted = (decoder.reading for decoder in decoders)
    check_lockstep(found, wanted, position=3, tokens=tokens[:CHUNK])


def check_lockstep(found, wanted, position, tokens):
    for arena in (found, wanted):
        for name, value in (("tokens", [tokens]), ("position", [position])):
            arena.view(name)[...] = value
    fused = {first: call for (first, _), call in found.lowered().groups.items()}  # ReLU, by the built-in GEMM
    fast, true = cast(Model, SimpleNamespace(engine=found)), cast(Model, SimpleNamespace(engine=wanted))
    for number, call in enumerate(found.plan.program.original.calls):
        if number in fused:
            before = found.held(fused[number])
            for difference in compare_fused(fused[number], fast, true, number):
                assert difference.ok, str(difference)
            found.put_back(before)
        for difference in compare(call, found.arguments(call), wanted.arguments(call), cpu, number):
            assert difference.ok, str(difference)


def test_reading_computes_no_more_than_the_cache_needs():
    """No scores, and of the last block keys and values alone."""
    calls = reading(preset("gpt2-4x256").override(layers=3), 64).calls
    assert [call.op for call in calls if call.section == "blocks.2"] == ["layernorm", "linear", "remember"]
    assert not [call for call in calls if call.section == "head"]
    assert [call.op for call in calls].count("cached_attention") == 2


@pytest.mark.parametrize("name", ["gpt2-124m", "cllm"])
def test_memory(name):
    """The cache, and beside it little: a chunk of activations or a row of scores. The model lends the weights."""
    made = preset(name)
    config = made.architecture
    read, decode = (
        make_plan(program, PRECISIONS["float32"], lent=True) for program in (reading(made, 64), decoding(made))
    )
    cache = 4 * 2 * config.layers * config.context * config.channels
    for plan in (read, decode):
        kinds = plan.bytes_by_kind()
        assert kinds["state"] == cache
        assert not {"weight", "constant", "gradient"} & kinds.keys()
    widest = 4 * 64 * (config.width + 3 * config.channels)
    assert cache < read.peak_bytes <= cache + 2 * widest
    assert cache < decode.peak_bytes <= cache + 4 * (config.vocab + 20 * config.width)
    for key, placement in decode.placements.items():
        if placement.kind == "state":
            assert (read.placements[key].offset, read.placements[key].bytes) == (placement.offset, placement.bytes)


def test_a_decoder_takes_the_larger_plan_and_no_more():
    model = Model("gpt2-4x256", time=1, backend="reference", optimizer=None, layers=1, vocab=400)
    decoder = Decoder(model)
    plans = [decoder.reading.plan, decoder.decoding.plan]
    assert decoder.plan.peak_bytes == max(plan.peak_bytes for plan in plans) == decoder.reading.memory.size
    assert np.shares_memory(decoder.reading.memory, decoder.decoding.memory)


# The ops


def run_op(name, arrays, backend, signature_order, **scalars):
    """One call by itself, outputs in place."""
    spec, p, values = OPS[name].SPEC, Builder(), {}
    for argument in signature_order:
        array = arrays[argument]
        buffer = p.buffer("input", argument, array.shape, spec.roles.get(argument))
        mode = update if argument in spec.forward.updates else write
        values[argument] = mode(buffer) if argument in spec.forward.writes else buffer
    p.call(name, "forward", values | scalars, ("here",))
    (call,) = p.build().calls
    run_call(call, arrays, backend)
    return call


@cases(25)
@given(st.integers(0, 10_000))
@pytest.mark.parametrize("backend", BOUNDS)
def test_remember_and_attend_are_attention_over_the_whole_sequence(backend, seed):
    """For any shape and position: what `attention` computes for the last T of all positions. Beyond them lies NaN."""
    rng = np.random.default_rng(seed)
    batch, heads, width, time = (int(rng.integers(1, most)) for most in (3, 5, 20, 9))
    group, window = int(rng.integers(1, 4)), int(rng.choice([0, 1, 20]))  # heads of queries that share one of keys
    position = int(rng.integers(0, 90))
    seen = position + time
    held, channels = seen + int(rng.integers(0, 6)), heads * width
    dtype = backend_named(backend).traits.precisions[0]
    past = rng.normal(size=(2, batch, seen, channels)).astype(dtype)
    asked = rng.normal(size=(batch, seen, group * channels)).astype(dtype)
    keys, values = (np.full((batch, heads, held, width), np.nan, past.dtype) for _ in range(2))
    for cache, whole in ((keys, past[0]), (values, past[1])):
        cache[:, :, :position] = whole[:, :position].reshape(batch, position, heads, width).swapaxes(1, 2)
    packed = np.concatenate([*past[:, :, position:], asked[:, position:]], axis=-1)  # columns of one buffer
    k, v, q = packed[..., :channels], packed[..., channels : 2 * channels], packed[..., 2 * channels :]
    at = np.array([position])
    run_op(
        "remember", {"keys": keys, "values": values, "k": k, "v": v, "position": at}, backend_named(backend), REMEMBER
    )
    y = np.full((batch, time, group * channels), np.nan, past.dtype)
    run_op(
        "cached_attention",
        {"y": y, "q": q, "keys": keys, "values": values, "position": at},
        backend_named(backend),
        ATTEND,
        window=window,
    )
    true, lse = np.empty(y.shape), np.empty((batch, group * heads, time))
    wide = past.astype(np.float64)
    OPS["attention"].forward(true, lse, asked[:, position:].astype(np.float64), *wide, None, True, window)
    assert error_of(y, true) <= BOUNDS[backend]
    assert np.isnan(keys[:, :, seen:]).all()
    assert np.isnan(values[:, :, seen:]).all()


REMEMBER, ATTEND = OPS["remember"].SPEC.forward.arguments, OPS["cached_attention"].SPEC.forward.arguments


@pytest.mark.parametrize("backend", [reference, cpu])
def test_remember_puts_each_head_where_it_belongs(backend):
    """By hand: two heads of two channels, one new position at place 1; the others stay."""
    keys, values = (np.zeros((1, 2, 3, 2), np.float32) for _ in range(2))
    k, v = (np.array([[values]], np.float32) for values in ([1, 2, 3, 4], [5, 6, 7, 8]))
    arrays = {"keys": keys, "values": values, "k": k, "v": v, "position": np.array([1])}
    run_op("remember", arrays, backend, REMEMBER)
    assert keys[0].tolist() == [[[0, 0], [1, 2], [0, 0]], [[0, 0], [3, 4], [0, 0]]]
    assert values[0].tolist() == [[[0, 0], [5, 6], [0, 0]], [[0, 0], [7, 8], [0, 0]]]


@pytest.mark.parametrize("backend", [reference, cpu])
@pytest.mark.parametrize("adding", [False, True])
def test_positions_start_where_they_are_told(backend, adding):
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    y = np.full((2, 3, 2), 100, np.float32)
    p = Builder()
    buffers = {"y": p.buffer("input", "y", y.shape), "table": p.buffer("input", "table", table.shape)}
    at = p.buffer("input", "position", (1,), "index")
    p.positions_at.forward(y=(add if adding else write)(buffers["y"]), table=buffers["table"], position=at)
    (call,) = p.build().calls
    run_call(call, {"y": y, "table": table, "position": np.array([2])}, backend)
    assert np.array_equal(y, np.stack([table[2:5]] * 2) + (100 if adding else 0))


@pytest.mark.parametrize(
    ("op", "shapes", "message"),
    [
        ("remember", {"cache": (1, 2, 4, 3), "new": (1, 1, 7)}, "C=7 channels are not H=2 heads of D=3"),
        ("remember", {"cache": (1, 2, 4, 3), "new": (1, 5, 6)}, "T=5 new positions do not fit into a cache of P=4"),
        (
            "cached_attention",
            {"cache": (1, 2, 4, 3), "new": (1, 1, 9)},
            "C=9 channels are no heads of D=3 that can share G=2 heads of keys",
        ),
        ("cached_attention", {"cache": (1, 2, 4, 3), "new": (1, 5, 6)}, "T=5 queries have no place in a cache of P=4"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(op, shapes, message):
    p = Builder()
    keys, values = (p.buffer("state", name, shapes["cache"]) for name in ("keys", "values"))
    new, y = (p.buffer("input", name, shapes["new"]) for name in ("new", "y"))
    at = p.buffer("input", "position", (1,), "index")
    values_of: dict[str, dict[str, Any]] = {
        "remember": {"keys": update(keys), "values": update(values), "k": new, "v": new, "position": at},
        "cached_attention": {"y": write(y), "q": new, "keys": keys, "values": values, "position": at, "window": 0},
    }
    with pytest.raises(ProgramError, match=message):
        p.op(op).forward(**values_of[op])


def test_more_positions_than_the_table_has_are_refused():
    p = Builder()
    y, table = p.buffer("input", "y", (1, 5, 2)), p.buffer("input", "table", (4, 2))
    at = p.buffer("input", "position", (1,), "index")
    with pytest.raises(ProgramError, match="T=5 positions but the table holds only P=4"):
        p.positions_at.forward(y=write(y), table=table, position=at)


def test_flops_count_a_full_cache():
    """3 queries over 7 positions: the last sees 7, the one before 6, the first 5."""
    dims = {"B": 2, "T": 3, "P": 7, "C": 6, "G": 3, "D": 2}
    for window, seen in ((0, 5 + 6 + 7), (6, 5 + 6 + 6)):
        count = OPS["cached_attention"].flops("forward", dims, frozenset({"y"}), {"window": window})
        assert count == 2 * seen * (2 * 2 * 6 + 6 * 3)
