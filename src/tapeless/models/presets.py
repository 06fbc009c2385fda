"""The presets: the founding systems and the GPT-2 family, by name."""

from __future__ import annotations

from tapeless.errors import unknown
from tapeless.models.config import Config


def _gpt2(name: str, layers: int, channels: int, heads: int, chunk: int = 128) -> Config:
    """128 rows of logits at a time are half the memory of 256, and as fast where the vocabulary is a small part."""
    return Config(name, layers, channels, heads, vocab=50257, context=1024, chunk=chunk)


PRESETS = {
    config.name: config
    for config in (
        # The teaching model: answers Max(1,6,2) with 6, from the last position.
        Config(
            "ops-102k",
            layers=2,
            channels=64,
            heads=4,
            vocab=20,
            context=8,
            norm="post",
            activation="relu",
            positions="sinusoidal",
            causal=False,
            tied=False,
            attention_bias=False,
            readout="last",
            initialisation="xavier",
            optimizer="adam",
        ),
        _gpt2("gpt2-4x256", layers=4, channels=256, heads=4, chunk=256),
        _gpt2("gpt2-124m", layers=12, channels=768, heads=12),
        _gpt2("gpt2-350m", layers=24, channels=1024, heads=16),
        _gpt2("gpt2-774m", layers=36, channels=1280, heads=20),
        _gpt2("gpt2-1558m", layers=48, channels=1600, heads=25),
        # Predicts in embedding space: squared error to the target's embedding, nearest embedding wins.
        Config(
            "cllm",
            layers=4,
            channels=128,
            heads=4,
            vocab=256,
            context=128,
            activation="tanh",
            loss="squared_error",
            optimizer="adam",
        ),
        # Labels a signal: 7 wavelet scales, real and imaginary part, two classes per position.
        Config(
            "sunfish",
            layers=4,
            channels=64,
            heads=4,
            vocab=2,
            context=512,
            norm="post",
            activation="relu",
            positions="sinusoidal",
            causal=False,
            tied=False,
            recompute=True,
            features=14,
            initialisation="xavier",
            optimizer="adam",
        ),
    )
}


def preset(name: str) -> Config:
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
