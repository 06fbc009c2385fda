"""How work is divided. Results are the same however it is, so this is looked at by itself."""

from itertools import product
from typing import Any

import numba
import numpy as np
import pytest

from tapeless.backends.backend import backend_named
from tapeless.kernels.cpu import dispatch, division, sizes
from tapeless.kernels.cpu.compile import THREADED
from tapeless.kernels.cpu.sizes import block_count
from tapeless.kernels.pieces import inside
from tapeless.ops import OPS
from tapeless.ops.attention import scratch as attention
from tapeless.ops.cached_attention import scratch as cached_attention
from tapeless.ops.classifier import scratch as classifier
from tapeless.ops.embedding import cpu as embedding
from tapeless.ops.layernorm import scratch as layernorm
from tapeless.ops.linear import scratch as linear
from tapeless.ops.update_cpu import cut
from tapeless.ops.update_scratch import BLOCK
from tapeless.program.builder import Builder
from tapeless.program.call import write
from tapeless.program.precision import PRECISIONS

SIZES = [(0, 4, 0), (1, 4, 1), (3, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (9, 4, 3)]


@pytest.mark.parametrize(("size", "length", "count"), SIZES)
def test_blocks(size: int, length: int, count: int) -> None:
    assert sizes.block_count(size, length) == count


def test_blocks_in_a_kernel() -> None:
    compilations = numba.njit(lambda size, length: block_count(size, length))
    assert [compilations(size, length) for size, length, _ in SIZES] == [count for _, _, count in SIZES]


@pytest.mark.parametrize(
    ("work", "most", "count"),
    [(99, 9, 1), (100, 9, 2), (199, 9, 2), (200, 9, 4), (900, 9, 4), (200, 3, 3), (100, 1, 1), (100, 0, 1)],
)
def test_workers(work: int, most: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "threads", lambda: 4)
    assert sizes.worker_count(work, 100, most) == count


@pytest.mark.parametrize(
    ("rows", "count"), [(0, 1), (1, 1), (31, 1), (32, 1), (63, 1), (64, 2), (95, 2), (96, 3), (160, 5), (999, 5)]
)
def test_parts(rows: int, count: int) -> None:
    assert sizes.part_count(rows, 32, 5) == count


def test_who_calls_the_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "on_one_thread", lambda runs: ["one", *runs])
    said: Any = [division.calling_gemm(print, workers) for workers in (1, 2, 3)]
    assert said == [["one", print], [print], [print]]


COUNTS = ("worker_count", "part_count")


class AskedError(Exception):
    """What a kernel asked the division for, before it did anything else."""


def test_heads_are_shared_among_workers() -> None:
    """Each task is somebody's. Where it comes out even, everyone has whole heads that follow each other."""
    for heads, workers, blocks in product((1, 4, 6, 9), (1, 2, 3), (1, 5)):
        shares = [range(*division.tasks_of(heads, worker, workers, blocks)) for worker in range(workers)]
        assert sorted(task for own in shares for task in own) == list(range(heads * blocks))
        if heads % workers == 0:
            assert all(own.step == 1 and own.start % blocks == own.stop % blocks == 0 for own in shares)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*arguments: int) -> int:
        raise AskedError(arguments)

    for op, name in product((attention, cached_attention, classifier, embedding, layernorm, linear), COUNTS):
        monkeypatch.setattr(op, name, ask, raising=False)


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


