"""How much memory a machine has for a model, and the largest batch that fits into so much."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tapeless.errors import TapelessError

BESIDE = 300 << 20  # bytes that Python, NumPy, Numba and a BLAS take beside the arena, about
LIBRARIES = 512 << 20  # on a GPU, generously: kernels, graphs, the workspaces of cuBLAS
UNITS = {"B": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("KMGT", 1)
    for end, base in (("", 1000), ("B", 1000), ("iB", 1024))
}
MOST_BATCH = 1 << 20  # beyond which nobody asks
ROOT = Path("/")  # of the files in which Linux tells


@dataclass(frozen=True)
class Memory:
    """Bytes: all there are, and those that are not in use now."""

    total: int
    free: int


def memory_of(backend: str) -> Memory | None:
    """Of this machine, or of its GPU; None where it has none, or does not tell."""
    return _of_the_gpu() if backend == "cuda" else _of_this_machine()


def free_for_arena(backend: str) -> int | None:
    """Bytes that a backend can allocate, where that is known beforehand: of a GPU what is free there and what torch
    holds without use, less what its libraries will ask for."""
    if backend != "cuda":
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    free: int = torch.cuda.mem_get_info()[0] + unused - LIBRARIES
    return max(0, free)


def parsed_memory(text: str) -> int:
    """`16GB`, `16 GiB`, `500M`: bytes."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*([A-Za-z]{1,3})\s*", text, re.ASCII)
    units = {name.lower(): factor for name, factor in UNITS.items()}
    if match is None or match[2].lower() not in units or float(match[1]) == 0:
        raise TapelessError(f"{text[:40]!r} is no amount of memory: say for example 16GB, or 16GiB.")
    return int(float(match[1]) * units[match[2].lower()])


def largest_batch(needs: Callable[[int], int], room: int, least: Callable[[int], int] | None = None) -> int:
    """The largest batch whose need, which `needs` tells, is at most `room`; 0 where not even one sequence fits. What is
    at least needed is asked first, where `least` tells it sooner: mostly the largest batch by that is the answer.

    Needs grow nearly in a straight line, so the line through what is known on both sides guesses well, and as long as
    nothing is known above, the one through the last two below. Every third time the middle is tried, so that it ends.
    """
    most = MOST_BATCH if least is None else largest_batch(least, room)
    if least is not None and (most == 0 or needs(most) <= room):
        return most
    fits: tuple[int, int] = (1, needs(1))  # the largest known to fit: batch, bytes
    if fits[1] > room:
        return 0
    above, highest = most + (least is None), None  # the smallest known not to fit, and its bytes
    slope, rounds = needs(2) - fits[1], 0
    while above - fits[0] > 1:
        rounds += 1
        if highest is not None:
            slope = (highest - fits[1]) // (above - fits[0])
        guess = fits[0] + ((room - fits[1]) // slope if slope > 0 else above)
        if rounds % 3 == 0:
            guess = (fits[0] + above) // 2
        guess = min(max(guess, fits[0] + 1), above - 1)
        for batch in (guess, guess + 1):  # on both sides of the line: mostly that is the end of it
            if fits[0] < batch < above:
                found = needs(batch)
                if found <= room:
                    slope = max((found - fits[1]) // (batch - fits[0]), 1)
                    fits = (batch, found)
                else:
                    above, highest = batch, found
    return fits[0]


def _of_this_machine() -> Memory | None:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # a system that does not know these names
        return None
    free = _number(ROOT / "proc/meminfo", r"MemAvailable:\s+(\d+) kB")
    limit, used = _container()
    total = min(total, limit) if limit else total
    free = total if free is None else free * 1024
    return Memory(total, min(free, max(total - used, 0)))


def _container() -> tuple[int | None, int]:
    """What a container may have, and has in use; its files that can be dropped do not count."""
    for folder, most, used, dropped in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _number(ROOT / folder / most, r"(\d+)")
        if limit is not None:
            held = _number(ROOT / folder / used, r"(\d+)") or 0
            return limit, max(held - (_number(ROOT / folder / "memory.stat", rf"{dropped} (\d+)") or 0), 0)
    return None, 0


def _number(path: Path, pattern: str) -> int | None:
    try:
        found = re.search(rf"^{pattern}$", path.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def _of_the_gpu() -> Memory | None:
    try:
        import torch
    except ModuleNotFoundError:
        return None
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return Memory(total, free)
