"""The memory: where every buffer lies, that nothing tramples on anything, and that the plan is what is used."""

from __future__ import annotations

import tracemalloc
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapeless.backends.backend import backend_named
from tapeless.backends.engine import Arena, Engine
from tapeless.check.configurations import small
from tapeless.lowering import lower
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.config import CHOICES, Architecture, Optimizer, Preset
from tapeless.models.presets import PRESETS
from tapeless.ops.contract import Array
from tapeless.ops.positions.reference import sinusoid
from tapeless.program.arena import ALIGNMENT, Placement, Plan, make_plan, make_plans
from tapeless.program.builder import Builder
from tapeless.program.call import PERSISTENT, Program, gradient_name, write
from tapeless.program.precision import PRECISIONS
from tests.random_cases import cases

reference = backend_named("reference")

BATCH, TIME = 2, 4
DTYPES = ("float32", "float64", "complex128")

# Every preset in small form, and both norms with their inside kept and recomputed.
SMALL_MODELS = {name: PRESETS[name].override(**small(name)) for name in PRESETS} | {
    f"{placement}-norm, {'recomputed' if recompute else 'kept'}": PRESETS["gpt2-4x256"].override(
        **small("gpt2-4x256", placement=placement, recompute=recompute)
    )
    for placement in ("pre", "post")
    for recompute in (False, True)
}


def training(config: Preset, optimizer: str | None = None) -> Program:
    return transformer.training(config, BATCH, TIME, Optimizer(optimizer or config.optimizer))


def batch_of(config: Architecture, batch: int = BATCH, time: int = TIME) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    inputs = rng.integers(0, config.vocab, (batch, time))
    targets = rng.integers(0, config.vocab, (batch,) if config.readout == "last" else (batch, time))
    if targets.size > 1:
        targets.reshape(-1)[1] = -1
    return rng.normal(size=(batch, time, config.features)) if config.features else inputs, targets


def fill_weights(arena: Arena) -> None:
    """The same random weights, whatever the layout: in the order of the program, not of the memory."""
    rng = np.random.default_rng(3)
    for weight in arena.plan.program.weights:
        arena.view(weight)[...] = rng.normal(1 if len(weight.shape) == 1 else 0, 0.5, weight.shape)


class Driver:
    """A program run by hand in an arena of its own, call by call."""

    def __init__(self, preset: Preset, program: Program, plan: Plan, *, poisoned: bool = False) -> None:
        config = preset.architecture
        self.config, self.program, self.plan, self.poisoned = config, program, plan, poisoned
        self.engine = Engine(plan, reference)
        fill_weights(self.engine)
        if config.positions == "sinusoidal":
            self.array("positions.table")[...] = sinusoid(config.context, config.channels)
        inputs, targets = batch_of(config)
        self.array("features" if config.features else "tokens")[...] = inputs
        if "targets" in self.plan.placements:  # a readout has none
            self.array("targets")[...] = targets
            self.array("count")[0] = np.count_nonzero(targets >= 0)
        for name, value in (("lr", 0.05), ("limit", 0.5), ("largest", np.inf)):
            if name in self.plan.placements:
                self.array(name)[0] = value

    def array(self, name: str) -> Array:
        view: Array = self.engine.view(name)
        return view

    def run(self) -> dict[str, bytes]:
        """One run through the list; what it leaves in everything that persists, bit for bit."""
        if self.poisoned:
            self.engine.poison()
        assert list(self.engine.walk()) == list(self.program.calls)
        persistent = [b for b in self.program.buffers if b.kind in ("weight", "gradient", "state", "output")]
        return {b.name: self.engine.view(b).tobytes() for b in persistent if not b.members}

    def training(self) -> list[dict[str, bytes]]:
        return [self.run() for _ in range(3)]


def leaves(plan: Plan) -> list[Placement]:
    return [placement for placement in plan.placements.values() if not placement.buffer.members]


def live_at(placement: Placement, call: int) -> bool:
    return any(first <= call <= last for first, last in placement.ranges)


def share_bytes(one: Placement, two: Placement) -> bool:
    return one.offset < two.offset + two.bytes and two.offset < one.offset + one.bytes


