"""Random small models of every kind, with a batch each: the property tests of whole models draw from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tapeless.check.configurations import Configuration
from tapeless.model import Model
from tapeless.models import transformer
from tapeless.models.config import CHOICES
from tapeless.models.presets import PRESETS
from tapeless.ops.contract import Array

# A preset gives the family: pre-norm GPT, post-norm encoder, CLLM, and the encoder that reads features.
FAMILIES = ("gpt2-4x256", "ops-102k", "cllm", "sunfish")


@st.composite
def configurations(draw: st.DrawFn, /, family: str, **fixed: Any) -> Configuration:
    """A model of the family with every size and every choice drawn, but for what is fixed."""
    heads = draw(st.integers(1, 3))
    time = draw(st.integers(2, 6))
    features = draw(st.integers(1, 3)) if family == "sunfish" else 0
    fields: dict[str, Any] = {
        "layers": draw(st.integers(1, 3)),
        "channels": heads * draw(st.integers(3, 5)),  # a norm over two channels leaves nothing but signs
        "heads": heads,
        "vocab": draw(st.integers(3, 12)),
        "context": time + draw(st.integers(0, 2)),
        "hidden": draw(st.sampled_from([None, 3, 7])),
        "causal": draw(st.booleans()),
        "recompute": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        # Rotary ones want heads of even width and see where a key is moved to: they have configurations of their own.
        "positions": draw(st.sampled_from([each for each in CHOICES["positions"] if each != "rotary"])),
        "activation": draw(st.sampled_from(CHOICES["activation"])),
        "readout": draw(st.sampled_from(CHOICES["readout"])),
        "norm_eps": draw(st.sampled_from([1e-5, 1e-2])),
        "chunk": draw(st.integers(1, 5)),
        "features": features,
    }
    if not features and family != "cllm":
        fields["tied"] = draw(st.booleans())
    batch, seed = draw(st.integers(2, 4)), draw(st.integers(0, 10_000))
    return Configuration("random", family, fields | fixed, batch, time, seed)


@st.composite
def partly_frozen(draw: st.DrawFn, /, family: str) -> Configuration:
    """Any weights of it frozen, but not all; mostly whole blocks, as people do."""
    configuration = draw(configurations(family))
    config = PRESETS[family].override(**configuration.fields)
    names = [weight.name for weight in transformer.evaluation(config, 1, 1).weights]
    fronts = [name for name in names if not name.startswith("blocks.")]
    blocks = [f"blocks.{n}.*" for n in range(config.architecture.layers)]
    frozen = draw(st.lists(st.sampled_from([*fronts, *blocks, *names]), max_size=len(names), unique=True))
    while all(any(fnmatchcase(name, pattern) for pattern in frozen) for name in names):
        frozen = frozen[1:]
    return replace(configuration, fields={**configuration.fields, "frozen": tuple(frozen)})


def made(configuration: Configuration, **options: Any) -> tuple[Model, Array, Array]:
    """The model with random weights and a batch of its own, float64 on the reference unless told otherwise."""
    rng = np.random.default_rng(configuration.seed)
    model = Model(
        configuration.preset,
        batch=configuration.batch,
        time=configuration.time,
        **{"backend": "reference", "optimizer": None, **options},
        **configuration.fields,
    )
    inputs, targets = configuration.batch_of(rng, model)
    configuration.scramble(rng, model)
    return model, inputs.astype(model.precision.name) if model.config.features else inputs, targets


def copied(model: Model) -> dict[str, Array]:
    return {name: gradient.copy() for name, gradient in model.grads.items()}


def zeroed(model: Model, chosen: Callable[[str], bool]) -> None:
    for name, weight in model.params.items():
        if chosen(name):
            weight[...] = 0
