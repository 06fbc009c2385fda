"""Which GEMM a training has: measured once, kept, and no error stops a training."""

import pytest

from tapeless.errors import TapelessError
from tapeless.kernels.cpu import dispatch, gemm_race
from tapeless.kernels.cpu.gemm_race import FasterGemm, faster_gemm


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The file, in a home of its own, beside an MKL that is there or not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "deep" / "cache"))
    monkeypatch.setattr(dispatch, "mkl", lambda: object())
    monkeypatch.setattr(dispatch, "gemm_version", lambda: "MKL 1")
    monkeypatch.setattr(dispatch, "threads", lambda: 2)
    return tmp_path / "deep" / "cache" / "tapeless" / "products.json"


@pytest.fixture
def measured(monkeypatch):
    """Shares that measurements find, in turn; those that are left were not asked for."""
    shares = [0.8, 0.99, 1.3]
    monkeypatch.setattr(gemm_race, "_measured", lambda: shares.pop(0))
    return shares


def test_it_is_measured_once_for_a_number_of_threads(kept, measured, monkeypatch):
    assert [faster_gemm() for _ in range(2)] == [FasterGemm("own", 0.8)] * 2
    monkeypatch.setattr(dispatch, "threads", lambda: 64)
    assert [faster_gemm() for _ in range(2)] == [FasterGemm("mkl", 0.99)] * 2  # not far enough ahead
    assert len(measured) == 1


@pytest.mark.parametrize(
    "damage", ["", "[]", "{", '{"x": 1', "\0", '{"KEY": "fast"}', '{"KEY": -1.0}', '{"KEY": true}']
)
def test_a_damaged_file_is_measured_anew(damage, kept, measured):
    faster_gemm()
    (key,) = gemm_race._kept()
    kept.write_text(damage.replace("KEY", key))
    assert faster_gemm() == FasterGemm("mkl", 0.99)
    assert faster_gemm() == FasterGemm("mkl", 0.99)


def test_two_that_measure_at_once_have_the_same(kept, monkeypatch):
    def meanwhile():
        monkeypatch.setattr(gemm_race, "_measured", lambda: 1.3)
        assert faster_gemm() == FasterGemm("mkl", 1.3)
        return 0.8

    monkeypatch.setattr(gemm_race, "_measured", meanwhile)
    assert faster_gemm() == FasterGemm("mkl", 1.3)


def test_a_folder_that_cannot_be_written_is_no_error(kept, measured):
    kept.parent.parent.parent.mkdir()
    kept.parent.parent.write_text("a file where the folder would be")
    assert faster_gemm() == FasterGemm("own", 0.8)
    assert faster_gemm() == FasterGemm("mkl", 0.99)


def test_nothing_is_measured_where_there_is_no_choice(kept, measured, monkeypatch):
    with dispatch.using_gemm_library("own"):
        assert faster_gemm() == FasterGemm("own", 1.0)
    monkeypatch.setattr(dispatch, "mkl", lambda: None)
    assert faster_gemm() == FasterGemm("own", 1.0)
    assert len(measured) == 3


def test_measuring_leaves_what_was_chosen():
    if dispatch.mkl() is None:
        with pytest.raises(TapelessError, match="not installed"):
            gemm_race._measured()
    else:
        before = dispatch.chosen()
        assert 0.05 < gemm_race._measured() < 20
        assert dispatch.chosen() is before


def test_a_clear_answer_takes_three_turns():
    assert not any(map(gemm_race._clear, ([], [0.5, 0.5], [0.5, 0.5, 0.9], [0.98, 1.2, 1.2], [0.86, 1.08, 0.9])))
    assert all(map(gemm_race._clear, ([0.5, 0.6, 0.5], [1.2, 1.3, 1.1])))
