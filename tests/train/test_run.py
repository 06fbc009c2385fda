"""What a run's folder tells of itself."""

from __future__ import annotations

import pytest

from tapeless.train.run import open_run
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings

TEXT = Settings(data="text.txt", batch=3, time=16, steps=2, eval_batches=1)
TINY = {"layers": 1, "channels": 16, "heads": 2}


@pytest.mark.parametrize(
    "request_made",
    [
        Request("gpt2-4x256", TINY, TEXT),
        Request("gpt2-4x256", {**TINY, "context": 40, "optimizer": "momentum"}, TEXT),
        Request("ops-102k", {"layers": 1}, Settings(data="operations", batch=5, steps=2)),
    ],
    ids=["text", "longer context", "operations"],
)
def test_a_program_comes_from_a_run_and_allocates_nothing(request_made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 60)
    session = start(request_made, tmp_path / "run")
    trained = session.trainer.model.program
    session.run.release()
    monkeypatch.setattr("tapeless.backends.engine.Arena.__init__", lambda *given: pytest.fail("made an arena"))
    found = open_run(tmp_path / "run").spec().program()
    assert [call.arguments for call in found.calls] == [call.arguments for call in trained.calls]
    assert [call.scalars for call in found.calls] == [call.scalars for call in trained.calls]
    assert found.buffers == trained.buffers
    assert found.partners == trained.partners