def assert_sound(plan: Plan) -> None:
    """Brute force, from the meaning of the words alone: at no call do two live buffers have a byte in common."""
    for placement in plan.placements.values():
        assert placement.offset >= 0
        assert placement.offset + placement.bytes <= plan.peak_bytes
        assert placement.bytes == placement.buffer.elements * np.dtype(placement.dtype).itemsize
    placed, calls = leaves(plan), range(len(plan.program.calls))
    live = {each.buffer.name: {call for call in calls if live_at(each, call)} for each in placed}
    for one, two in combinations(placed, 2):
        if share_bytes(one, two):
            both = live[one.buffer.name] & live[two.buffer.name]
            assert not both, f"{one.buffer.name}, {two.buffer.name}, {both}"
    assert_ranges_cover_all_uses(plan)


def assert_ranges_cover_all_uses(plan: Plan) -> None:
    """Ranges that are too short would hide an overlap. A value must be live from its writer to every reader."""
    written: dict[str, int] = {}  # the call since which a buffer holds what it holds
    for index, call in enumerate(plan.program.calls):
        for argument in call.arguments:
            name = argument.view.buffer.name
            for part in argument.view.buffer.parts:
                assert live_at(plan.placements[part.name], index), f"{part.name} is dead at its own use, {index}"
            if argument.mode != "write" and argument.view.buffer.kind == "workspace":
                between = range(written[name], index + 1)
                assert all(live_at(plan.placements[name], i) for i in between), f"{name} dies before call {index}"
        for argument in call.writes:
            name = argument.view.buffer.name
            if argument.mode == "write" and (argument.view.whole or name not in written):
                written[name] = index


