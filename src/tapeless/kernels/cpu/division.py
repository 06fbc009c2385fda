"""How the work of a kernel is divided, into blocks and among threads. None of it changes what is computed, so no
comparison of results would notice a mistake here: these have tests of their own."""

from __future__ import annotations

from numba.extending import register_jitable

from tapeless.kernels.cpu import dispatch
from tapeless.kernels.cpu.vector import HELPER
from tapeless.kernels.native import Native


@register_jitable(**HELPER)  # type: ignore[untyped-decorator]
def block_count(size: int, length: int) -> int:
    """How many blocks of a length hold so many; the last one may be shorter."""
    return (size + length - 1) // length


def worker_count(work: int, threaded_from: int, most: int) -> int:
    """How many threads share it, at most so many: as few as its size is worth, and one alone where waking another costs
    more than it saves."""
    return max(1, min(most, dispatch.threads_for(work, threaded_from)))


def part_count(rows: int, fewest: int, most: int) -> int:
    """How many sums of their own the rows are given: by their number alone, so that the order of adding does not depend
    on threads. Each has at least `fewest` rows, where there are as many."""
    return max(1, min(most, rows // fewest))


@register_jitable(**HELPER)  # type: ignore[untyped-decorator]
def tasks_of(heads: int, worker: int, workers: int, blocks: int) -> tuple[int, int, int]:
    """Of heads, each of so many blocks of unequal work: the first that is a worker's, where they end, and the step from
    one to the next. Heads that follow each other where all workers get as many, so that what a thread has written for a
    sequence it reads again; else every so manieth block."""
    if heads % workers:
        return worker, heads * blocks, workers
    own = heads // workers * blocks
    return worker * own, (worker + 1) * own, 1


def calling_gemm(run: Native, workers: int) -> list[Native]:
    """A kernel that calls the BLAS by itself, from every thread that works on it."""
    return [run] if workers > 1 else dispatch.on_one_thread([run])  # among several threads, MKL stays on each by itself
