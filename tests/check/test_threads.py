"""Kernels on threads: what is right is left in peace, what meets is found, without a race having to be won."""

import os

import numpy as np
import pytest

from tapeless.backends.backend import backend_named, bind_call
from tapeless.check import parallel_order as order
from tapeless.check.ops import call_alone, check_backend_alone, narrowed
from tapeless.check.threads import SIZES, check_on_threads, grown, on_threads
from tapeless.kernels import cpu as cpu_kernels
from tapeless.ops import OPS
from tests.bugs.races import BUGS
from tests.random_cases import some

cpu = backend_named("cpu")

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core: nothing runs on threads")


@pytest.mark.parametrize("bug", some(BUGS, 3), ids=lambda bug: bug.name)
def test_a_race_is_found_where_small_calls_are_right(bug):
    op = bug.where.removesuffix(" on cpu")
    with bug.plant():
        assert list(check_backend_alone(op, cpu)) == []
        found = next(check_on_threads(op), None)
    assert found is not None
    assert (found.place, found.checker) == (bug.where, "threads")


def test_threads_are_as_they_were():
    before = cpu_kernels.threads()
    assert list(check_on_threads("sgd")) == []
    assert cpu_kernels.threads() == before


@pytest.mark.parametrize("name", sorted(set(OPS) - {"muon"}))  # whose matrices would not grow with their memory
def test_an_example_grows_as_the_spec_says(name):
    spec = OPS[name].SPEC
    for sizes in SIZES:
        example = grown(name, sizes)
        for direction in ("forward", "backward") if spec.backward else ("forward",):
            call, arrays = call_alone(name, direction, example)
            assert spec.dims({key: array.shape for key, array in arrays.items()}).items() <= call.dims.items()
            for letter in ("R", "B", "N", "V"):
                assert call.dims.get(letter, 0) in (sizes.get(letter, call.dims.get(letter, 0)), 0)


def test_a_kernel_that_never_threads_is_named(monkeypatch):
    from tapeless.ops.gelu import cpu as gelu

    right = gelu.GELU.bind
    monkeypatch.setattr(gelu.GELU, "bind", lambda size, *arguments: right(0, *arguments))
    (found,) = check_on_threads("gelu")
    assert "gelu has a parallel loop, but stays on one thread" in found.detail


def test_an_op_that_cannot_be_bound_is_a_finding(monkeypatch):
    from tapeless.ops.gelu import cpu as gelu

    monkeypatch.delattr(gelu, "backward")
    assert any("no backward on the cpu backend" in finding.detail for finding in check_on_threads("gelu"))


def test_orders():
    found = {name: list(each(5)) for name, each in order.ORDERS.items()}
    assert (found["forwards"], found["backwards"]) == ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])
    assert (found["none"], found["even"], found["odd"]) == ([], [0, 2, 4], [1, 3])
    shuffled = list(order.ORDERS["shuffled"](50))
    assert sorted(shuffled) == list(range(50)) != shuffled


def test_some_parts_alone_write_their_own_places():
    """`even` of the blocks of an addition: those are there, the others are not."""
    call, arrays = call_alone("residual", "forward", grown("residual", SIZES[0]))
    arrays = narrowed(call, arrays, "float32")
    with on_threads(2):
        order.run_in("even", bind_call(call, arrays, cpu))
    blocks = [np.isnan(arrays["y"].reshape(-1)[at : at + 16384]) for at in range(0, arrays["y"].size, 16384)]
    assert len(blocks) > 3
    assert [block.all() for block in blocks] == [number % 2 == 1 for number in range(len(blocks))]
    assert [block.any() for block in blocks] == [number % 2 == 1 for number in range(len(blocks))]


def test_every_op_is_in_the_same_bits_on_one_thread_and_on_several():
    """The products stay on one thread: MKL's own sums depend on its threads, ours on the size alone."""
    summing = ("layernorm", "global_norm", "squared_error", "embedding", "attention", "classifier")
    for name in (*summing, "sgd", "momentum", "adamw"):
        for direction in ("forward", "backward") if OPS[name].SPEC.backward else ("forward",):
            call, true = call_alone(name, direction, grown(name, SIZES[1]))
            results = []
            for count in (1, 2):
                arrays = narrowed(call, true, "float32")
                with on_threads(count):
                    for run in bind_call(call, arrays, cpu):
                        for part in cpu_kernels.on_one_thread([run]) if isinstance(run, cpu_kernels.Gemm) else [run]:
                            part()
                results.append(b"".join(arrays[each.name].tobytes() for each in call.writes if each.name != "logits"))
            assert results[0] == results[1], call.title
