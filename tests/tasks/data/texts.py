"""Texts and tokenizers that several tests use."""

import json
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tapeless.tasks.data.tokenizer import train_bpe

WORDS = ["alpha", "beta", "größe", "naïve", "日本語", "€5", "x_1", "def", "return", "🎉", "  ", "\t", "1234"]


def text(lines: int, seed: int = 0) -> str:
    chosen = random.Random(seed)
    return "".join(" ".join(chosen.choices(WORDS, k=chosen.randint(0, 9))) + "\n" for _ in range(lines))


@cache
def small_bpe():
    return train_bpe(iter([text(200)]), 320)


@cache
def small_bpe_json() -> str:
    with TemporaryDirectory() as folder:
        small_bpe().save(Path(folder))
        return (Path(folder) / "tokenizer.json").read_text(encoding="utf-8")


def description() -> dict:
    content: dict = json.loads(small_bpe_json())
    return content
