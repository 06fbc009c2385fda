"""The presets: the founding systems and the GPT-2 family, by name."""

from __future__ import annotations

from tapeless.errors import unknown
from tapeless.models.config import Architecture, Layout, Preset


def _gpt2(name: str, layers: int, channels: int, heads: int, chunk: int = 128) -> Preset:
    """128 rows of logits at a time are half the memory of 256, and as fast where the vocabulary is a small part."""
    shape = Architecture(layers=layers, channels=channels, heads=heads, vocab=50257, context=1024)
    return Preset(name, shape, Layout(chunk=chunk))


PRESETS = {
    preset.name: preset
    for preset in (
        # The teaching model: answers Max(1,6,2) with 6, from the last position.
        Preset(
            "ops-102k",
            Architecture(
                layers=2,
                channels=64,
                heads=4,
                vocab=20,
                context=8,
                placement="post",
                activation="relu",
                positions="sinusoidal",
                causal=False,
                tied=False,
                attention_bias=False,
                readout="last",
            ),
            initialisation="xavier",
            optimizer="adam",
        ),
        _gpt2("gpt2-4x256", layers=4, channels=256, heads=4, chunk=256),
        _gpt2("gpt2-124m", layers=12, channels=768, heads=12),
        _gpt2("gpt2-350m", layers=24, channels=1024, heads=16),
        _gpt2("gpt2-774m", layers=36, channels=1280, heads=20),
        _gpt2("gpt2-1558m", layers=48, channels=1600, heads=25),
        # Predicts in embedding space: squared error to the target's embedding, nearest embedding wins.
        Preset(
            "cllm",
            Architecture(
                layers=4, channels=128, heads=4, vocab=256, context=128, activation="tanh", loss="squared_error"
            ),
            optimizer="adam",
        ),
        # Labels a signal: 7 wavelet scales, real and imaginary part, two classes per position.
        Preset(
            "sunfish",
            Architecture(
                layers=4,
                channels=64,
                heads=4,
                vocab=2,
                context=512,
                placement="post",
                activation="relu",
                positions="sinusoidal",
                causal=False,
                tied=False,
                features=14,
            ),
            Layout(recompute=True),
            initialisation="xavier",
            optimizer="adam",
        ),
    )
}


def preset(name: str) -> Preset:
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
