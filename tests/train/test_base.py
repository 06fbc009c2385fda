"""Runs that leave weights as they are: small checkpoints, one base beside them, and what happens without it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tapeless
from tapeless.backends.backend import backend_named
from tapeless.errors import TapelessError
from tapeless.files.safetensors import read_safetensors
from tapeless.models.adapters import merged
from tapeless.train.base import FILE
from tapeless.train.checkpoint import Checkpoint
from tapeless.train.find_rate import MemoryCheckpoint
from tapeless.train.run import open_run
from tapeless.train.session import Session, resume, start
from tapeless.train.settings import Request, Settings
from tests.train.following import kill

TINY: dict[str, Any] = {"layers": 1, "channels": 16, "heads": 2}


def walked(session: Session) -> Session:
    session.train()
    return session


def request(steps: int = 4, **fields: Any) -> Request:
    return Request("ops-102k", fields, Settings(data="operations", steps=steps, batch=8, save_every=2, lr=1e-2))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs") / "base"
    walked(start(request(**TINY), folder))
    return folder


def test_an_adapted_run_is_trained_stopped_resumed_moved_and_loaded(base: Path, tmp_path: Path) -> None:
    theirs = open_run(base)
    whole = walked(start(request(lora=2), tmp_path / "whole", base=theirs))
    half = start(request(lora=2), tmp_path / "half", base=theirs)
    kill(half, lambda event: half.last_saved == 2)
    shutil.move(tmp_path / "half", tmp_path / "moved")
    again = walked(resume(tmp_path / "moved", {}, {}))
    assert all(np.array_equal(again.model.params[name], weight) for name, weight in whole.model.params.items())

    found, _ = open_run(tmp_path / "moved").checkpoint("newest")
    assert set(found.tensors("weights")) == set(whole.model.grads)  # the base is not repeated
    loaded = tapeless.load(tmp_path / "moved", "newest")
    assert all(np.array_equal(loaded.model.params[name], weight) for name, weight in whole.model.params.items())
    before = tapeless.load(base).model
    assert all(np.array_equal(loaded.model.params[name], weight) for name, weight in before.params.items())
    assert loaded.save(tmp_path / "saved") == tmp_path / "saved"
    assert np.array_equal(tapeless.load(tmp_path / "saved").model.logits([[1] * 8]), loaded.model.logits([[1] * 8]))


def test_frozen_matrices_are_kept_as_they_were_trained_on(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16: half the file, and whatever reads the run, in whatever precision, sees the same numbers."""
    theirs = open_run(base)
    wide = walked(start(request(lora=2), tmp_path / "wide", base=theirs))
    asked = request(lora=2, frozen_precision="bfloat16")
    whole = walked(start(asked, tmp_path / "whole", base=theirs))
    half = start(asked, tmp_path / "half", base=theirs)
    kill(half, lambda event: half.last_saved == 2)
    again = walked(resume(tmp_path / "half", {}, {}))
    assert all(np.array_equal(again.model.read(name), values) for name, values in whole.model.weights().items())
    assert not np.array_equal(whole.model.read("head.weight"), wide.model.read("head.weight"))  # it was rounded

    stored = read_safetensors(tmp_path / "whole" / FILE)
    matrices = [each for each in whole.model.program.weights if each.role == "frozen"]
    assert matrices
    assert set(stored) == {each.name for each in whole.model.program.weights if each.kind == "frozen"}
    assert all(np.array_equal(stored[name], whole.model.read(name)) for name in stored)
    sizes = [(tmp_path / name / FILE).stat().st_size for name in ("wide", "whole")]
    assert abs(sizes[0] - sizes[1] - sum(2 * each.elements for each in matrices)) < 1000  # but for the header
    assert open_run(tmp_path / "whole").preset().frozen_precision == "bfloat16"

    loaded = tapeless.load(tmp_path / "whole", "newest")
    assert "on cpu in float32 with frozen matrices in bfloat16, batch 1" in repr(loaded)
    exact = tapeless.load(tmp_path / "whole", "newest", backend="reference", precision="float64")
    for name, values in whole.model.weights().items():
        assert np.array_equal(loaded.model.read(name), values)
        assert np.array_equal(exact.model.read(name), values)
    assert loaded.generate("Max(1,6,2)") == tapeless.load(tmp_path / "half", "newest").generate("Max(1,6,2)")
    reference: Any = type(backend_named("reference"))
    monkeypatch.setattr(reference, "traits", replace(reference.traits, mixed_gemm=False))  # as cuda's
    elsewhere = tapeless.load(tmp_path / "whole", "newest", backend="reference", precision="float32").model
    assert elsewhere.precision.frozen == "float32"
    assert all(np.array_equal(elsewhere.read(name), values) for name, values in whole.model.weights().items())
    with pytest.raises(TapelessError, match="take precision bfloat16 there"):  # there it cannot be trained on
        tapeless.load(tmp_path / "whole", "newest", backend="reference", precision="float32", optimizer="adamw")
    loaded.save(tmp_path / "saved")
    saved = tapeless.load(tmp_path / "saved").model
    assert all(np.array_equal(saved.read(name), values) for name, values in whole.model.weights().items())

    second = start(request(), tmp_path / "second", base=open_run(tmp_path / "whole"))
    second.run.release()
    assert second.model.preset.frozen_precision is None
    best, _, _ = open_run(tmp_path / "whole").model("best")
    folded = merged(best.preset, best.weights())  # into float32
    assert all(np.array_equal(second.model.read(name), values) for name, values in folded.items())
    with pytest.raises(TapelessError, match="frozen_precision cannot be changed in the middle of a run"):
        resume(tmp_path / "whole", {"frozen_precision": "float32"}, {"steps": 9})


