"""The presets: the founding systems, the GPT-2 family and today's models, by name."""

from __future__ import annotations

from typing import Any

from tapeless.errors import unknown
from tapeless.models.config import Architecture, Layout, Preset


def _gpt2(name: str, layers: int, channels: int, heads: int) -> Preset:
    return Preset(name, Architecture(layers=layers, channels=channels, heads=heads, vocab=50257, context=1024))


def _llama(name: str, layers: int, channels: int, heads: int, kv_heads: int, hidden: int, **others: Any) -> Preset:
    """What Llama, Qwen, Mistral and SmolLM have in common: RMSNorm, rotary positions, SwiGLU, and no biases."""
    common: dict[str, Any] = {"norm_kind": "rmsnorm", "positions": "rotary", "activation": "swiglu"}
    common |= {"attention_bias": False, "mlp_bias": False}
    shape = {"layers": layers, "channels": channels, "heads": heads, "kv_heads": kv_heads, "hidden": hidden}
    return Preset(name, Architecture(**{**shape, **common, **others}))


def _qwen(name: str, layers: int, channels: int, heads: int, kv_heads: int, hidden: int, **others: Any) -> Preset:
    common: dict[str, Any] = {"vocab": 151_936, "norm_eps": 1e-6, "rope_base": 1_000_000.0}
    return _llama(name, layers, channels, heads, kv_heads, hidden, **common, **others)


def _encoder(name: str, *, recompute: bool = False, optimizer: str = "adamw", **sizes: Any) -> Preset:
    """What the founding systems have in common: post-norm, ReLU, sinusoids, and no mask."""
    common: dict[str, Any] = {"placement": "post", "activation": "relu", "positions": "sinusoidal"}
    architecture = Architecture(channels=64, heads=4, causal=False, tied=False, **common, **sizes)
    return Preset(name, architecture, Layout(recompute=recompute), initialisation="xavier", optimizer=optimizer)


PRESETS = {
    preset.name: preset
    for preset in (
        # The teaching model: answers Max(1,6,2) with 6, from the last position.
        _encoder("ops-102k", layers=2, vocab=20, context=8, attention_bias=False, readout="last"),
        _gpt2("gpt2-4x256", layers=4, channels=256, heads=4),
        _gpt2("gpt2-124m", layers=12, channels=768, heads=12),
        _gpt2("gpt2-350m", layers=24, channels=1024, heads=16),
        _gpt2("gpt2-774m", layers=36, channels=1280, heads=20),
        _gpt2("gpt2-1558m", layers=48, channels=1600, heads=25),
        # A small one for lessons and tests, and published ones with the sizes and numbers they were published with.
        _llama("llama-4x256", 4, 256, heads=4, kv_heads=2, hidden=688, vocab=50257, context=1024),
        _llama(
            "smollm2-135m", 30, 576, heads=9, kv_heads=3, hidden=1536, vocab=49152, context=8192, rope_base=100_000.0
        ),
        _qwen("qwen2.5-0.5b", 24, 896, 14, 2, 4864, context=32_768, attention_bias=True, projection_bias=False),
        _qwen("qwen3-0.6b", 28, 1024, 16, 8, 3072, context=40_960, head_width=128, query_key_norm=True),
        _llama(
            "llama-3.2-1b",
            16,
            2048,
            heads=32,
            kv_heads=8,
            hidden=8192,
            vocab=128_256,
            context=131_072,
            rope_base=500_000.0,
            rope_scaling="llama3",
            rope_factor=32.0,
        ),
        # Predicts in embedding space: squared error to the target's embedding, nearest embedding wins.
        Preset(
            "cllm",
            Architecture(
                layers=4, channels=128, heads=4, vocab=256, context=128, activation="tanh", loss="squared_error"
            ),
            optimizer="adam",
        ),
        # Labels a signal: 7 wavelet scales, real and imaginary part, two classes per position.
        _encoder("sunfish", layers=4, vocab=2, context=512, features=14, recompute=True, optimizer="adam"),
    )
}


def preset(name: str) -> Preset:
    if not isinstance(name, str) or name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
