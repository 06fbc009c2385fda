"""Checkpoints come back as they were, or are known to be damaged; malformed safetensors files are refused."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tracemalloc
from errno import EINVAL, EIO, ENOSPC
from math import inf, nan, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapeless import TapelessError
from tapeless.files import disk, safetensors
from tapeless.train import checkpoint
from tests.train import crash

SMALL = {"weights": 300, "optimizer": 600}
MEGABYTE = 1 << 20


def save(folder, step, attempt=0, **options):
    return crash.save(folder, step, attempt, SMALL, **options)


def refusal(action, *arguments, **named):
    with pytest.raises(TapelessError) as caught:
        action(*arguments, **named)
    message = str(caught.value)
    assert message == " ".join(message.split()), "one line"
    assert message[-1] in ".?"
    for leaked in ("Traceback", "Error", "<class", " object at ", "NoneType", "numpy.", "dtype("):
        assert leaked not in message, "talk of Python's insides"
    return message


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


def allocated_by(action):
    """The most bytes that were allocated while it ran."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# There and back.

DTYPES = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", ">f4", ">i8")


def every_kind():
    rng = np.random.default_rng(0)
    kinds = {f"of {dtype}": (100 * rng.random((5, 7))).astype(dtype) for dtype in DTYPES}
    grid = rng.standard_normal((300, 1000)).astype(np.float32)  # more than one piece
    layouts = {"transposed": grid.T, "strided": grid[::3, ::-2], "fortran": np.asfortranarray(grid), "straight": grid}
    return (
        kinds | layouts | {"scalar": np.array(pi), "empty": np.zeros((3, 0, 2)), "naïve name/ü": np.array([nan, -0.0])}
    )


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


def test_the_files_are_what_safetensors_itself_reads_and_writes(tmp_path):
    from safetensors.numpy import load_file, save_file

    tensors = every_kind()
    theirs = load_file(checkpoint.save(tmp_path, 7, {"weights": tensors}, {}) / "weights.safetensors")
    assert theirs.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(theirs[name], array)
    save_file(
        {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in tensors.items()},
        tmp_path / "theirs",
    )
    ours = safetensors.read_safetensors(tmp_path / "theirs")
    for name, array in tensors.items():
        np.testing.assert_array_equal(ours[name].ravel(), array.ravel())


def test_every_tensor_lies_at_a_multiple_of_its_item_size(tmp_path):
    """So that what maps the file can use it in place."""
    path = tmp_path / "model.safetensors"
    for length in range(1, 9):
        safetensors.write_safetensors(
            path, {"n" * length: np.ones(3, np.int8), "h": np.ones(3, np.float16), "d": np.ones(1)}
        )
        for array in safetensors.read_safetensors(path).values():
            assert array.flags.aligned


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
    checkpoint.verify(path)


