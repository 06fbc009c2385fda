"""The safetensors format: as its own package has it, and refused with a sentence where a file is malformed."""

import json
import os
import struct

import numpy as np
import pytest

from tapeless.files import safetensors
from tests.files.refused import MEGABYTE, allocated_by, refusal
from tests.files.tensors import every_kind


def test_the_files_are_what_safetensors_itself_reads_and_writes(tmp_path):
    from safetensors.numpy import load_file, save_file

    tensors = every_kind()
    safetensors.write_safetensors(tmp_path / "ours", tensors)
    theirs = load_file(tmp_path / "ours")
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


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)} | more


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


EIGHT = bytes(8)
ONE = {"a": entry()}
MALFORMED = {
    "empty": b"",
    "seven bytes": bytes(7),
    "length 0": bytes(8),
    "length one too many": file_of({}, length=3),
    "length one too few": file_of({}, length=1),
    "length 2^60": file_of(ONE, EIGHT, 2**60),
    "length 2^64 − 1": file_of(ONE, EIGHT, 2**64 - 1),
    "length 2^63": file_of(ONE, EIGHT, 2**63),
    "length big-endian": struct.pack(">Q", 2) + b"{}",
    "header too large": file_of(b"{" + b" " * safetensors.LARGEST_HEADER + b"}"),
    "a pickle": b"\x80\x04\x95\x1f\x00\x00\x00\x00" + bytes(40),
    "a zip": b"PK\x03\x04" + bytes(60),
    "a pointer to a large file": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "no JSON": file_of(b"{nonsense}"),
    "half of it": file_of(json.dumps(ONE).encode()[:-5], EIGHT),
    "two objects": file_of(b"{}{}"),
    "trailing comma": file_of(b'{"a": 1,}'),
    "zeros after it": file_of(b"{}\0\0"),
    "a list": file_of([]),
    "a number": file_of(b"3"),
    "null": file_of(b"null"),
    "byte order mark": file_of(b"\xef\xbb\xbf{}"),
    "UTF-16": file_of("{}".encode("utf-16")),
    "not UTF-8": file_of(b'{"\xff": 1}'),
    "NaN": file_of(b'{"a": NaN}'),
    "-Infinity": file_of(b'{"a": -Infinity}'),
    "a number of 5,000 digits": file_of(b'{"a": ' + b"9" * 5000 + b"}"),
    "deep lists": file_of(b'{"a": ' + b"[" * 100_000),
    "deep maps": file_of(b'{"a": ' * 100_000),
    "a name twice": file_of(b'{"a": 1, "b": 1, "a": 1}'),
    "a key twice": file_of(b'{"a": {"dtype": "F32", "dtype": "F32"}}'),
    "metadata is a list": file_of({"__metadata__": []}),
    "metadata holds a number": file_of({"__metadata__": {"a": 1}}),
    "entry is a number": file_of({"a": 1}),
    "entry is null": file_of({"a": None}),
    "entry is empty": file_of({"a": {}}),
    "no shape": file_of({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, EIGHT),
    "no offsets": file_of({"a": {"dtype": "F32", "shape": [2]}}, EIGHT),
    "dtype unknown": file_of({"a": entry("F31")}, EIGHT),
    "dtype of 8 bits": file_of({"a": entry("F8_E4M3", [8])}, EIGHT),
    "dtype in small letters": file_of({"a": entry("f32")}, EIGHT),
    "dtype is a number": file_of({"a": entry(32)}, EIGHT),
    "dtype is a list": file_of({"a": entry(["F32"])}, EIGHT),
    "dtype is null": file_of({"a": entry(None)}, EIGHT),
    "dtype is long": file_of({"a": entry("F" * 10_000)}, EIGHT),
    "shape is a number": file_of({"a": entry() | {"shape": 2}}, EIGHT),
    "shape is a map": file_of({"a": entry() | {"shape": {}}}, EIGHT),
    "size below 0": file_of({"a": entry(shape=[-2])}, EIGHT),
    "both sizes below 0": file_of({"a": entry(shape=[-1, -2])}, EIGHT),
    "size 2.0": file_of({"a": entry(shape=[2.0])}, EIGHT),
    "size true": file_of({"a": entry(shape=[True, 2])}, EIGHT),
    "size as text": file_of({"a": entry(shape=["2"])}, EIGHT),
    "size is deep": file_of(b'{"a":{"shape":' + b"[" * 900 + b"]" * 900 + b',"dtype":"F32","data_offsets":[0,8]}}'),
    "65 axes": file_of({"a": entry(shape=[1] * 65, offsets=[0, 4])}, bytes(4)),
    "100,000 axes": file_of({"a": entry(shape=[1] * 10**5, offsets=[0, 4])}, bytes(4)),
    "a product beyond 2^64": file_of({"a": entry(shape=[2**32, 2**32, 2])}, EIGHT),
    "a product that wraps to 2": file_of({"a": entry(shape=[2**63 + 1, 2])}, EIGHT),
    "nothing of a huge shape": file_of({"a": entry(shape=[0, 2**62, 4], offsets=[0, 0])}),
    "offsets are a number": file_of({"a": entry() | {"data_offsets": 8}}, EIGHT),
    "one offset": file_of({"a": entry(offsets=[8])}, EIGHT),
    "three offsets": file_of({"a": entry(offsets=[0, 4, 8])}, EIGHT),
    "offset below 0": file_of({"a": entry(offsets=[-8, 0])}, EIGHT),
    "offsets reversed": file_of({"a": entry(offsets=[8, 0])}, EIGHT),
    "offset 0.0": file_of({"a": entry(offsets=[0.0, 8.0])}, EIGHT),
    "offset null": file_of({"a": entry(offsets=[None, 8])}, EIGHT),
    "too few bytes": file_of({"a": entry(shape=[3])}, EIGHT),
    "too many bytes": file_of({"a": entry(shape=[1])}, EIGHT),
    "another width": file_of({"a": entry("F64")}, EIGHT),
    "beyond the file": file_of(ONE, bytes(7)),
    "no data": file_of(ONE),
    "far beyond the file": file_of({"a": entry("U8", [2**50], [0, 2**50])}, EIGHT),
    "starts beyond the file": file_of({"a": entry(offsets=[2**40, 2**40 + 8])}, EIGHT),
    "overlap": file_of({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
    "the same bytes": file_of({"a": entry(), "b": entry()}, EIGHT),
    "gap at the beginning": file_of({"a": entry(offsets=[4, 12])}, bytes(12)),
    "gap": file_of({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)),
    "more data": file_of(ONE, bytes(9)),
    "data of nothing": file_of({}, EIGHT),
    "a name of control characters": file_of({"\n\x1b[31m": 1}),
    "half a character": file_of(b'{"\\ud800": 1}'),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_in_little_memory(case, tmp_path):
    content = MALFORMED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    messages = []
    assert (
        allocated_by(lambda: messages.append(refusal(safetensors.read_safetensors, path)))
        < 12 * len(content) + MEGABYTE
    )
    assert messages[0].startswith(f"{path} is not a sound safetensors file: ")
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