# Alignment and order


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_every_buffer_is_aligned(name: str, dtype: str) -> None:
    arena = Arena(make_plan(training(SMALL_MODELS[name]), PRECISIONS[dtype]), reference)
    assert ALIGNMENT == 64
    assert arena.memory.ctypes.data % 64 == 0
    assert len(arena.memory) % 64 == 0
    for placement in arena.plan.placements.values():
        array = arena.view(placement.buffer)
        assert array.ctypes.data % 64 == 0, placement.buffer.name
        assert array.ctypes.data == arena.memory.ctypes.data + placement.offset
        assert array.nbytes == placement.bytes
        assert array.shape == placement.buffer.shape
        assert array.flags.c_contiguous


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_weights_gradients_and_state_lie_in_the_same_order(name: str, dtype: str) -> None:
    """An element's place in its region is the same in all four: one index serves the whole update."""
    program = training(SMALL_MODELS[name], "adamw")
    plan = make_plan(program, PRECISIONS[dtype])
    place, itemsize = plan.placements, np.dtype(dtype).itemsize
    regions = [place[region] for region in ("weights", "gradients", "m", "v")]
    assert len({(region.bytes, region.dtype) for region in regions}) == 1
    for one, two in combinations(regions, 2):
        assert not share_bytes(one, two)
    end = 0
    for weight in program.weights:
        gradient = place[gradient_name(weight.name)]
        start = place[weight.name].offset - place["weights"].offset
        assert start == gradient.offset - place["gradients"].offset
        assert start % (16 * itemsize) == 0
        # Contiguous: the next begins where the last ends, but for what alignment leaves.
        assert start == -(-end // (16 * itemsize)) * 16 * itemsize
        assert gradient.bytes == place[weight.name].bytes == weight.elements * itemsize
        end = start + gradient.bytes
    assert 0 <= regions[0].bytes - end < 16 * itemsize
    names = [gradient_name(weight.name) for weight in program.weights]
    assert [m.name for m in place["gradients"].buffer.members] == names
    assert [m.name for m in place["weights"].buffer.members] == [weight.name for weight in program.weights]


def test_a_layer_is_one_stretch() -> None:
    """Its gradients are one message: nothing of another layer lies between them."""
    program = training(SMALL_MODELS["gpt2-124m"])
    owners = [weight.name.split(".")[:2] for weight in program.weights]
    assert owners.count(["blocks", "0"]) > 1
    firsts = [owner for index, owner in enumerate(owners) if index == 0 or owner != owners[index - 1]]
    assert len(firsts) == len({tuple(owner) for owner in firsts})


def test_a_region_is_its_members() -> None:
    """Zeroing is one fill: writing through the region is writing to the members, and nothing else."""
    arena = Arena(make_plan(training(SMALL_MODELS["ops-102k"]), PRECISIONS["float64"]), reference)
    place = arena.plan.placements
    arena.view(place["gradients"].buffer)[...] = 3.0
    for weight in arena.plan.program.weights:
        assert (arena.view(place[gradient_name(weight.name)].buffer) == 3.0).all()
        assert (arena.view(weight) == 0.0).all()


def test_columns_are_views() -> None:
    arena = Arena(make_plan(training(SMALL_MODELS["gpt2-124m"]), PRECISIONS["float64"]), reference)
    qkv = arena.plan.placements["blocks.0.attn.qkv"].buffer
    arena.view(qkv)[...] = 0
    arena.view(qkv.columns(6, 12))[...] = 5
    assert (arena.view(qkv)[..., 6:12] == 5).all()
    assert (arena.view(qkv).sum(axis=-1) == 30).all()


# The plan is what is used


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_plan_is_the_block(name: str) -> None:
    model = Model(SMALL_MODELS[name], batch=BATCH, time=TIME, backend="reference")
    assert model.plan.peak_bytes == len(model.engine.memory) == model.engine.memory.nbytes
    assert model.plan.peak_bytes == max(
        -(-(p.offset + p.bytes) // ALIGNMENT) * ALIGNMENT for p in model.plan.placements.values()
    )
    assert set(model.plan.placements) == {buffer.name for buffer in model.program.buffers}


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt2-1558m"])
def test_planning_allocates_nothing(name: str) -> None:
    config = PRESETS[name]
    program = None
    if name == "gpt2-1558m":  # tracing every Python object is slow: building is traced for the other one
        program = transformer.training(config, 8, 1024, Optimizer("adamw"))
    tracemalloc.start()
    try:
        plan = make_plan(program or transformer.training(config, 8, 1024, Optimizer("adamw")), PRECISIONS["float32"])
        _, used = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert plan.parameters == {"gpt2-124m": 124_439_808, "gpt2-1558m": 1_557_611_200}[name]
    assert plan.peak_bytes > 16 * plan.parameters
    # A few thousand buffers and calls as Python objects; the token table of the smaller model alone has 147 MiB.
    assert used < 64 * 2**20


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_live_bytes(name: str) -> None:
    plan = make_plan(training(SMALL_MODELS[name]), PRECISIONS["float32"])
    count = len(plan.program.calls)
    by_hand = [sum(p.bytes for p in leaves(plan) if live_at(p, call)) for call in range(count)]
    assert plan.live_bytes == by_hand
    assert max(plan.live_bytes) <= plan.peak_bytes
    assert plan.live_bytes[plan.peak_call] == max(by_hand)
    assert plan.peak_call == by_hand.index(max(by_hand))
    assert len(set(by_hand)) > 1


def test_bytes_by_kind() -> None:
    plan = make_plan(training(SMALL_MODELS["gpt2-124m"], "adamw"), PRECISIONS["float32"])
    kinds = plan.bytes_by_kind()
    assert kinds["weight"] == kinds["gradient"] == 4 * plan.parameters
    assert kinds["state"] == 2 * plan.placements["weights"].bytes + plan.placements["step"].bytes
    assert kinds["workspace"] == plan.peak_bytes - plan.workspace_offset
    assert sum(kinds.values()) <= plan.peak_bytes
    assert set(kinds) == {*PERSISTENT, "workspace"} - {"frozen", "master"}


def test_saved_and_scratch() -> None:
    """Saved is what the forward leaves for the backward. Recomputing turns what is inside a block to scratch."""
    inside = ("blocks.0.attn.qkv", "blocks.0.mlp.up", "blocks.0.attn.lse")
    kept = make_plan(training(SMALL_MODELS["pre-norm, kept"]), PRECISIONS["float32"]).placements
    again = make_plan(training(SMALL_MODELS["pre-norm, recomputed"]), PRECISIONS["float32"]).placements
    assert {kept[name].kind for name in inside} == {"saved"}
    assert {again[name].kind for name in inside} == {"scratch"}
    assert {kept[name].kind for name in ("dstream", "logits", "blocks.0.mlp.act", "blocks.0.norm1")} == {"scratch"}
    assert again["x"].kind == "saved"


# Lifetimes


def test_a_buffer_written_in_parts_lives_from_the_first() -> None:
    """Only writing all of it begins a new life; in between, what was there may be given away."""
    p = Builder()
    x = p.buffer("input", "x", (3, 2))
    wide, between, whole = p.workspace("wide", 3, 4), p.workspace("between", 3, 4), p.workspace("whole", 3, 4)
    for _ in range(2):
        p.relu.forward(y=write(wide.columns(0, 2)), x=x)
        p.relu.forward(y=write(between.columns(0, 2)), x=x)
        p.relu.forward(y=write(wide.columns(2, 4)), x=x)
        p.relu.forward(y=write(whole), x=wide)
    p.relu.forward(y=write(wide), x=whole)
    p.relu.forward(y=write(whole), x=wide)
    plan = make_plan(p.build(), PRECISIONS["float64"])
    assert plan.placements["wide"].ranges == ((0, 7), (8, 9))
    assert plan.placements["whole"].ranges == ((3, 3), (7, 8), (9, 9))
    assert_sound(plan)


def test_columns_written_by_one_call_can_make_a_whole() -> None:
    """dq, dk and dv fill dqkv together, so nothing is kept of it from the block before."""
    program = training(SMALL_MODELS["gpt2-124m"])
    plan = make_plan(program, PRECISIONS["float64"])
    backward = [index for index, call in enumerate(program.calls) if call.title == "attention.backward"]
    assert [plan.placements[f"blocks.{n}.attn.dqkv"].first_call for n in (1, 0)] == backward


# Sharing


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_nothing_overlaps_while_it_lives(name: str) -> None:
    assert_sound(make_plan(training(SMALL_MODELS[name]), PRECISIONS["float32"]))
    assert_sound(make_plan(training(SMALL_MODELS[name]), PRECISIONS["float64"], share=False))


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_sharing_saves_memory(name: str) -> None:
    program = training(SMALL_MODELS[name])
    shared, unshared = make_plan(program, PRECISIONS["float64"]), make_plan(program, PRECISIONS["float64"], share=False)
    assert not any(share_bytes(one, two) for one, two in combinations(leaves(unshared), 2))
    assert any(share_bytes(one, two) for one, two in combinations(leaves(shared), 2))
    assert shared.workspace_offset == unshared.workspace_offset
    workspace = [plan.peak_bytes - plan.workspace_offset for plan in (shared, unshared)]
    assert workspace[0] < 0.75 * workspace[1]


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_few_are_placed_as_many_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = training(SMALL_MODELS[name].override(layers=4))
    few = make_plan(program, PRECISIONS["float32"])
    monkeypatch.setattr("tapeless.program.arena.FEW", 0)
    assert make_plan(program, PRECISIONS["float32"]).placements == few.placements


@pytest.mark.parametrize("recompute", [False, True])
def test_hardly_more_is_taken_than_is_ever_in_use(recompute: bool) -> None:
    """Gradients that lie where activations were leave holes of odd sizes: one order alone wastes 2 % of this."""
    config = PRESETS["smollm2-135m"].override(lean=True, recompute=recompute)
    plan = make_plan(lower(transformer.training(config, 1, 1024, Optimizer("adamw"))), PRECISIONS["float32"])
    assert_sound(plan)
    taken, used = (size - plan.workspace_offset for size in (plan.peak_bytes, max(plan.live_bytes)))
    assert used <= taken <= 1.003 * used


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_shared_layout_gives_the_same_bits(name: str) -> None:
    """Loss, gradients, norm, m, v and weights of three steps, against a layout in which nothing is shared."""
    config = SMALL_MODELS[name]
    program = training(config)
    runs = [
        Driver(config, program, make_plan(program, PRECISIONS["float64"], share=s)).training() for s in (True, False)
    ]
    assert runs[0] == runs[1]
    assert runs[0][0]["loss"] != runs[0][1]["loss"] != runs[0][2]["loss"]  # it did step
    assert all(np.isfinite(np.frombuffer(values)).all() for values in runs[0][2].values())


@pytest.mark.parametrize("name", SMALL_MODELS)
@pytest.mark.parametrize("write_program", [transformer.evaluation, transformer.readout])
def test_evaluation_and_readout_in_shared_and_poisoned_memory(name: str, write_program: Any) -> None:
    config = SMALL_MODELS[name]
    program = write_program(config, BATCH, TIME)
    clean = Driver(config, program, make_plan(program, PRECISIONS["float64"], share=False))
    dirty = Driver(config, program, make_plan(program, PRECISIONS["float64"]), poisoned=True)
    answer = "evaluated" if write_program is transformer.evaluation else "scores"
    clean.run(), dirty.run()
    assert clean.array(answer).tobytes() == dirty.array(answer).tobytes()
    assert np.isfinite(dirty.array(answer)).all()


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_evaluation_fits_beside_the_training(name: str) -> None:
    config = SMALL_MODELS[name]
    plan = make_plan(training(config), PRECISIONS["float64"])
    evaluation = make_plan(transformer.evaluation(config, BATCH, TIME), PRECISIONS["float64"], beside=plan)
    assert_sound(evaluation)
    assert evaluation.peak_bytes == plan.peak_bytes
    for placement in leaves(evaluation):
        if placement.buffer.kind in PERSISTENT:
            assert placement.offset == plan.placements[placement.buffer.name].offset
        else:
            assert placement.offset >= plan.workspace_offset


@pytest.mark.parametrize("name", PRESETS)
def test_full_size_evaluations_fit(name: str) -> None:
    config = PRESETS[name]
    plan = make_plan(transformer.training(config, 2, config.architecture.context, None), PRECISIONS["float32"])
    evaluation = make_plan(
        transformer.evaluation(config, 2, config.architecture.context), PRECISIONS["float32"], beside=plan
    )
    assert max(p.offset + p.bytes for p in leaves(evaluation)) <= plan.peak_bytes


def test_an_arena_is_as_large_as_the_larger_of_two_programs() -> None:
    config = SMALL_MODELS["gpt2-124m"].override(vocab=500, chunk=1)
    plan = make_plan(transformer.training(config, BATCH, TIME, None), PRECISIONS["float64"])
    wide = transformer.evaluation(config.override(chunk=8), BATCH, TIME)
    first, beside = make_plans(plan.program, wide, PRECISIONS["float64"], reference.scratch)
    assert first.peak_bytes == beside.peak_bytes > plan.peak_bytes


# Poison


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_nan_in_every_type(dtype: str) -> None:
    """A pattern that is NaN in one type can be a large number in another."""
    config = SMALL_MODELS["cllm"]
    arena = Arena(make_plan(training(config), PRECISIONS[dtype]), reference)
    fill_weights(arena)
    before = arena.view("weights").tobytes()
    arena.poison()
    for placement in leaves(arena.plan):
        array = arena.view(placement.buffer)
        if placement.kind in ("saved", "scratch", "gradient", "output"):
            poisoned = array == -1 if placement.buffer.role == "index" else np.isnan(array.real)
            assert poisoned.all(), placement.buffer.name
    assert arena.view("weights").tobytes() == before


def act(model: Model, *, poisoned: bool) -> dict[str, Any]:
    """Two gradients, an update, a loss; poisoned, whatever a program must write first is NaN before each."""
    inputs, targets = batch_of(model.config, model.batch, model.time)
    fill_weights(model.engine)
    results: dict[str, Any] = {}

    def keep(moment: str, value: complex) -> None:
        results[moment] = value
        for kind, arrays in (("weight", model.params), ("gradient", model.grads)):
            if moment != "loss" or kind == "weight":
                results.update({f"{moment} {kind} {name}": array.copy() for name, array in arrays.items()})

    for moment in ("first", "second"):
        if poisoned:
            model.engine.poison()
        keep(moment, model.forward_backward(inputs, targets))
    keep("update", model.update(lr=0.05, clip=0.5))
    if poisoned:
        model.engine.poison()
    keep("loss", model.loss(inputs, targets))
    return results


def assert_poison_does_not_matter(config: Preset, batch: int, time: int, dtype: str) -> None:
    clean, dirty = (
        act(Model(config, batch=batch, time=time, precision=dtype, backend="reference"), poisoned=poisoned)
        for poisoned in (False, True)
    )
    assert clean.keys() == dirty.keys()
    for moment, value in clean.items():
        assert np.isfinite(value).all(), moment
        assert np.array_equal(value, dirty[moment]), moment
    assert clean["first"] == clean["second"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_poisoned_memory_gives_the_same_bits(name: str, dtype: str) -> None:
    assert_poison_does_not_matter(SMALL_MODELS[name], BATCH, TIME, dtype)


# Recomputation


@pytest.mark.parametrize("placement", CHOICES["placement"])
@pytest.mark.parametrize("layers", [2, 4])
def test_recomputation_gives_the_same_bits_in_less_memory(placement: str, layers: int) -> None:
    config = PRESETS["gpt2-4x256"].override(**small("gpt2-4x256", placement=placement, layers=layers))
    again = config.override(recompute=True)
    results, workspaces, peaks = [], [], []
    for each in (config, again):
        program = training(each, "momentum")
        plan = make_plan(program, PRECISIONS["float64"])
        results.append(Driver(each, program, plan).training())
        workspaces.append(plan.peak_bytes - plan.workspace_offset)
        peaks.append(plan.peak_bytes)
    assert results[0] == results[1]
    assert peaks[1] < peaks[0]
    if layers == 4:  # what each further layer keeps is its ends, not its inside
        assert workspaces[1] < 0.75 * workspaces[0]


@pytest.mark.parametrize("placement", CHOICES["placement"])
def test_recomputation_saves_where_it_counts(placement: str) -> None:
    config = PRESETS["gpt2-124m"].override(placement=placement)
    kept, again = (
        make_plan(transformer.training(c, 1, 1024, None), PRECISIONS["float32"])
        for c in (config, config.override(recompute=True))
    )
    assert again.peak_bytes < kept.peak_bytes
    saved = [sum(p.bytes for p in leaves(plan) if p.kind == "saved") for plan in (kept, again)]
    assert saved[1] < saved[0] / 4
    assert again.flops > kept.flops


# Any model


@st.composite
def models(draw: st.DrawFn) -> tuple[Preset, int, int]:
    heads = draw(st.integers(1, 3))
    positions = draw(st.sampled_from(CHOICES["positions"]))
    causal = draw(st.booleans())
    features = draw(st.sampled_from([0, 0, 3]))
    loss = "cross_entropy" if features else draw(st.sampled_from(CHOICES["loss"]))
    time = draw(st.integers(1, 4))
    config = Preset.of(
        "any",
        layers=draw(st.integers(1, 3)),
        channels=heads * (2 if positions == "rotary" else 1) * draw(st.integers(1, 4)),
        heads=heads,
        vocab=draw(st.integers(2, 20)),
        context=time + draw(st.integers(0, 2)),
        hidden=draw(st.sampled_from([None, 1, 7])),
        placement=draw(st.sampled_from(CHOICES["placement"])),
        activation=draw(st.sampled_from(CHOICES["activation"])),
        positions=positions,
        causal=causal,
        kv_heads=draw(st.sampled_from([None, 1])),
        head_width=draw(st.sampled_from([None, 4])),
        norm_kind=draw(st.sampled_from(CHOICES["norm_kind"])),
        query_key_norm=draw(st.booleans()),
        window=draw(st.sampled_from([0, 2])) if causal else 0,
        mlp_bias=draw(st.booleans()),
        projection_bias=draw(st.booleans()),
        tied=False if features else loss == "squared_error" or draw(st.booleans()),
        recompute=draw(st.booleans()),
        keep_norms=draw(st.booleans()),
        lean=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        features=features,
        readout=draw(st.sampled_from(CHOICES["readout"])),
        loss=loss,
        optimizer=draw(st.sampled_from(CHOICES["optimizer"])),
        chunk=draw(st.integers(1, 5)),
    )
    config.validate()
    return config, draw(st.integers(1, 3)), time


@cases(60)
@given(models(), st.sampled_from(["float32", "float64"]))
def test_any_model_is_sound_in_memory(drawn: tuple[Preset, int, int], dtype: str) -> None:
    config, batch, time = drawn
    program = transformer.training(config, batch, time, Optimizer(config.optimizer))
    plan = make_plan(lower(program), PRECISIONS[dtype])
    assert_sound(plan)
    assert_sound(make_plan(transformer.evaluation(config, batch, time), PRECISIONS[dtype], beside=plan))
    assert_poison_does_not_matter(config, batch, time, dtype)
