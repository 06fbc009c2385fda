"""The header of a .npy file: NumPy's own are read as NumPy reads them, all others are one sentence."""

import os

import numpy as np
import pytest

from tapeless.errors import TapelessError
from tapeless.labelling.signal.npy import open_array


def written(path, header, content=bytes(80), version=1):
    text = header.encode("latin-1") if isinstance(header, str) else header
    path.write_bytes(b"\x93NUMPY" + bytes((version, 0)) + len(text).to_bytes(2 if version == 1 else 4, "little") + text)
    with path.open("ab") as file:
        file.write(content)
    return path


def header(descr="'<f8'", order="False", shape="(10,)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10.0),
        np.arange(10, dtype=">i4"),
        np.arange(6) + 1j,
        np.array([True, False]),
        np.arange(4, dtype=np.float16),
        np.zeros((2, 3)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros(0),
        np.zeros((3, 0)),
        np.array(1.5),
        np.arange(3, dtype=np.longdouble),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_what_numpy_writes(array, version, tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version)
    found = open_array(tmp_path / "a.npy")
    assert found.dtype == array.dtype
    if array.size:
        assert found.shape == array.shape
        assert np.array_equal(found, array)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 900,
        "-" * 3000 + "1",
        "(" * 150 + ")" * 150,
        header(shape="(-1,)"),
        header(shape="(True,)"),
        header(shape="(1.0,)"),
        header(shape="10"),
        header(shape="None"),
        header(shape="(9**9,)"),
        header(shape=f"({10**30},)"),
        header(shape=f"({2**62}, {2**62})"),
        header(shape="(" + "1," * 40 + ")"),
        header(shape="(11,)"),
        header(order="1"),
        header(order="'a'"),
        header(descr="'<f3'"),
        header().replace("'shape'", "'form'"),
        header().replace("(10,)", "(10,), 'more': 1"),
        header(shape="(1L,)"),
        header().encode() + b"\xff\0",
    ],
)
def test_a_header_that_is_none(text, tmp_path):
    with pytest.raises(TapelessError, match=r"x\.npy is no whole \.npy file, .*write it with numpy\.save") as caught:
        open_array(written(tmp_path / "x.npy", text))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("descr", ["'<U4'", "'<M8[s]'", "[('a', '<f8')]", "'V8'", "7", "''", "None"])
def test_what_is_no_number(descr, tmp_path):
    with pytest.raises(TapelessError, match="not numbers: save an array of plain numbers"):
        open_array(written(tmp_path / "x.npy", header(descr)))


def test_objects_are_refused_without_a_look_at_them(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(TapelessError, match="holds Python objects"):
        open_array(tmp_path / "x.npy")


def test_a_pipe_does_not_make_us_wait(tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(TapelessError, match="is a pipe"):
        open_array(tmp_path / "x.npy")


def test_a_file_that_is_cut_anywhere(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10.0))
    whole = (tmp_path / "x.npy").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "x.npy").write_bytes(whole[:length])
        with pytest.raises(TapelessError):
            open_array(tmp_path / "x.npy")
