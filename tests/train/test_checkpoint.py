"""Checkpoints come back as they were, or are known to be damaged."""

import json
import os
import random
import shutil
import subprocess
import sys
from errno import EINVAL, EIO
from math import pi
from pathlib import Path

import numpy as np
import pytest

from tapeless import TapelessError
from tapeless.files import disk
from tapeless.train import checkpoint
from tests.files.refused import MEGABYTE, allocated_by, refusal
from tests.files.tensors import every_kind
from tests.train import crash

SMALL = {"weights": 300, "optimizer": 600}


def save(folder, step, attempt=0, **options):
    return crash.save(folder, step, attempt, SMALL, **options)


def newest(folder):
    """With no message."""
    found, messages = checkpoint.newest(folder)
    assert messages == []
    return found


def best(folder):
    found, messages = checkpoint.best(folder)
    assert messages == []
    return found


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def damage(path):
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


# There and back.


def test_tensors_come_back_to_the_bit(tmp_path):
    tensors = every_kind()
    found = checkpoint.load(checkpoint.save(tmp_path, 7, {"weights": tensors, "none": {}}, {}))
    assert found.tensors("none") == {}
    back = found.tensors("weights")
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        assert back[name].dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(back[name], array)
        assert back[name].flags.writeable


def test_the_state_comes_back_exactly(tmp_path):
    rng = np.random.default_rng(3)
    floats = [*rng.standard_normal(1000).tolist(), 5e-324, 1.7976931348623157e308, -0.0, 0.1, float(np.float32(0.1))]
    generator = rng.bit_generator.state
    state = {"floats": floats, "numpy": np.float64(pi), "generator": generator, "words": ["ü", "\ud800", None, True]}
    back = checkpoint.load(checkpoint.save(tmp_path, 0, {}, state)).state
    assert back == state
    assert [value.hex() for value in back["floats"]] == [value.hex() for value in floats]


def test_what_lies_in_the_folder(tmp_path):
    path = save(tmp_path / "made" / "on the way", 500, best=True)
    assert path == tmp_path / "made" / "on the way" / "step-00000500"
    assert names(path.parent) == ["best.json", "step-00000500"]
    assert names(path) == ["manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors"]
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert (manifest["format"], manifest["step"]) == (1, 500)
    assert {name: file["size"] for name, file in manifest["files"].items()} == {
        name: (path / name).stat().st_size for name in names(path) if name != "manifest.json"
    }
    found = checkpoint.load(path)
    assert (found.step, found.path, found.stems) == (500, path, ("weights", "optimizer"))
    checkpoint.load(path)


