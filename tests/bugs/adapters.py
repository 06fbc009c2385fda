"""Bugs of adapters (LoRA), and of what is frozen beneath them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tapeless.models import decoding, parts
from tapeless.models.parts import affine
from tapeless.models.parts.affine import Adapter
from tapeless.ops import OPS
from tapeless.ops.contract import NONE
from tapeless.program.builder import Builder
from tapeless.program.call import gradient_name, write
from tests.bugs.planting import Bug, Values, around, backward, call, forward, overwriting, together


def _overwriting_forward(right: Any, *args: Any, add: frozenset[str] = NONE) -> None:
    right(*args, **({"add": add - {"y"}} if add - {"y"} else {}))


def _weight_of(values: Values) -> str:
    return str(values["weight"].buffer.name)


def _dx_of_the_matrix_alone(values: Values) -> Values | None:
    """The adapter's part is left out, and the frozen matrix's is written in its place."""
    if _weight_of(values).endswith(".lora_a"):
        return values | {"dx": None}
    if values["weight"].buffer.kind == "frozen" and values["dx"]:
        return values | {"dx": write(values["dx"].view)}
    return values


def _adapter_forgotten(values: Values) -> Values | None:
    return None if _weight_of(values).endswith(".lora_a") else _dx_of_the_matrix_alone(values)


def _also_of_frozen(right: Any, self: Builder, weight: Any) -> Any:
    """As where `requires_grad` is left on: the largest products of the backward, for nothing."""
    if weight.kind == "frozen" and weight.name.startswith("blocks.") and len(weight.shape) == 2:
        return self.workspace(gradient_name(weight.name), *weight.shape)
    return right(self, weight)


def _for_nothing(values: Values) -> Values:
    dweight = values["dweight"]
    return values | {"dweight": write(dweight.view)} if dweight and dweight.view.buffer.kind == "workspace" else values


def _not_divided_by_rank(right: Any, preset: Any) -> Any:
    found = right(preset)
    return found and replace(found, scale=found.scale * found.rank)


def _as_the_other_way_round(right: Any, *args: Any) -> Any:
    """The rows of low that belong to q, k and v, from the last to the first."""
    adapter = right(*args)
    if adapter is None:
        return None
    lows = [each.low for each in reversed(adapter.parts)]
    return replace(adapter, parts=tuple(p._replace(low=low) for p, low in zip(adapter.parts, lows, strict=True)))


def _first_columns(right: Any, self: Adapter, start: int, stop: int, name: str) -> Any:
    """Of a cut through a product the columns of B from the beginning, wherever the cut is."""
    found = right(self, start, stop, name)
    if found is None:
        return None
    parts = [p._replace(b=(0, p.b[1] - p.b[0])) for p in found.parts]
    return replace(found, parts=tuple(parts))


def _without_adapters(right: Any, p: Builder, preset: Any, *args: Any, **how: Any) -> Any:
    return right(p, preset.override(lora=None, lora_alpha=None, lora_targets=()), *args, **how)


BUGS = (
    Bug(
        "adapter-scale-forgotten-in-backward",
        "adapt",
        "The forward scales by alpha / rank, the gradient of x @ A does not.",
        "A learns at another rate than B; Adam hides it.",
        backward("adapt", dlow=lambda a: a.dy @ a.weight.T),
    ),
    Bug(
        "adapter-scale-forgotten-for-b",
        "adapt",
        "The gradient of B lacks the scale.",
        "B learns at another rate than A; Adam hides it.",
        backward("adapt", dweight=lambda a: a.low.T @ a.dy),
    ),
    Bug(
        "adapter-scale-squared",
        "adapt",
        "Both factors of B's gradient were scaled: x @ A on its way forward, and once more on its way back.",
        "None at alpha = rank.",
        backward("adapt", dweight=lambda a: a.scale**2 * (a.low.T @ a.dy)),
    ),
    Bug(
        "adapter-not-scaled",
        "adapt",
        "The forward adds x @ A @ B as it is, and the backward scales.",
        "Trains; adapters that were trained elsewhere work by half.",
        forward("adapt", y=lambda a: a.low @ a.weight),
    ),
    Bug(
        "adapter-b-not-transposed",
        "adapt",
        "dlow = dy @ B, with B's memory read as if it were Bᵀ.",
        "A learns nonsense; B, and with it the loss, gets along.",
        backward("adapt", dlow=lambda a: a.scale * (a.dy @ a.weight.reshape(a.weight.shape[::-1]))),
    ),
    Bug(
        "adapter-in-the-place-of-what-it-adapts",
        "adapt",
        "The low-rank product is written over the frozen matrix's instead of added to it.",
        "The model begins as noise: B is 0, and so is every projection.",
        around(OPS["adapt"], "forward", _overwriting_forward),
    ),
    Bug(
        "adapter-b-gradient-overwritten",
        "adapt",
        "B's gradient is written instead of added to.",
        "With gradient accumulation only the last batch counts.",
        overwriting("adapt", "dweight"),
    ),
    Bug(
        "adapter-scale-of-another-call",
        "adapt in affine",
        "The backward call is given a scale of 1.",
        "A and B learn at another rate than was asked for.",
        call("adapt.backward", lambda values: values | {"scale": 1.0}),
    ),
    Bug(
        "adapter-not-divided-by-rank",
        "adapt in affine",
        "The scale is alpha instead of alpha / rank, in both directions.",
        "None at rank 1; adapters that were trained elsewhere shout.",
        around(parts, "adapters_of", _not_divided_by_rank),
    ),
    Bug(
        "adapter-dx-left-out",
        "linear in affine",
        "What comes back through A to the input of a projection is left out.",
        "All but the last block learn from a wrong gradient; nothing where there is one block.",
        call("linear.backward", _dx_of_the_matrix_alone),
    ),
    Bug(
        "adapter-without-a-way-back",
        "linear in affine",
        "The backward knows nothing of adapters: it is that of the frozen model.",
        "The loss stands still.",
        together(call("adapt.backward", lambda values: None), call("linear.backward", _adapter_forgotten)),
    ),
    Bug(
        "frozen-matrix-with-a-gradient",
        "linear in affine",
        "The gradient of a frozen matrix is computed, and nobody reads it.",
        "Right, and as slow as if nothing were frozen.",
        together(around(Builder, "gradient", _also_of_frozen), call("linear.backward", _for_nothing)),
        public="Fine-tuning scripts that freeze after the optimizer was made, or forget requires_grad.",
    ),
    Bug(
        "adapters-of-queries-and-values-exchanged",
        "adapt in affine",
        "Of a packed product, the first columns of x @ A go to the last projection, in both directions.",
        "None in training; adapters that were trained elsewhere write noise.",
        around(affine, "declare_adapter", _as_the_other_way_round),
    ),
    Bug(
        "adapter-columns-from-the-beginning",
        "decoder",
        "Where keys and values are computed without queries, B's first columns are taken for theirs.",
        "Training is right, and what is sampled is not.",
        around(Adapter, "columns", _first_columns),
    ),
    Bug(
        "decoding-without-adapters",
        "decoder",
        "The programs of sampling leave the adapters out.",
        "The validation loss falls, and what is sampled is what the base would say.",
        around(decoding, "declare", _without_adapters),
    ),
)
