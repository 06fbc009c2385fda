"""Small files, whole."""

import os
from errno import EIO, ENOSPC

import pytest

from tapeless.files import disk
from tests.files.refused import refusal


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
    assert [each.name for each in tmp_path.iterdir()] == ["best.json"]
    disk.write_whole(path, b"new")
    assert path.read_bytes() == b"new"
