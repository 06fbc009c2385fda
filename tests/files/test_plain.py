"""What comes from anywhere: plain files only, and JSON and TOML that can be walked, compared and printed."""

import os
import socket

import pytest

from tapeless.errors import TapelessError
from tapeless.files.plain import open_plain, parse_json, read_json, read_plain, read_toml


def test_only_a_plain_file_is_opened_and_a_pipe_does_not_make_us_wait(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # a socket's address has 107 bytes at most, which a temporary folder's path may exceed
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    for name, kind in {"pipe": "a pipe", ".": "a folder", "/dev/zero": "a device"}.items():
        with pytest.raises(OSError, match=f"is {kind}, not a plain file"):
            open_plain(tmp_path / name)
    with pytest.raises(OSError, match="No such device"):  # as the system has it
        open_plain(tmp_path / "socket")
    for name in ("a\0b", "a\ud800b"):
        with pytest.raises(TapelessError, match="no name of a file"):
            open_plain(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "absent")


def test_a_file_is_read_up_to_a_bound(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_plain(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="longer than 4 bytes"):
        read_plain(tmp_path / "file", 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expecting value at line 1, column 1"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"a": "\\ud800"}', "'a' holds half a surrogate pair"),
        (b'{"\\udfff": 1}', "'a name' holds half a surrogate pair"),
        (b'{"a": [9223372036854775808]}', "'a' holds a whole number that does not fit 64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300"),
        (b"[" * 66 + b"]" * 66, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_python_reads_and_nobody_can_use(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def test_json_that_can_be_used():
    assert parse_json(b'{"a": [9223372036854775807, null, 1e5, "\\ud83d\\ude00"]}') == {
        "a": [2**63 - 1, None, 1e5, "😀"]
    }
    assert parse_json(b"[" * 64 + b"]" * 64)


def test_whole_numbers_of_another_program_may_be_of_any_size(tmp_path):
    """They can be compared and printed all the same, and their floats taken."""
    none = 1000000000000000019884624838656  # int(1e30), which transformers writes for "no limit"
    (tmp_path / "theirs.json").write_text(f'{{"most": {none}, "least": [-{"9" * 307}, {"9" * 309}, -{"9" * 9000}]}}')
    found = read_json(tmp_path / "theirs.json", 1 << 20, foreign=True)
    assert found["most"] == none
    assert found["least"] == [-int("9" * 307), float("inf"), float("-inf")]
    assert str([float(each) for each in found["least"]]) == "[-1e+307, inf, -inf]"
    (tmp_path / "ours.json").write_text(f'{{"most": {none}}}')
    with pytest.raises(TapelessError, match="'most' holds a whole number that does not fit 64 bits"):
        read_json(tmp_path / "ours.json", 1 << 20)
    for text, reason in ((b'{"a": "\\ud800"}', "half a surrogate"), (b"[" * 66 + b"]" * 66, "nested too deeply")):
        with pytest.raises(ValueError, match=reason):
            parse_json(text, foreign=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"a = " + b"[" * 3000, "nested too deeply"),
        (b"a = " + b"[" * 90 + b"]" * 90, "nested too deeply"),
        (b"a = " + b"9" * 5000, "4300"),
        (b"a = " + b"9" * 400, "does not fit 64 bits"),
        (b"a = \xff", "not valid TOML"),
        (b"a = ", "not valid TOML"),
    ],
)
def test_toml_that_cannot_be_used(text, reason, tmp_path):
    (tmp_path / "x.toml").write_bytes(text)
    with pytest.raises(TapelessError, match=reason) as caught:
        read_toml(tmp_path / "x.toml")
    assert "x.toml is not valid TOML" in str(caught.value)


def test_toml_from_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "x.toml")
    with pytest.raises(TapelessError, match="is a pipe"):
        read_toml(tmp_path / "x.toml")
