"""Bugs whose gradients are right: each call is given what another takes, in both directions, or a weight is declared or
stepped as what it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tapeless.models import blocks, transformer
from tapeless.models.parts import attention
from tapeless.ops.muon.reference import Matrices
from tapeless.program.builder import Builder
from tapeless.program.call import Output, update
from tests.bugs.planting import Bug, Plant, Values, around, call, together

LOSSES = ("classifier", "squared_error")


def _given(titles: tuple[str, ...], **others: str) -> Plant:
    """These calls are given other buffers, by name, where they are given one of that shape."""

    def wrong(right: Any, self: Builder, op: str, direction: str, values: Values, stack: tuple[str, ...]) -> None:
        made = dict(values)
        for name, other in others.items():
            there = self._buffers.get(other)
            if f"{op}.{direction}" in titles and there and made.get(name) and _shape(made[name]) == there.shape:
                made[name] = update(there) if isinstance(made[name], Output) else there
        right(self, op, direction, made, stack)

    return around(Builder, "call", wrong)


def _shape(given: Any) -> Any:
    return (given.view if isinstance(given, Output) else given).shape


def _exchanged(one: str, other: str, *titles: str) -> Plant:
    return together(*(call(title, lambda v: v | {one: v[other], other: v[one]}) for title in titles))


def _declared(ending: str, **changes: Any) -> Plant:
    """Weights whose names end so say something else of themselves."""

    def wrong(right: Any, self: Builder, name: str, *shape: int, **about: Any) -> Any:
        return right(self, name, *shape, **(about | changes if name.endswith(ending) else about))

    return around(Builder, "weight", wrong)


def _sides_exchanged(right: Any, region: Any) -> Matrices:
    return tuple((start, sum(widths), (rows,)) for start, rows, widths in right(region))


def _scale_for_shift(right: Any, *sizes: Any) -> Any:
    n = right(*sizes)
    return replace(n, weight=n.bias, bias=n.weight, dweight=n.dbias, dbias=n.dweight) if n.bias else n


def _one_matrix(right: Any, *sizes: Any, **about: Any) -> Any:
    return right(*sizes, **(about | {"matrices": None}))


BUGS = (
    Bug(
        "muon-sides-exchanged",
        "muon in transformer",
        "Muon takes the rows of every weight for its columns.",
        "Numbers of different rows are orthogonalised against one another; the loss still falls.",
        around(transformer, "_matrices", _sides_exchanged),
    ),
    Bug(
        "muon-declared-packed",
        "attention in attention",
        "Queries, keys and values are declared as one matrix.",
        "Whichever of the three has the largest gradients has most of the step.",
        around(attention, "declare_affine", _one_matrix),
    ),
    Bug(
        "bias-declared-a-matrix",
        "linear in affine",
        "A bias is declared as what matrices are, so it decays.",
        "A slightly worse loss.",
        _declared("down.bias", meaning="matrix"),
        public="Optimizers that are given model.parameters() as they are.",
    ),
    Bug(
        "norm-declared-a-matrix",
        "layernorm in norm",
        "The scale of a norm is declared as what matrices are, so it decays.",
        "A slightly worse loss.",
        _declared("norm1.weight", meaning="matrix"),
    ),
    Bug(
        "clipped-at-the-rate",
        "clip in transformer",
        "Gradients are clipped at the learning rate instead of the limit.",
        "Every step has the same length, and it learns hardly anything.",
        _given(("clip.forward",), limit="lr"),
    ),
    Bug(
        "updated-by-the-limit",
        "adamw in transformer",
        "The limit of the clip is the learning rate.",
        "Diverges in the first step.",
        _given(("adamw.forward",), lr="limit"),
    ),
    Bug(
        "segments-are-places",
        "angles in rotary",
        "The places of tokens and the beginnings of their documents are exchanged, in both directions.",
        "Packed documents see one another, and no token knows its place.",
        together(
            _given(("attention.forward", "attention.backward"), starts="places"),
            _given(("angles.forward",), places="starts"),
        ),
    ),
    Bug(
        "cosine-for-sine",
        "rope in attention",
        "Cosine and sine are exchanged, in both directions.",
        "Still a rotation, the other way round and a quarter further; published weights write noise.",
        _exchanged("cos", "sin", "rope.forward", "rope.backward"),
    ),
    Bug(
        "targets-are-inputs",
        "embedding in transformer",
        "What is read and what is to be said are exchanged.",
        "It learns to say the token before.",
        together(
            _given(("embedding.forward", "embedding.backward"), tokens="targets"),
            _given(tuple(f"{loss}.{way}" for loss in LOSSES for way in ("forward", "backward")), targets="tokens"),
        ),
    ),
    Bug(
        "betas-exchanged",
        "adamw in transformer",
        "β₁ and β₂ have each other's value.",
        "Each step is a thousand steps' mean over the size of the last ten.",
        _exchanged("beta1", "beta2", "adamw.forward"),
    ),
    Bug(
        "decay-for-eps",
        "adamw in transformer",
        "eps and decay have each other's value.",
        "Nothing decays, and small gradients move hardly anything.",
        _exchanged("eps", "decay", "adamw.forward"),
    ),
    Bug(
        "moments-exchanged",
        "adamw in transformer",
        "Each mean is kept where the other is looked for.",
        "A checkpoint says it wrongly, and one of another's goes on with the size for the direction.",
        _exchanged("m", "v", "adamw.forward"),
    ),
    Bug(
        "movement-and-size-exchanged",
        "adamw in transformer",
        "How far a section moved is told as how large it is.",
        "The doctor suspects a training that does nothing wrong.",
        _exchanged("moved", "norms", "adamw.forward"),
    ),
    Bug(
        "steps-are-draws",
        "sgd in transformer",
        "The update counts where random numbers are counted.",
        "Some are left out, and a training that is resumed drops others.",
        _given(("sgd.forward", "adamw.forward"), step="dropout.draws"),
    ),
    Bug(
        "seed-is-a-counter",
        "dropout in dropout",
        "Seed and counter are exchanged, in both directions.",
        "Two seeds drop the same numbers a few steps apart.",
        _exchanged("seed", "draws", "dropout.forward", "dropout.backward"),
    ),
    Bug(
        "norm-scaled-by-its-bias",
        "layernorm in norm",
        "A norm scales by what it is to shift by, in both directions.",
        "All is 0 in the first step; published weights write noise.",
        around(blocks, "declare_norm", _scale_for_shift),
    ),
)
