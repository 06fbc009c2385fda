"""The models that `tapeless check` goes through: small versions of every preset in which nothing hides a mistake.

Batch, time, heads and layers are all above 1, tokens repeat, some targets are −1, every weight is random (norm
weights away from 1, biases away from 0), and the rows of logits do not divide into whole chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import Packed
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.config import Preset
from tapeless.models.initialise import Constant
from tapeless.models.learning import check_trained
from tapeless.models.presets import PRESETS
from tapeless.ops.contract import Array

CLASSES = (0.3, 2.0, 1.0, 0.7, 5.0, 1.1, 0.2)  # weights of as many words as there are
SMALL = {"layers": 2, "channels": 6, "heads": 2, "vocab": 7, "context": 5, "hidden": 5, "chunk": 3}


@dataclass(frozen=True)
class Configuration:
    name: str
    preset: str | Preset
    fields: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 2
    time: int = 4
    seed: int = 1
    spread: float = 0.5  # of the random weights
    documents: tuple[int, ...] = ()  # lengths of those that share a row; later rows have them the other way round

    def model(self, precision: str) -> Model:
        return Model(
            self.preset,
            batch=self.batch,
            time=self.time,
            precision=precision,
            backend="reference",
            optimizer=None,
            seed=self.seed,
            **self.fields,
        )

    def scramble(self, rng: np.random.Generator, model: Model) -> None:
        """No weight keeps a value, like a norm's 1 or a bias's 0, behind which a mistake could hide."""
        for weight in model.program.weights:
            centre = 1.3 if isinstance(weight.initial, Constant) and weight.initial.value else 0.0
            model.write(weight.name, rng.normal(centre, self.spread, weight.shape))

    def batch_of(self, rng: np.random.Generator, model: Model) -> tuple[Any, Array]:
        """Inputs with a repeated token, and targets of which some are ignored."""
        config, shape = model.config, (self.batch, self.time)
        inputs: Array = rng.integers(0, config.vocab, shape)
        inputs[0, :2] = inputs[1:2, 0] = config.vocab - 1
        if config.features:
            inputs = rng.normal(size=(*shape, config.features))
        wanted = (self.batch,) if config.readout == "last" else shape
        targets = rng.integers(0, config.vocab, wanted)
        targets.reshape(-1)[1::3] = -1
        if self.documents:
            numbers = np.arange(len(self.documents))
            rows = [np.repeat(numbers, self.documents[:: 1 if row == 0 else -1]) for row in range(self.batch)]
            return Packed(inputs, np.array(rows)), targets
        return inputs, targets


def small(name: str | Preset, **changes: Any) -> Mapping[str, Any]:
    """A preset's fields made small; its kind of norm, activation, positions, mask and head stay, and how its heads are
    shared and whether they have a width of their own."""
    c = (name if isinstance(name, Preset) else PRESETS[name]).architecture
    fields: dict[str, Any] = dict(SMALL) | ({"features": 3} if c.features else {})
    if c.positions == "rotary":  # heads of an even width, all of whose angles differ, and eps and scaling that show
        fields |= {"channels": 8, "heads": 4, "head_width": 6 if c.head_width else None, "rope_base": 50.0}
        fields |= {"kv_heads": 2, "norm_eps": 0.01, "rope_old_context": 20}
    return fields | changes


def _variant(label: str, name: str, chunk: int = 4, documents: tuple[int, ...] = (), **changes: Any) -> Configuration:
    """15 rows of logits in chunks of 4; where only the last position is read, 3 rows in chunks of 2."""
    chunk = 2 if (changes.get("readout") or PRESETS[name].architecture.readout) == "last" else chunk
    fields = small(name, chunk=chunk, **changes)
    return Configuration(f"{name} {label}", name, fields, batch=3, time=5, documents=documents)


FRONT = ("tokens.*", "positions.*")

CONFIGURATIONS = (
    *(Configuration(name, name, small(name), seed=10 * n) for n, name in enumerate(PRESETS)),
    _variant("untied", "gpt2-4x256", tied=False),
    _variant("recomputed", "gpt2-4x256", recompute=True),
    _variant("lean, norms kept", "gpt2-4x256", lean=True, keep_norms=True),
    _variant("three heads", "gpt2-4x256", channels=9, heads=3, hidden=7),
    _variant("bidirectional", "gpt2-4x256", causal=False),
    _variant("sinusoidal", "gpt2-4x256", positions="sinusoidal"),
    _variant("relu", "gpt2-4x256", activation="relu"),
    _variant("tanh", "gpt2-4x256", activation="tanh"),
    _variant("post-norm", "gpt2-4x256", placement="post"),
    _variant("post-norm recomputed", "gpt2-4x256", placement="post", recompute=True),
    _variant("read at the end", "gpt2-4x256", readout="last"),
    _variant("without attention bias", "gpt2-4x256", attention_bias=False, tied=False),
    _variant("three layers", "gpt2-4x256", layers=3, chunk=7),
    _variant("large eps", "gpt2-4x256", norm_eps=0.1),
    _variant("read everywhere", "ops-102k", readout="all"),
    _variant("pre-norm gelu", "ops-102k", placement="pre", activation="gelu"),
    _variant("tied and learned", "ops-102k", tied=True, positions="learned"),
    _variant("causal", "ops-102k", causal=True, recompute=True),
    _variant("odd channels", "ops-102k", channels=9, heads=3),
    _variant("post-norm", "cllm", placement="post"),
    _variant("read at the end", "cllm", readout="last", recompute=True),
    _variant("not recomputed", "sunfish", recompute=False),
    _variant("learned positions", "sunfish", positions="learned", causal=True),
    _variant("pre-norm", "sunfish", placement="pre", activation="tanh"),
    _variant("class weights", "sunfish", class_weights=CLASSES),
    _variant("all but the last block frozen", "gpt2-4x256", frozen=(*FRONT, "blocks.0.*", "norm.*")),
    _variant("all but the last block frozen", "ops-102k", frozen=(*FRONT[:1], "blocks.0.*", "head.*")),
    _variant("only norms trained", "gpt2-4x256", recompute=True, frozen=(*FRONT, "blocks.*.attn.*", "blocks.*.mlp.*")),
    _variant("only biases and the head trained", "sunfish", frozen=("blocks.*.weight", "input.weight")),
    _variant("dropout", "gpt2-4x256", dropout=0.3),
    _variant("dropout, recomputed", "gpt2-4x256", dropout=0.3, recompute=True),
    _variant("dropout, read at the end", "gpt2-4x256", dropout=0.3, readout="last"),
    _variant("dropout, only norms trained", "gpt2-4x256", dropout=0.3, frozen=(*FRONT, "blocks.*.[am]*")),
    _variant("dropout", "ops-102k", dropout=0.3),
    _variant("dropout, recomputed", "ops-102k", dropout=0.3, recompute=True, readout="all"),
    _variant("dropout", "cllm", dropout=0.3),
    _variant("dropout", "sunfish", dropout=0.3),
    _variant("one head of keys", "llama-4x256", kv_heads=1),
    _variant("as many heads of keys", "llama-4x256", kv_heads=4, tied=False),
    _variant("window", "llama-4x256", window=3),
    _variant("short window", "llama-4x256", window=2, recompute=True),
    _variant("documents", "llama-4x256", documents=(2, 1, 2)),
    _variant("documents and a window", "llama-4x256", documents=(4, 1), window=2, recompute=True, kv_heads=1),
    _variant("linear scaling", "llama-4x256", rope_scaling="linear", rope_factor=3.0),
    _variant("all biases", "llama-4x256", attention_bias=True, mlp_bias=True, head_width=4),
    _variant("bidirectional", "llama-4x256", causal=False, placement="post"),
    _variant("read at the end", "llama-4x256", readout="last", query_key_norm=True),
    _variant("LayerNorm and GELU", "llama-4x256", norm_kind="layernorm", activation="gelu"),
    _variant("untied, documents, recomputed", "qwen3-0.6b", tied=False, documents=(2, 3), recompute=True),
    _variant("without norms of queries", "qwen3-0.6b", query_key_norm=False, kv_heads=4),
    _variant("learned positions", "qwen3-0.6b", positions="learned"),
    _variant("untied", "llama-3.2-1b", tied=False, documents=(1, 3, 1)),
    _variant("all but the last block frozen", "llama-4x256", frozen=(*FRONT[:1], "blocks.0.*", "norm.*"), tied=False),
    _variant("only norms trained", "qwen3-0.6b", frozen=(*FRONT[:1], "blocks.*.proj.*", "blocks.*.qkv.*", "*.mlp.*")),
    _variant(
        "only the norm of queries trained",
        "qwen3-0.6b",
        frozen=("*.mlp.*", "*norm[12].*", "*.k_norm.*", "*.qkv.*", "*.proj.*"),
        documents=(3, 2),
    ),
    _variant("LoRA", "gpt2-4x256", lora=2),
    _variant("LoRA, recomputed", "gpt2-4x256", lora=3, lora_alpha=2.0, recompute=True),
    _variant("LoRA, read at the end", "gpt2-4x256", lora=2, readout="last", tied=False),
    _variant("LoRA on qkv, dropout", "gpt2-4x256", lora=1, lora_targets=("qkv",), dropout=0.3),
    _variant("LoRA on proj and down, post-norm", "gpt2-4x256", lora=2, lora_targets=("proj", "down"), placement="post"),
    _variant("LoRA", "llama-4x256", lora=2, lora_alpha=3.0, documents=(2, 1, 2)),
    _variant("LoRA, one head of keys", "llama-4x256", lora=1, kv_heads=1, recompute=True),
    _variant("LoRA on q and v", "llama-4x256", lora=2, lora_targets=("q", "v"), tied=False),
    _variant("LoRA on k alone", "llama-4x256", lora=1, lora_targets=("k",), window=3),
    _variant("LoRA on up, in the last block", "llama-4x256", lora=2, lora_targets=("blocks.1.mlp.up",)),
    _variant(
        "LoRA, normed queries, read at the end",
        "llama-4x256",
        lora=2,
        readout="last",
        query_key_norm=True,
        head_width=4,
    ),
    _variant(
        "LoRA on q, v and down, norms trained", "qwen3-0.6b", lora=2, lora_targets=("q", "v", "down"), train=("norms",)
    ),
    _variant("LoRA, some of it frozen", "qwen3-0.6b", lora=2, frozen=("*.0.attn.*lora_a", "*.1.mlp.*lora_b")),
    _variant("LoRA", "ops-102k", lora=2),
    _variant("norms alone", "llama-4x256", train=("norms",), documents=(3, 2)),
    _variant("the last block and the head alone", "gpt2-4x256", train=("blocks.1", "head"), tied=False),
    _variant("the last block and the tied head", "gpt2-4x256", train=("blocks.1", "head")),
    _variant("biases and one matrix alone", "gpt2-4x256", train=("biases", "blocks.0.mlp.down"), recompute=True),
    _variant("LoRA on bfloat16", "llama-4x256", lora=2, frozen_precision="bfloat16", documents=(2, 3)),
    _variant("LoRA on bfloat16, recomputed", "cllm", lora=2, frozen_precision="bfloat16", recompute=True),
    _variant("the last block alone, on bfloat16", "gpt2-4x256", train=("blocks.1",), frozen_precision="bfloat16"),
    _variant("class weights, read at the end", "ops-102k", class_weights=CLASSES),
)

WEIGHTED: dict[str, Any] = {"layers": 1, "vocab": 1200, "channels": 32, "heads": 2}
WEIGHTED["class_weights"] = tuple(1 + (word % 7) / 3 for word in range(1200))
# Shapes at which a fast backend cuts strips, chunks and blocks, uses threads, and holds the vocabulary transposed.
LARGER = (
    Configuration("ops-102k as it is", "ops-102k", {}, 32, 8),
    Configuration("gpt2-4x256 long", "gpt2-4x256", {"layers": 1, "channels": 64, "vocab": 1500}, 2, 197),
    Configuration("gpt2-4x256 wide", "gpt2-4x256", {"layers": 1, "heads": 8, "vocab": 1031, "chunk": 50}, 3, 70),
    Configuration("sunfish long", "sunfish", {"class_weights": (0.2, 1.8)}, 2, 150),
    Configuration("gpt2-4x256 weighted", "gpt2-4x256", WEIGHTED, 2, 40),
    Configuration("gpt2-4x256 dropped", "gpt2-4x256", {"layers": 1, "vocab": 300, "dropout": 0.1}, 3, 130),
    Configuration("llama-4x256 long", "llama-4x256", {"layers": 1, "vocab": 1500}, 2, 197, documents=(80, 3, 114)),
    Configuration(
        "llama-4x256 wider window", "llama-4x256", {"layers": 1, "vocab": 700, "window": 50, "heads": 8}, 2, 150
    ),
    Configuration(
        "qwen3-0.6b narrow",
        "qwen3-0.6b",
        {"layers": 1, "channels": 128, "heads": 4, "kv_heads": 2, "hidden": 300, "vocab": 900, "head_width": 48},
        3,
        70,
    ),
    Configuration("llama-4x256 adapted", "llama-4x256", {"layers": 2, "vocab": 700, "lora": 8}, 2, 150),
    Configuration("gpt2-4x256 adapted", "gpt2-4x256", {"layers": 2, "vocab": 700, "lora": 5, "lora_alpha": 7}, 3, 90),
    Configuration(
        "gpt2-4x256 adapted on bfloat16",
        "gpt2-4x256",
        {"layers": 1, "vocab": 1500, "lora": 4, "frozen_precision": "bfloat16"},
        3,
        90,
    ),
    Configuration("cllm long", "cllm", {"context": 200}, 2, 130),
    Configuration("gpt2-4x256 as it is", "gpt2-4x256", {"vocab": 5003}, 2, 64),
)


def configurations_of(name: str) -> tuple[Configuration, ...]:
    return tuple(configuration for configuration in CONFIGURATIONS if configuration.preset == name)


def full_size(name: str, preset: Preset | None = None) -> Configuration:
    """The preset as it is, on a short batch, for the fast mode; or a model of somebody's own."""
    time = min(8, (preset or PRESETS[name]).architecture.context)
    return Configuration(f"{name} at full size", preset or name, batch=2, time=time, spread=0.05)


def made_small(name: str, preset: Preset, weighted: bool = False) -> Configuration:
    """Of a model of somebody's own. What it freezes, trains and adapts is so here as far as the few layers have it;
    where none of that is left, all is trained, or adapted."""
    fields = dict(small(preset, chunk=2 if preset.architecture.readout == "last" else 4))
    named = ("lora_targets", "train", "frozen")
    fields |= {"frozen_precision": None, **dict.fromkeys(named, ())}
    if preset.lora is not None:
        fields["lora"] = min(preset.lora, 2)
    for chosen in named:
        kept = tuple(
            each for each in getattr(preset, chosen) if _possible(preset.override(**fields | {chosen: (each,)}))
        )
        fields[chosen] = kept if _possible(preset.override(**fields | {chosen: kept})) else ()
    held = {"frozen_precision": preset.frozen_precision}
    fields |= held if _possible(preset.override(**fields | held)) else {}
    classes = {"class_weights": CLASSES} if weighted else {}
    return Configuration(f"{name} made small", preset, fields | classes, batch=3, time=5)


def _possible(preset: Preset) -> bool:
    try:
        check_trained(preset, transformer.evaluation(preset, 1, 1).weights)
    except TapelessError:
        return False
    return True
