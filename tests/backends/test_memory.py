"""How much memory there is, and the largest batch that fits into it."""

import random

import pytest

from tapeless.backends import memory
from tapeless.backends.memory import Memory, largest_batch, memory_of, parsed_memory
from tapeless.errors import TapelessError


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GB", 16 * 10**9), ("16GiB", 16 << 30), ("1.5 gb", 15 * 10**8), ("500M", 5 * 10**8), ("80g", 80 * 10**9)],
)
def test_memory_as_people_write_it(text, size):
    assert parsed_memory(text) == size


@pytest.mark.parametrize("text", ["16", "GB", "-1GB", "0GB", "1e9B", "16 apples", "", "9" * 40 + "GB"])
def test_what_is_no_memory_is_refused(text):
    with pytest.raises(TapelessError, match="no amount of memory"):
        parsed_memory(text)


def test_the_largest_batch_is_the_largest_whatever_the_needs():
    """Beside going up one by one, with needs that leap somewhere; and without asking for many plans."""
    draw = random.Random(1)
    for _ in range(300):
        first, each, leap, at = draw.randrange(1000), draw.randint(1, 50), draw.randrange(3000), draw.randint(1, 400)
        asked: list[int] = []

        def needs(batch, first=first, each=each, leap=leap, at=at, asked=asked):
            asked.append(batch)
            return first + each * batch + (leap if batch > at else 0)

        room, true = draw.randrange(20_000), 0
        while needs(true + 1) <= room:
            true += 1
        asked.clear()
        assert largest_batch(needs, room) == true
        assert len(asked) <= 30


def test_a_straight_line_takes_four_plans():
    asked: list[int] = []

    def needs(batch):
        asked.append(batch)
        return 10**6 + 1000 * batch

    assert largest_batch(needs, 10**7) == 9000
    assert len(asked) == 4


def test_needs_that_bend_take_few_plans_too():
    """Weights and their gradients first, then activations, which only the line above them tells of."""
    asked: list[int] = []

    def needs(batch):
        asked.append(batch)
        return 10**6 + max(10**5 + 10 * batch, 1000 * batch)

    assert largest_batch(needs, 10**7) == 9000
    assert len(asked) <= 8


@pytest.mark.parametrize("under", [0, 3, 700, 5000])
def test_what_is_at_least_needed_finds_the_same(under):
    """However far below the need it lies, and where it is near, with one question of what is needed."""
    asked: list[int] = []

    def needs(batch):
        asked.append(batch)
        return 10**5 + 1000 * batch

    for room in (10**5, 10**5 + 1999, 10**6, 10**6 + 999):
        asked.clear()
        found = largest_batch(needs, room, lambda batch: 10**5 - under + 1000 * batch)
        assert found == largest_batch(needs, room)
    asked.clear()
    largest_batch(needs, 10**6 + 500, lambda batch: 10**5 - 499 + 1000 * batch)
    assert asked == [900]


def test_needs_that_do_not_grow_end():
    assert largest_batch(lambda batch: 5, 10) == memory.MOST_BATCH


def test_this_machine_tells_its_memory():
    here = memory_of("cpu")
    assert here is not None
    assert 0 < here.free <= here.total


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "sys/fs/cgroup/memory.max": "2000\n",
                "sys/fs/cgroup/memory.current": "700\n",
                "sys/fs/cgroup/memory.stat": "anon 3\ninactive_file 200\n",
            },
            Memory(2000, 1500),
        ),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
            },
            Memory(3000, 2000),
        ),
    ],
)
def test_a_container_has_what_it_may_have(files, expected, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    assert memory_of("cpu") == expected


def test_a_container_without_a_limit_has_the_machine(tmp_path, monkeypatch):
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:  77 kB\n")
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    found = memory_of("cpu")
    assert found is not None
    assert found.free == 77 * 1024