TOKENS = np.zeros(5, int)
SCRATCH: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    "attention": (
        "attention",
        "forward",
        {"y": (2, 100, 12), "lse": (2, 3, 100), "q": (2, 100, 12), "k": (2, 120, 12), "v": (2, 120, 12)},
        (2 * 100 * 120 * 12, attention.THREADED_WORK, 2 * 3 * 2),  # two strips of queries
    ),
    "attention backward": (
        "attention",
        "backward",
        dict.fromkeys(("dq", "dy", "q", "y"), (2, 70, 12))
        | dict.fromkeys(("dk", "dv", "k", "v"), (2, 90, 12))
        | {"lse": (2, 3, 70)},
        (2 * 2 * 70 * 90 * 12, attention.THREADED_WORK, 2 * 3),
    ),
    "cached attention": (
        "cached_attention",
        "forward",
        {"y": (2, 5, 12), "q": (2, 5, 12), "keys": (2, 3, 50, 4), "values": (2, 3, 50, 4), "position": (1,)},
        (5 * 2 * 3 * 50 * 4, attention.THREADED_WORK, 2 * 3),
    ),
    "classifier": (
        "classifier",
        "forward",
        {"loss": (1,), "logits": (5, 1100), "x": (5, 6), "weight": (1100, 6), "targets": (5,), "count": (1,)},
        (1100, 256, classifier.BANDS),
    ),
    "layernorm backward": (
        "layernorm",
        "backward",
        dict.fromkeys(("dx", "dy", "x"), (50, 6))
        | dict.fromkeys(("dweight", "dbias", "weight"), (6,))
        | dict.fromkeys(("mean", "rstd"), (50,)),
        (50, 16, layernorm.BLOCKS),
    ),
    "linear, one row": ("linear", "forward", {"y": (1, 8), "x": (1, 6), "weight": (6, 8)}, (6, 32, linear.BLOCKS)),
}
BOUND: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "embedding backward": ((floats(9, 47), floats(5, 47), TOKENS), (9 * 47, THREADED, 2)),
    "embedding backward, adding": (
        (floats(9, 33), floats(5, 33), TOKENS, frozenset({"dweight"})),
        (5 * 33, THREADED, 2),
    ),
}


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", SCRATCH)
def test_what_a_kernel_s_scratch_asks_for(name: str) -> None:
    op, direction, shapes, wanted = SCRATCH[name]
    p, signature = Builder(), OPS[op].SPEC.signature(direction)
    values: dict[str, Any] = {}
    for argument, shape in shapes.items():
        buffer = p.buffer("input", argument, shape, OPS[op].SPEC.roles.get(argument))
        values[argument] = write(buffer) if argument in signature.writes else buffer
    p.call(op, direction, values | dict.fromkeys(signature.scalars, True), ("here",))
    (call,) = p.build().calls
    with pytest.raises(AskedError) as found:
        backend_named("cpu").scratch(call, PRECISIONS["float32"])
    assert found.value.args[0] == wanted


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", BOUND)
def test_what_a_kernel_asks_for(name: str) -> None:
    arguments, wanted = BOUND[name]
    with pytest.raises(AskedError) as found:
        embedding.backward(*arguments)
    assert found.value.args[0] == wanted


def test_pieces_of_a_pass() -> None:
    """None longer than a block, cut where a section begins and where the decay changes."""
    decayed = ((5, 7), (BLOCK, BLOCK + 3))
    pieces, firsts = cut(2 * BLOCK + 1, (0, 7, BLOCK + 1), *(edge for span in decayed for edge in span))
    assert pieces.tolist() == [
        [0, 5],
        [5, 7],
        [7, BLOCK],
        [BLOCK, BLOCK + 1],
        [BLOCK + 1, BLOCK + 3],
        [BLOCK + 3, 2 * BLOCK],
        [2 * BLOCK, 2 * BLOCK + 1],
    ]
    assert firsts.tolist() == [0, 2, 4, 7]
    assert inside(pieces, decayed).tolist() == [False, True, False, True, True, False, False]
    assert inside(pieces, ()).tolist() == [False] * 7
    pieces, firsts = cut(3, (0,))
    assert (pieces.tolist(), firsts.tolist()) == ([[0, 3]], [0, 1])


@pytest.mark.parametrize(("keys", "length"), [(1, 32), (16, 32), (17, 48), (64, 80), (1024, 1040)])
def test_rows_of_attention_do_not_fall_onto_one_another(keys: int, length: int) -> None:
    assert attention.row_length(keys) == length