def test_matrices_that_were_float32_can_be_read_in_bfloat16(base: Path, tmp_path: Path) -> None:
    """Whoever reads a run cannot leave out what its training was given."""
    start(request(lora=2, frozen_precision="float32"), tmp_path / "run", base=open_run(base)).run.release()
    loaded = tapeless.load(tmp_path / "run", "newest", backend="reference", precision="bfloat16")
    assert loaded.model.precision.described() == "bfloat16"


def test_a_run_that_starts_from_adapters_starts_from_what_they_make(base: Path, tmp_path: Path) -> None:
    first = walked(start(request(lora=2), tmp_path / "first", base=open_run(base)))
    best, _, _ = open_run(tmp_path / "first").model("best")
    second = start(request(train=("norms",)), tmp_path / "second", base=open_run(tmp_path / "first"))
    second.run.release()
    folded = merged(best.preset, best.weights())
    assert second.model.preset.lora is None
    assert all(np.array_equal(second.model.params[name], weight) for name, weight in folded.items())
    assert first.model.preset.lora == 2


def test_without_its_base_a_run_says_what_is_missing(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    walked(start(request(train=("head",)), folder, base=open_run(base)))
    content = (folder / FILE).read_bytes()
    (folder / FILE).unlink()
    with pytest.raises(TapelessError, match=r"base.safetensors cannot be read .*put it back \(SHA-256 [0-9a-f]{64}\)"):
        tapeless.load(folder)
    (folder / FILE).write_bytes(content[:-4] + b"\0\0\0\1")
    for opening in (lambda: tapeless.load(folder), lambda: resume(folder, {}, {"steps": 9})):
        with pytest.raises(TapelessError, match="is not what this run was trained on top of"):
            opening()
    (folder / FILE).write_bytes(content)
    assert tapeless.load(folder).step == 4


def test_adapters_need_a_model_to_adapt(base: Path, tmp_path: Path) -> None:
    with pytest.raises(TapelessError, match="name its run with --init-from"):
        start(request(lora=2, **TINY), tmp_path / "new")
    with pytest.raises(TapelessError, match="unknown target of LoRA 'q'"):
        start(request(lora=2, lora_targets=("q",)), tmp_path / "new", base=open_run(base))
    with pytest.raises(TapelessError, match="lora cannot be changed in the middle of a run"):
        resume(base, {"lora": 2}, {"steps": 9})
    assert not (tmp_path / "new").exists()


def test_a_rate_is_looked_for_with_adapters(base: Path, tmp_path: Path) -> None:
    """A checkpoint in memory has no base beside it, and needs none: what is frozen is there."""
    session = start(request(lora=2), tmp_path / "run", base=open_run(base))
    kept = MemoryCheckpoint(session.trainer)
    before = {name: array.copy() for name, array in session.model.weights().items()}
    session.trainer.batch()
    session.trainer.restore(cast(Checkpoint, kept))
    assert all(np.array_equal(array, before[name]) for name, array in session.model.weights().items())
    assert session.trainer.base == kept.state["base"]
    session.run.release()