def test_saving_and_reading_need_little_memory_of_their_own(tmp_path):
    tensors = {name: np.ones((25, MEGABYTE // 4), np.float32) for name in "abcd"}
    tensors["d"] = tensors["d"].T
    assert allocated_by(lambda: checkpoint.save(tmp_path, 1, {"weights": tensors}, {})) < 4 * MEGABYTE
    into = {name: np.zeros_like(array) for name, array in tensors.items()}
    found = checkpoint.load(tmp_path / "step-00000001")
    assert allocated_by(lambda: found.read("weights", into)) < MEGABYTE
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
        "dtype": ({"w": np.zeros(300)}, "'w' as float32, not float64: make the model with dtype='float32'"),
    }


@pytest.mark.parametrize("case", wrong_arrays())
def test_arrays_that_do_not_fit_are_refused(case, tmp_path):
    into, expected = wrong_arrays()[case]
    before = {name: array.copy() for name, array in into.items()}
    found = checkpoint.load(save(tmp_path, 1))
    message = refusal(found.read, "weights", into)
    assert expected in message
    assert f"weights of {found.path}" in message
    for name, array in into.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_file_it_does_not_have(tmp_path):
    found = checkpoint.load(save(tmp_path, 1))
    (found.path / "planted.safetensors").write_bytes(b"not of the manifest, so never read")
    assert "did you mean 'weights'?" in refusal(found.tensors, "weight")
    assert "unknown file" in refusal(found.read, "planted", {})


# What cannot be saved is refused before anything is written.

REQUESTS: dict[str, Any] = {
    "step −1": ({"step": -1}, "step must be a whole number of at least 0, not -1"),
    "step 1.0": ({"step": 1.0}, "step must be"),
    "step True": ({"step": True}, "step must be"),
    "keep 0": ({"keep": 0}, "keep must be a whole number of at least 1, not 0"),
    "keep None": ({"keep": None}, "keep must be"),
    "a path": ({"tensors": {"../weights": {}}}, "'../weights' cannot name a file"),
    "no name": ({"tensors": {"": {}}}, "'' cannot name a file"),
    "complex": ({"tensors": {"w": {"a": np.zeros(2, complex)}}}, "'a' is of type complex128"),
    "text": ({"tensors": {"w": {"a": np.array(["b"])}}}, "'a' is of type <U1"),
    "objects": ({"tensors": {"w": {"a": np.array([None])}}}, "'a' is of type object"),
    "metadata": ({"tensors": {"w": {"__metadata__": np.zeros(1)}}}, "cannot be named __metadata__"),
    "nan": ({"state": {"a": {"b": [1.0, nan]}}}, "state['a']['b'][1] is nan"),
    "inf": ({"state": {"a": -inf}}, "state['a'] is -inf"),
    "tuple": ({"state": {"a": (1, 2)}}, "state['a'] is of type tuple"),
    "float32": ({"state": {"a": np.float32(1)}}, "state['a'] is of type float32"),
    "array": ({"state": {"a": np.ones(1)}}, "state['a'] is of type ndarray"),
    "key": ({"state": {"a": {1: 2}}}, "state['a'] has the key 1"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_what_cannot_be_saved(case, tmp_path):
    changes, expected = REQUESTS[case]
    request = {"step": 1, "tensors": {"w": {"a": np.zeros(1)}}, "state": {}, "keep": 3} | changes
    assert expected in refusal(checkpoint.save, tmp_path / "run", **request)
    assert not (tmp_path / "run").exists()


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
        assert "step 1 is intact; see what ails the disk" in refusal(save, tmp_path, 2, best=True)
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
    assert "There is no earlier checkpoint; remove the cause and start the run again." in message


# Damage.


def test_a_cut_at_every_kilobyte_of_every_file(tmp_path):
    path = crash.save(tmp_path, 1, 0, {"weights": 12_500, "optimizer": 37_500})
    sizes = {name: (path / name).stat().st_size for name in names(path)}
    assert sum(sizes.values()) > 200_000
    for name, size in sizes.items():
        whole = (path / name).read_bytes()
        for length in {*range(0, size, 1000), size - 1}:
            (path / name).write_bytes(whole[:length])
            message = refusal(checkpoint.verify, path)
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
    checkpoint.verify(path)


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
                    checkpoint.verify(path)
                os.pwrite(file.fileno(), content[place : place + 1], place)
    checkpoint.verify(path)


def test_every_bit_of_the_record_of_the_best(tmp_path):
    save(tmp_path, 1, best=True)
    save(tmp_path, 3)
    content = (tmp_path / "best.json").read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "best.json").write_bytes(flipped)
        assert checkpoint._standing_best(tmp_path) is None


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
        "hash": (right | {"files": files | {"state.json": files["state.json"] | {"sha256": 1}}}, "is damaged (state"),
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
    assert "is not a checkpoint (there is no manifest.json in it)" in refusal(checkpoint.verify, tmp_path)
    assert "is not a checkpoint (it is no folder)" in refusal(checkpoint.verify, tmp_path / "file")


# Small files, whole.


@pytest.mark.parametrize("failing", ["open", "write", "fsync", "rename", "close"])
@pytest.mark.parametrize("error", [ENOSPC, EIO])
def test_a_file_is_written_whole_or_stays_as_it_was(failing, error, tmp_path, monkeypatch):
    path = tmp_path / "best.json"
    disk.write_whole(path, b"old")

    def perform(operation, *arguments):
        if operation.__name__ == failing:
            raise OSError(error, os.strerror(error))
        return operation(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "perform", perform)
        assert f"cannot write {path}: {os.strerror(error)}" in refusal(disk.write_whole, path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["best.json"]
    disk.write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_file_system_that_cannot_fsync_folders(tmp_path, monkeypatch):
    def fsync(descriptor):
        if Path(f"/dev/fd/{descriptor}").is_dir():
            raise OSError(EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.verify(save(tmp_path, 1))


# Malformed safetensors files.


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)} | more


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


EIGHT = bytes(8)
ONE = {"a": entry()}
MALFORMED = {
    # the length
    "empty": (b"", "it has 0 bytes"),
    "seven bytes": (bytes(7), "it has 7 bytes"),
    "length 0": (bytes(8), "does not begin with {"),
    "length one too many": (file_of({}, length=3), "claims 3 bytes, and the file has 10"),
    "length one too few": (file_of({}, length=1), "not JSON"),
    "length 2^60": (file_of(ONE, EIGHT, 2**60), "claims 1,152,921,504,606,846,976 bytes"),
    "length 2^64 − 1": (file_of(ONE, EIGHT, 2**64 - 1), "claims 18,446,744,073,709,551,615 bytes"),
    "length 2^63": (file_of(ONE, EIGHT, 2**63), "claims"),
    "length big-endian": (struct.pack(">Q", 2) + b"{}", "claims"),
    "header too large": (file_of(b"{" + b" " * safetensors.LARGEST_HEADER + b"}"), "more than the 16,777,216"),
    "a pickle": (b"\x80\x04\x95\x1f\x00\x00\x00\x00" + bytes(40), "claims"),
    "a zip": (b"PK\x03\x04" + bytes(60), "claims 67,324,752 bytes"),
    "a pointer to a large file": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "claims"),
    # JSON
    "no JSON": (file_of(b"{nonsense}"), "not JSON"),
    "half of it": (file_of(json.dumps(ONE).encode()[:-5], EIGHT), "not JSON"),
    "two objects": (file_of(b"{}{}"), "not JSON"),
    "trailing comma": (file_of(b'{"a": 1,}'), "not JSON"),
    "zeros after it": (file_of(b"{}\0\0"), "not JSON"),
    "a list": (file_of([]), "does not begin with {"),
    "a number": (file_of(b"3"), "does not begin with {"),
    "null": (file_of(b"null"), "does not begin with {"),
    "space before it": (file_of(b" {}"), "does not begin with {"),
    "byte order mark": (file_of(b"\xef\xbb\xbf{}"), "does not begin with {"),
    "UTF-16": (file_of("{}".encode("utf-16")), "does not begin with {"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "not JSON in UTF-8"),
    "NaN": (file_of(b'{"a": NaN}'), "holds NaN"),
    "-Infinity": (file_of(b'{"a": -Infinity}'), "holds -Infinity"),
    "a number of 5,000 digits": (file_of(b'{"a": ' + b"9" * 5000 + b"}"), "a number of 5,000 digits"),
    "deep lists": (file_of(b'{"a": ' + b"[" * 100_000), "nested too deeply"),
    "deep maps": (file_of(b'{"a": ' * 100_000), "nested too deeply"),
    "a name twice": (file_of(b'{"a": 1, "b": 1, "a": 1}'), "gives 'a' twice"),
    "a key twice": (file_of(b'{"a": {"dtype": "F32", "dtype": "F32"}}'), "gives 'dtype' twice"),
    # entries
    "metadata is a list": (file_of({"__metadata__": []}), "__metadata__ is not a map"),
    "metadata holds a number": (file_of({"__metadata__": {"a": 1}}), "__metadata__ is not a map"),
    "entry is a number": (file_of({"a": 1}), "'a' is not described by"),
    "entry is null": (file_of({"a": None}), "'a' is not described by"),
    "entry is empty": (file_of({"a": {}}), "'a' is not described by"),
    "no shape": (file_of({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, EIGHT), "'a' is not described by"),
    "no offsets": (file_of({"a": {"dtype": "F32", "shape": [2]}}, EIGHT), "'a' is not described by"),
    "more than is known": (file_of({"a": entry(codec="zip")}, EIGHT), "'a' is not described by"),
    "dtype unknown": (file_of({"a": entry("F31")}, EIGHT), "the dtype 'F31', not one of F64, F32"),
    "dtype of 8 bits": (file_of({"a": entry("F8_E4M3", [8])}, EIGHT), "the dtype 'F8_E4M3'"),
    "dtype in small letters": (file_of({"a": entry("f32")}, EIGHT), "the dtype 'f32'"),
    "dtype is a number": (file_of({"a": entry(32)}, EIGHT), "the dtype 32"),
    "dtype is a list": (file_of({"a": entry(["F32"])}, EIGHT), "the dtype ['F32']"),
    "dtype is null": (file_of({"a": entry(None)}, EIGHT), "the dtype None"),
    "dtype is long": (file_of({"a": entry("F" * 10_000)}, EIGHT), "F..."),
    "shape is a number": (file_of({"a": entry() | {"shape": 2}}, EIGHT), "the shape 2, not a list"),
    "shape is a map": (file_of({"a": entry() | {"shape": {}}}, EIGHT), "not a list of sizes"),
    "size below 0": (file_of({"a": entry(shape=[-2])}, EIGHT), "the shape [-2], not a list of sizes"),
    "both sizes below 0": (file_of({"a": entry(shape=[-1, -2])}, EIGHT), "not a list of sizes"),
    "size 2.0": (file_of({"a": entry(shape=[2.0])}, EIGHT), "not a list of sizes"),
    "size true": (file_of({"a": entry(shape=[True, 2])}, EIGHT), "not a list of sizes"),
    "size as text": (file_of({"a": entry(shape=["2"])}, EIGHT), "not a list of sizes"),
    "size is deep": (
        file_of(b'{"a":{"shape":' + b"[" * 900 + b"]" * 900 + b',"dtype":"F32","data_offsets":[0,8]}}'),
        "",
    ),
    "65 axes": (file_of({"a": entry(shape=[1] * 65, offsets=[0, 4])}, bytes(4)), "65 axes, more than 64"),
    "100,000 axes": (file_of({"a": entry(shape=[1] * 10**5, offsets=[0, 4])}, bytes(4)), "100,000 axes"),
    "a product beyond 2^64": (file_of({"a": entry(shape=[2**32, 2**32, 2])}, EIGHT), "too large for any memory"),
    "a product that wraps to 2": (file_of({"a": entry(shape=[2**63 + 1, 2])}, EIGHT), "too large for any memory"),
    "nothing of a huge shape": (file_of({"a": entry(shape=[0, 2**62, 4], offsets=[0, 0])}), "too large for any memory"),
    # offsets
    "offsets are a number": (file_of({"a": entry() | {"data_offsets": 8}}, EIGHT), "the data_offsets 8"),
    "one offset": (file_of({"a": entry(offsets=[8])}, EIGHT), "the data_offsets [8]"),
    "three offsets": (file_of({"a": entry(offsets=[0, 4, 8])}, EIGHT), "the data_offsets [0, 4, 8]"),
    "offset below 0": (file_of({"a": entry(offsets=[-8, 0])}, EIGHT), "the data_offsets [-8, 0]"),
    "offsets reversed": (file_of({"a": entry(offsets=[8, 0])}, EIGHT), "the data_offsets [8, 0]"),
    "offset 0.0": (file_of({"a": entry(offsets=[0.0, 8.0])}, EIGHT), "the data_offsets [0.0, 8.0]"),
    "offset null": (file_of({"a": entry(offsets=[None, 8])}, EIGHT), "the data_offsets [None, 8]"),
    "too few bytes": (file_of({"a": entry(shape=[3])}, EIGHT), "takes 12 bytes, and its data_offsets span 8"),
    "too many bytes": (file_of({"a": entry(shape=[1])}, EIGHT), "takes 4 bytes, and its data_offsets span 8"),
    "another width": (file_of({"a": entry("F64")}, EIGHT), "takes 16 bytes, and its data_offsets span 8"),
    "beyond the file": (file_of(ONE, bytes(7)), "ends at byte 8 of 7 bytes"),
    "no data": (file_of(ONE), "ends at byte 8 of 0 bytes"),
    "far beyond the file": (
        file_of({"a": entry("U8", [2**50], [0, 2**50])}, EIGHT),
        "ends at byte 1,125,899,906,842,624 of 8 bytes",
    ),
    "starts beyond the file": (file_of({"a": entry(offsets=[2**40, 2**40 + 8])}, EIGHT), "ends at byte"),
    "overlap": (file_of({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)), "'b' overlaps the one before it"),
    "the same bytes": (file_of({"a": entry(), "b": entry()}, EIGHT), "'b' overlaps the one before it"),
    "gap at the beginning": (file_of({"a": entry(offsets=[4, 12])}, bytes(12)), "'a' leaves a gap before it"),
    "gap": (file_of({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)), "'b' leaves a gap before it"),
    "more data": (file_of(ONE, bytes(9)), "1 bytes after the last tensor belong to none"),
    "data of nothing": (file_of({}, EIGHT), "8 bytes after the last tensor belong to none"),
    "a name of control characters": (file_of({"\n\x1b[31m": 1}), r"'\n\x1b[31m'"),
    "half a character": (file_of(b'{"\\ud800": 1}'), r"'\ud800'"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_in_little_memory(case, tmp_path):
    content, expected = MALFORMED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    messages = []
    assert (
        allocated_by(lambda: messages.append(refusal(safetensors.read_safetensors, path)))
        < 12 * len(content) + MEGABYTE
    )
    assert messages[0].startswith(f"{path} is not a sound safetensors file: ")
    assert expected in messages[0]
    assert len(messages[0]) < len(str(path)) + 300
    messages[0].encode()


def test_files_that_cannot_be_read(tmp_path):
    assert "No such file" in refusal(safetensors.read_safetensors, tmp_path / "missing")
    assert "it is a folder, not a plain file" in refusal(safetensors.read_safetensors, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "it is a pipe, not a plain file" in refusal(safetensors.read_safetensors, tmp_path / "pipe")


def test_sound_files_at_the_edge(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({}))
    assert dict(safetensors.read_safetensors(path)) == {}
    odd = {
        "__metadata__": {"a": "b"},
        "n": entry("U8", [1], [0, 1]),
        "a": entry(offsets=[1, 9]),
        "": entry(shape=[0, 3], offsets=[9, 9]),
    }
    path.write_bytes(file_of(odd, b"\7" + struct.pack("<2f", 1.5, -2.0)))
    found = safetensors.read_safetensors(path)
    assert (list(found), len(found)) == (["n", "a", ""], 3)
    assert found["a"].tolist() == [1.5, -2.0], "at an odd address"
    assert found[""].shape == (0, 3)
    with pytest.raises(ValueError, match="read-only"):
        found["a"][0] = 0


def test_bfloat16_comes_as_float32(tmp_path):
    """Every one of the 65,536 values: a float32 without its lower half."""
    stored = np.arange(65536, dtype="<u2").tobytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"w": entry("BF16", [256, 256], [0, len(stored)])}, stored))
    found = safetensors.read_safetensors(path)["w"]
    assert (str(found.dtype), found.shape) == ("float32", (256, 256))
    for place in range(65536):
        assert struct.pack("<f", found.flat[place])[2:] == stored[2 * place : 2 * place + 2] or np.isnan(
            found.flat[place]
        )
    assert found[0x3F, 0xC0] == 1.5
    assert np.isnan(found).sum() == 2 * 127
