"""Tiny runs of every kind that people train, made once for all the tests that look at them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapeless.labelling.run import start as start_labelling
from tapeless.labelling.signal import SCALES
from tapeless.labelling.source import make_source
from tapeless.train.run import making, open_run
from tapeless.train.session import start
from tapeless.train.settings import Request, Settings

TEXT = Path(__file__).parents[2] / "docs" / "training.md"
# On the reference, so that no kernel is compiled for them; what pages show of a backend the other runs have.
REPORTS: dict[str, Any] = {"eval_every": 4, "log_every": 1, "record": 1, "backend": "reference"}


def finished(session, folder):
    session.train()
    return folder


@pytest.fixture(scope="session")
def kinds(tmp_path_factory):
    """Text by GPT-2 and, in bfloat16, by Llama; conversations that share rows, by adapters on the second; labels."""
    parent = tmp_path_factory.mktemp("kinds")
    data, chats, signal, labels = (parent / name for name in ("text.txt", "chats.jsonl", "signal.npy", "labels.npy"))
    data.write_bytes(TEXT.read_bytes()[:12_000])
    rows = [{"prompt": f"Say {word * 3}.", "completion": f"{word}!"} for word in "abcdefghijklmnopqrstuvwxyz"]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tone = np.random.default_rng(0).normal(size=2000)
    np.save(signal, tone)
    np.save(labels, (tone > 0).astype(np.int16))
    small: dict[str, Any] = {"layers": 2, "channels": 16, "heads": 2}
    text: dict[str, Any] = {"data": str(data), "batch": 2, "time": 72, "steps": 8, "lr": 1e-2, **REPORTS}
    gpt2 = start(Request("gpt2-4x256", small, Settings(**text)), parent / "gpt2")
    shape = {**small, "kv_heads": 1, "hidden": 24}
    llama = start(Request("llama-4x256", shape, Settings(**text, precision="bfloat16")), parent / "llama")
    found = {"gpt2": finished(gpt2, parent / "gpt2"), "llama": finished(llama, parent / "llama")}
    spoken = Settings(data=str(chats), batch=2, time=72, steps=4, lr=1e-2, **REPORTS)
    chat = start(Request("llama-4x256", {"lora": 2}, spoken), parent / "chat", base=open_run(found["llama"]))
    found["chat"] = finished(chat, parent / "chat")
    source = make_source(fasta=None, gff=None, feature=None, held_out=(), signal=signal, labels=labels, scales=SCALES)
    with making(parent / "labels") as made:
        label = start_labelling(made, source, Settings(time=32, batch=4, steps=4, **REPORTS), small)
    return {**found, "labels": finished(label, parent / "labels")}
