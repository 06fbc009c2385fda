"""How the work of a kernel is divided, into blocks and among threads. None of it changes what is computed, so no
comparison of results would notice a mistake here: these have tests of their own."""

from __future__ import annotations

from numba.extending import register_jitable

from tapeless.kernels.cpu import dispatch
from tapeless.kernels.cpu.helpers import HELPER
from tapeless.kernels.cpu.sizes import block_count
from tapeless.kernels.native import Native

register_jitable(**HELPER)(block_count)


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
