"""Adapters in the format of peft, in and out: adapter_config.json and adapter_model.safetensors.

peft has a matrix A (rank × inputs) and a B (outputs × rank) for each projection, named after the module that it adapts;
ours are their transposes, side by side where projections are packed. A folder comes from anywhere: all of it is checked
before it is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.files.disk import made_whole
from tapeless.files.safetensors import read_safetensors, write_safetensors
from tapeless.inputs import spelled
from tapeless.models.adapters import LORA_A, LORA_B, adapters_of, packed_weights
from tapeless.models.config import CHOICES, Architecture, Preset
from tapeless.ops.contract import Array
from tapeless.weights.family import Fields, flag, number, size
from tapeless.weights.hugging_face import TYPES, check_finite, check_fits, family_of, free_folder, write_json
from tapeless.weights.tensors import is_file, read_object, show

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
BASE = "tapeless.json"  # which weights it was trained on top of: peft does not ask
PREFIX = "base_model.model."
THEIRS = {LORA_A: "lora_A.weight", LORA_B: "lora_B.weight"}
# What makes it another computation, and where it must be for ours: missing, or one of these.
ABSENT: tuple[Any, ...] = (None, False, [], {}, "")
PLAIN = (
    "use_dora",
    "use_qalora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "lora_bias",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "target_parameters",
    "exclude_modules",
    "megatron_config",
)


@dataclass(frozen=True)
class Module:
    """A projection of ours as a module of theirs."""

    name: str  # "model.layers.0.self_attn.q_proj"
    weight: str  # of ours, which has its columns: "blocks.0.attn.qkv"
    projection: str  # "blocks.0.attn.q"
    inputs: int
    outputs: int


def is_adapter(folder: Path) -> bool:
    return is_file(folder / CONFIG)


def modules(c: Architecture) -> list[Module]:
    """From the first block to the last; in each weight from left to right."""
    family, found = family_of(c), []
    for n in range(c.layers):
        for name, packed in packed_weights(c).items():
            weight = f"blocks.{n}.{name}"
            theirs = family.their_names(c, f"{weight}.weight")
            for module, each in zip(theirs, packed.projections, strict=True):
                path = family.prefix + module.removesuffix(".weight")
                ours = f"blocks.{n}.{each.name}"
                found.append(Module(path, weight, ours, packed.inputs, each.stop - each.start))
    return found


def their_adapters(preset: Preset, params: Mapping[str, Array]) -> dict[str, Array]:
    """Our adapters as peft names and shapes them: views of ours."""
    found, placed = {}, _columns(preset)
    for module, (low, out) in placed.items():
        a, b = params[f"{module.weight}.{LORA_A}"], params[f"{module.weight}.{LORA_B}"]
        for end, matrix in ((LORA_A, a[:, low]), (LORA_B, b[:, out])):
            found[f"{PREFIX}{module.name}.{THEIRS[end]}"] = matrix.T
    return found


def _columns(preset: Preset) -> dict[Module, tuple[slice, slice]]:
    """Of each adapted module, its columns of lora_a and of lora_b."""
    adapters = adapters_of(preset)
    assert adapters is not None, "who asks has adapters"
    found: dict[Module, tuple[slice, slice]] = {}
    at: dict[str, tuple[int, int]] = {}
    for module in modules(preset.architecture):
        if module.projection in adapters.targets:
            low, out = at.get(module.weight, (0, 0))
            at[module.weight] = low + adapters.rank, out + module.outputs
            found[module] = slice(low, low + adapters.rank), slice(out, out + module.outputs)
    return found


def write_adapter(
    folder: Path, preset: Preset, params: Mapping[str, Array], base: str | None, dtype: str = "float32"
) -> None:
    """A folder that peft loads on top of the base that transformers loads. `base` is the SHA-256 of its weights."""
    if dtype not in TYPES:
        raise unknown("precision", dtype, TYPES)
    adapters, tensors = adapters_of(preset), their_adapters(preset, params)
    assert adapters is not None, "who asks has adapters"
    for name, array in tensors.items():
        check_fits(name, array, dtype)
    alpha = adapters.scale * adapters.rank
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": adapters.rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": preset.architecture.positions != "rotary",  # as GPT-2 stores its matrices
        "target_modules": their_targets(preset),
        "modules_to_save": None,
        "inference_mode": True,
    }
    with made_whole(free_folder(folder)) as beside:
        write_json(beside / CONFIG, described)
        write_safetensors(beside / TENSORS, tensors, dtype=TYPES[dtype], metadata={"format": "pt"})
        if base is not None:
            chosen = {"frozen_precision": preset.frozen_precision} if preset.frozen_precision else {}
            write_json(beside / BASE, {"base_sha256": base, **chosen})


def their_targets(preset: Preset) -> list[str]:
    """As short as they can be: peft adapts every module whose name ends so."""
    chosen = {module.name for module in _columns(preset)}
    everywhere = [module.name for module in modules(preset.architecture)]
    short = dict.fromkeys(".".join(name.split(".")[-2:]) for name in everywhere if name in chosen)
    if {name for name in everywhere if name.endswith(tuple(f".{end}" for end in short))} != chosen:
        return sorted(chosen)
    last = [end.rpartition(".")[2] for end in short]
    meant = {name for name in everywhere if name.rpartition(".")[2] in last}
    return last if meant == chosen and len({*last}) == len(last) else list(short)


@dataclass(frozen=True)
class Read:
    """An adapter: what a preset says of it, its weights by our names, and the SHA-256 of its base where it says so."""

    fields: dict[str, Any]
    weights: dict[str, Array]
    base: str | None


def read_adapter(folder: Path, preset: Preset) -> Read:
    """For a model of this preset, which has none yet."""
    rank, alpha = _described(folder / CONFIG, read_object(folder, CONFIG))
    path = folder / TENSORS
    if not is_file(path):
        raise TapelessError(f"there is no file {path}: give a folder as peft saves it, with safetensors.")
    stored = read_safetensors(path)
    known = {f"{PREFIX}{module.name}": module for module in modules(preset.architecture)}
    there = {key.removesuffix(f".{end}") for key in stored for end in THEIRS.values() if key.endswith(f".{end}")}
    strange = [
        key for key in stored if not key.endswith(tuple(THEIRS.values())) or key.rpartition(".lora_")[0] not in known
    ]
    if strange or not there:
        listed = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in known))
        what = f"{show(strange[0])}, which this model has no place for" if strange else "no adapter"
        raise TapelessError(
            f"{path} holds {what}: what can be adapted is {listed}, in {preset.architecture.layers} blocks."
        )
    targets = [module.projection for name, module in known.items() if name in there]
    for name in sorted(there):
        _check_pair(path, stored, name, known[name], rank)
    fields = {"lora": rank, "lora_alpha": alpha, "lora_targets": _short(preset, targets)}
    with_adapters = preset.override(**fields)
    weights: dict[str, Array] = {}
    for module, (low, out) in _columns(with_adapters).items():
        for end, columns in ((LORA_A, low), (LORA_B, out)):
            matrix = np.asarray(stored[f"{PREFIX}{module.name}.{THEIRS[end]}"]).astype(np.float32).T
            name = f"{module.weight}.{end}"
            before = weights.get(name, np.empty((len(matrix), 0), np.float32))
            assert before.shape[1] == columns.start, "columns come from left to right"
            weights[name] = np.concatenate([before, matrix], axis=1)
    base, held = _base(folder)
    return Read({**fields, "frozen_precision": held}, weights, base)


def _described(where: Path, fields: Fields) -> tuple[int, float]:
    """Rank and alpha, where the rest is what we compute."""
    if fields.get("peft_type") != "LORA":
        raise TapelessError(f"{where} has peft_type {show(fields.get('peft_type'))}: only LORA can be read.")
    for name in PLAIN:
        if fields.get(name) not in ABSENT:
            raise TapelessError(f"{where} has {name}={show(fields[name])}, which tapeless does not have.")
    if fields.get("bias", "none") != "none":
        raise TapelessError(f"{where} has bias={show(fields['bias'])}: only adapters without biases can be read.")
    rank = size(where, fields, "r")
    alpha = number(where, fields, "lora_alpha", None, below=float("inf"))
    if flag(where, {**fields, "use_rslora": fields.get("use_rslora") or False}, "use_rslora", False):
        alpha *= sqrt(rank)  # scaled by alpha / √rank
    return rank, alpha


def _check_pair(path: Path, stored: Mapping[str, Array], name: str, module: Module, rank: int) -> None:
    for end, shape in ((LORA_A, (rank, module.inputs)), (LORA_B, (module.outputs, rank))):
        key = f"{name}.{THEIRS[end]}"
        if key not in stored:
            raise TapelessError(f"{path} lacks {show(key)}: an adapter is a pair of matrices.")
        array = stored[key]
        if array.shape != shape:
            raise TapelessError(
                f"{path} has {show(key)} of shape {spelled(array.shape)}, but this base needs {spelled(shape)}: "
                f"the adapter is for another base, or of another rank than {CONFIG} says."
            )
        if array.dtype.kind != "f":
            raise TapelessError(f"{path} has {show(key)} as {array.dtype}: weights must be floating-point.")
        check_finite(f"{path} has {show(key)}", array, "<f4")


def _short(preset: Preset, targets: list[str]) -> tuple[str, ...]:
    """Projections by their short names, where all blocks have the same; none where all have all."""
    layers = preset.architecture.layers
    names = dict.fromkeys(target.split(".", 2)[2] for target in targets)
    everywhere = len(names) * layers == len(targets)
    if not everywhere:
        return tuple(targets)
    every = {each.name for packed in packed_weights(preset.architecture).values() for each in packed.projections}
    return () if every == {*names} else tuple(names)


def _base(folder: Path) -> tuple[str | None, str | None]:
    """Its SHA-256, and of which type its matrices were, where that was chosen."""
    if not is_file(folder / BASE):
        return None, None
    said = read_object(folder, BASE)
    found, held = said.get("base_sha256"), said.get("frozen_precision")
    if not isinstance(found, str):
        raise TapelessError(f"{folder / BASE} must name the base by its base_sha256, not {show(found)}.")
    if held is not None and held not in CHOICES["frozen_precision"]:
        known = " or ".join(CHOICES["frozen_precision"])
        raise TapelessError(f"{folder / BASE} must have the frozen_precision {known}, or none, not {show(held)}.")
    return found, held
