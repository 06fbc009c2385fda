"""How the work of a kernel is divided, into blocks and among threads. None of it changes what is computed, so no
comparison of results would notice a mistake here: these have tests of their own."""

from __future__ import annotations

from numba.extending import register_jitable

from tapeless.kernels.cpu import dispatch
from tapeless.kernels.cpu.vector import HELPER
from tapeless.kernels.native import Native


@register_jitable(**HELPER)
def block_count(size: int, length: int) -> int:
    """How many blocks of a length hold so many; the last one may be shorter."""
    return (size + length - 1) // length


def worker_count(work: int, threaded_from: int, most: int) -> int:
    """How many threads share the work, at most so many: one alone where waking another costs more than it saves."""
    return max(1, min(most, dispatch.threads_for(work, threaded_from)))


def part_count(rows: int, fewest: int, most: int) -> int:
    """How many partial sums the rows are cut into: by their number alone, so that the order of adding does not depend
    on threads. Each has at least `fewest` rows, where there are as many."""
    return max(1, min(most, rows // fewest))


@register_jitable(**HELPER)
def tasks_of(heads: int, worker: int, workers: int, blocks: int) -> tuple[int, int, int]:
    """The blocks of a worker, as (first, end, step), of heads that have so many blocks of unequal work each.

    If all workers get as many heads, a worker's follow each other, so that a thread reads again what it has written for
    a sequence; else it has each block whose number leaves its remainder."""
    if heads % workers:
        return worker, heads * blocks, workers
    own = heads // workers * blocks
    return worker * own, (worker + 1) * own, 1


def calling_gemm(run: Native, workers: int) -> list[Native]:
    """The native calls of a kernel that calls a GEMM by itself, from every thread that works on it."""
    return [run] if workers > 1 else dispatch.on_one_thread([run])  # among several threads, MKL stays on each by itself