def test_saving_and_reading_need_little_memory_of_their_own(tmp_path):
    tensors = {name: np.ones((25, MEGABYTE // 4), np.float32) for name in "abcd"}
    tensors["d"] = tensors["d"].T
    assert allocated_by(lambda: checkpoint.save(tmp_path, 1, {"weights": tensors}, {})) < 4 * MEGABYTE
    into = {name: np.zeros_like(array) for name, array in tensors.items()}
    found = checkpoint.load(tmp_path / "step-00000001")
    assert (
        allocated_by(lambda: found.read("weights", into, lambda name, array: np.copyto(into[name], array))) < MEGABYTE
    )
    assert all(array.all() for array in into.values())


def test_importing_it_loads_nothing_heavy():
    script = "import sys, tapeless.train.checkpoint; print({'numba', 'safetensors', 'torch'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


# Reading into a model's arrays.


def wrong_arrays():
    right = crash.tensors_of(1, 0, SMALL)["weights"]
    extra = {f"extra{number}": np.zeros(1) for number in range(5)}
    return {
        "lacks": (right | extra, "lacks 'extra0', 'extra1', 'extra2', …: it is of another model"),
        "unknown": ({}, "has the unknown 'w': it is of another model"),
        "shape": ({"w": np.zeros(299, np.float32)}, "'w' in shape (300,), not (299,)"),
        "dtype": ({"w": np.zeros(300)}, "'w' as float32, not float64: make the model with precision='float32'"),
    }


@pytest.mark.parametrize("case", wrong_arrays())
def test_arrays_that_do_not_fit_are_refused(case, tmp_path):
    into, expected = wrong_arrays()[case]
    before = {name: array.copy() for name, array in into.items()}
    found = checkpoint.load(save(tmp_path, 1))
    message = refusal(found.read, "weights", into, lambda name, array: pytest.fail("written"))
    assert expected in message
    assert f"weights of {found.path}" in message
    for name, array in into.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_file_it_does_not_have(tmp_path):
    found = checkpoint.load(save(tmp_path, 1))
    (found.path / "planted.safetensors").write_bytes(b"not of the manifest, so never read")
    assert "did you mean 'weights'?" in refusal(found.tensors, "weight")
    assert "unknown file" in refusal(found.read, "planted", {}, lambda name, array: None)


# Which stay, and which is found.


def steps(folder):
    return [int(name[5:]) for name in names(folder) if name.startswith("step-")]


def test_the_newest_and_the_best_stay(tmp_path):
    for step in range(1, 10):
        save(tmp_path, step, keep=3, best=step in (1, 2, 5))
    assert steps(tmp_path) == [5, 7, 8, 9]
    assert (newest(tmp_path).step, best(tmp_path).step) == (9, 5)
    save(tmp_path, 10, keep=1)
    assert steps(tmp_path) == [5, 10]


def test_a_hundred_million_steps(tmp_path):
    for step in (99_999_999, 100_000_000, 100_000_001):
        save(tmp_path, step, keep=2)
    assert steps(tmp_path) == [100_000_000, 100_000_001]


def test_a_step_saved_again_takes_the_place_of_the_old(tmp_path):
    for step, attempt in ((1, 0), (2, 0), (2, 1), (2, 2)):
        save(tmp_path, step, attempt, keep=2, best=(step, attempt) == (2, 0))
    assert names(tmp_path) == ["best.json", "step-00000001", "step-00000002"]
    assert newest(tmp_path).state["attempt"] == best(tmp_path).state["attempt"] == 2


def test_nothing_saved_yet(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        assert checkpoint.newest(folder) == checkpoint.best(folder) == (None, [])


def test_a_damaged_one_is_passed_over_with_a_message(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=9, best=step == 4)
    damage(tmp_path / "step-00000004" / "weights.safetensors")
    (tmp_path / "step-00000003" / "state.json").unlink()
    expected = [
        "step-00000004 is damaged (weights.safetensors: its SHA-256 is not the one of the manifest); "
        "step-00000002 is taken instead.",
        "step-00000003 is damaged (state.json: No such file or directory); step-00000002 is taken instead.",
    ]
    for find in (checkpoint.newest, checkpoint.best):
        found, messages = find(tmp_path)
        assert found is not None
        assert (found.step, messages) == (2, expected)
        crash.assert_right(found, SMALL)


def test_nothing_whole_is_left(tmp_path):
    (save(tmp_path, 1) / "manifest.json").unlink()
    message = "step-00000001 is not a checkpoint (there is no manifest.json in it); no whole checkpoint is left."
    assert checkpoint.newest(tmp_path) == (None, [message])


def test_damaged_newer_ones_do_not_push_out_what_is_saved_after_them(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=4)
    for step in (2, 3, 4):
        damage(tmp_path / f"step-{step:08}" / "manifest.json")
    save(tmp_path, 1, 1, keep=1)
    assert 1 in steps(tmp_path)
    found, messages = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.step, found.state["attempt"], len(messages)) == (1, 1, 3)
    for step in (2, 3, 4):
        save(tmp_path, step, 1, keep=2)
    found = newest(tmp_path)
    assert (found.step, found.state["attempt"]) == (4, 1)
    assert steps(tmp_path) == [3, 4]


@pytest.mark.parametrize("record", ["missing", "damaged", "of a step that is gone"])
def test_without_a_record_of_the_best_the_newest_is_taken(record, tmp_path):
    save(tmp_path, 1, best=True)
    save(tmp_path, 2)
    if record == "missing":
        (tmp_path / "best.json").unlink()
    elif record == "damaged":
        content = (tmp_path / "best.json").read_bytes()
        (tmp_path / "best.json").write_bytes(content.replace(b'"step": 1', b'"step": 0'))
    else:
        shutil.rmtree(tmp_path / "step-00000001")
    found, messages = checkpoint.best(tmp_path)
    assert found is not None
    assert found.step == 2
    assert messages == [f"{tmp_path} has no record of a best checkpoint; step-00000002 is taken."]


def test_a_best_that_never_arrived_is_forgotten(tmp_path, monkeypatch):
    """Its name was recorded, then the rename failed; saved later as one of many, it is not the best."""
    save(tmp_path, 1, best=True)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_place", lambda *arguments: (_ for _ in ()).throw(OSError(EIO, "broken")))
        assert "step-00000001; see what ails the disk" in refusal(save, tmp_path, 2, best=True)
    assert best(tmp_path).step == 1
    save(tmp_path, 2)
    assert best(tmp_path).step == 1


def test_what_dead_processes_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for process in (dead.pid, os.getpid(), os.getppid(), "what"):
        (tmp_path / f".partial-{process}-0" / "deeper").mkdir(parents=True)
        (tmp_path / f".partial-{process}-0" / "deeper" / "weights.safetensors").write_bytes(b"half")
    save(tmp_path, 1)
    assert names(tmp_path) == [f".partial-{os.getppid()}-0", "step-00000001"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = refusal(save, tmp_path / "file", 5)
    assert f"cannot save the checkpoint at step 5 in {tmp_path / 'file'}: File exists." in message
    assert "There is no checkpoint yet; remove the cause." in message


# Damage.


def test_a_cut_at_every_kilobyte_of_every_file(tmp_path):
    path = crash.save(tmp_path, 1, 0, {"weights": 12_500, "optimizer": 37_500})
    sizes = {name: (path / name).stat().st_size for name in names(path)}
    assert sum(sizes.values()) > 200_000
    for name, size in sizes.items():
        whole = (path / name).read_bytes()
        for length in {*range(0, size, 1000), size - 1}:
            (path / name).write_bytes(whole[:length])
            message = refusal(checkpoint.load, path)
            assert str(path) in message
            assert f"({name}: " in message
            if name != "manifest.json":
                assert f"{length:,} bytes instead of {size:,}" in message
        (path / name).write_bytes(whole + b"\n")
        assert f"({name}: " in refusal(checkpoint.load, path)
        (path / name).unlink()
        assert name in refusal(checkpoint.load, path)
        (path / name).mkdir()
        assert name in refusal(checkpoint.load, path)
        (path / name).rmdir()
        (path / name).write_bytes(whole)
    checkpoint.load(path)


def test_ten_thousand_random_bit_flips(tmp_path):
    path = crash.save(tmp_path, 1, 0, {"weights": 100, "optimizer": 200})
    contents = {name: (path / name).read_bytes() for name in names(path)}
    flips = random.Random(0)
    for name, content in contents.items():
        with (path / name).open("r+b", buffering=0) as file:
            for _ in range(10_000 // len(contents)):
                place = flips.randrange(len(content))
                os.pwrite(file.fileno(), bytes([content[place] ^ 1 << flips.randrange(8)]), place)
                with pytest.raises(TapelessError, match=name):
                    checkpoint.load(path)
                os.pwrite(file.fileno(), content[place : place + 1], place)
    checkpoint.load(path)


def test_every_bit_of_the_record_of_the_best(tmp_path):
    save(tmp_path, 1, best=True)
    save(tmp_path, 3)
    content = (tmp_path / "best.json").read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "best.json").write_bytes(flipped)
        assert checkpoint.best_step(tmp_path) is None


def manifests(right):
    files = right["files"]
    return {
        "newer": (right | {"format": 2}, "is of format 2, newer than the 1 that this version of tapeless reads"),
        "older": (right | {"format": 0}, "is not a checkpoint"),
        "no format": ({"step": 1, "files": files}, "is not a checkpoint"),
        "step": (right | {"step": "1"}, "is not a checkpoint"),
        "files": (right | {"files": [*files]}, "is not a checkpoint"),
        "no state": (right | {"files": {}}, "is not a checkpoint"),
        "outside": (right | {"files": files | {"../x.safetensors": files["state.json"]}}, "is not a checkpoint"),
        "absolute": (right | {"files": files | {"/etc/passwd": files["state.json"]}}, "is not a checkpoint"),
        "entry": (right | {"files": files | {"state.json": 3}}, "is not a checkpoint"),
        "size": (right | {"files": files | {"state.json": {"size": "3", "sha256": ""}}}, "is not a checkpoint"),
        "hash": (right | {"files": files | {"state.json": files["state.json"] | {"sha256": 1}}}, "is not a checkpoint"),
    }


@pytest.mark.parametrize("case", manifests({"files": {"state.json": {}}}))
def test_manifests_that_are_sealed_and_wrong(case, tmp_path):
    path = save(tmp_path, 1)
    right = disk.unsealed((path / "manifest.json").read_bytes())
    content, expected = manifests(right)[case]
    (path / "manifest.json").write_bytes(disk.sealed(content))
    assert expected in refusal(checkpoint.load, path)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b"{}", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"\0" * 50]
)
def test_manifests_that_are_none(content, tmp_path):
    path = save(tmp_path, 1)
    (path / "manifest.json").write_bytes(content)
    assert "is damaged (manifest.json: it does not agree with its own SHA-256)" in refusal(checkpoint.load, path)


def test_what_is_no_checkpoint(tmp_path):
    (tmp_path / "file").write_text("text")
    assert "is not a checkpoint (there is no manifest.json in it)" in refusal(checkpoint.load, tmp_path)
    assert "is not a checkpoint (it is no folder)" in refusal(checkpoint.load, tmp_path / "file")


def test_a_file_system_that_cannot_fsync_folders(tmp_path, monkeypatch):
    def fsync(descriptor):
        if Path(f"/dev/fd/{descriptor}").is_dir():
            raise OSError(EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.load(save(tmp_path, 1))
