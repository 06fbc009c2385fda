"""Bugs of what is left out at random: in how it is scaled, in which numbers are drawn, and in when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from tapeless.models import blocks, transformer
from tapeless.ops.contract import Array
from tapeless.ops.dropout import reference
from tapeless.program.builder import Builder
from tapeless.train.loop import Trainer
from tests.bugs.planting import (
    Bug,
    Plant,
    Values,
    around,
    backward,
    call,
    forward,
    helper,
    replaced,
    together,
    wrapped,
)


def _factors(a: Any, draws: int = 0) -> Any:
    """The mask of a kernel's arguments, or of `draws` batches later."""
    like = a.x if hasattr(a, "x") else a.dy
    return reference.factors(like.size, a.seed, a.draws + draws, a.rate, a.site).reshape(like.shape)


def _both(factor: Callable[[Any], Any]) -> Plant:
    """The forward and its backward, which agree with each other."""
    return together(forward("dropout", y=lambda a: factor(a) * a.x), backward("dropout", dx=lambda a: factor(a) * a.dy))


def _inverted(a: Any) -> Any:
    return np.where(_factors(a) > 0, 0.0, 1 / (1 - a.rate))


def _one_row(a: Any) -> Any:
    return np.broadcast_to(_factors(a)[:1], _factors(a).shape)


def _three_rounds(right: Callable[..., Array], *args: Any) -> Array:
    with replaced(reference, "ROUNDS", 3)():
        return right(*args)


def _low_words_only(right: Callable[..., Array], size: int, seed: int, draws: int, site: int) -> Array:
    return right(size, seed & reference.WORD, draws & reference.WORD, site)


def _site(change: Callable[[int], int]) -> Callable[[Values], Values]:
    return lambda values: values | {"site": change(values["site"])}


def _another_when_computed_again(
    right: Any, self: Builder, op: str, direction: str, values: Values, stack: tuple[str, ...]
) -> None:
    again = op == "dropout" and self._phase == "recompute"
    right(self, op, direction, _site(lambda site: site + 1000)(values) if again else values, stack)


def _always_learning(right: Any, *args: Any, **options: Any) -> Any:
    return right(*args, **(options | {"learning": True}))


def _not_kept(right: Any, self: Trainer) -> dict[str, Any]:
    kept: dict[str, Any] = right(self) | {"draws": 0}
    return kept


def _bound_once(right: Any, y: Any, x: Any, seed: Any, draws: Any, rate: float, site: int) -> Any:
    """The count is copied where the call is bound."""
    return right(y, x, seed, draws.copy(), rate, site)


def _from_the_start_of_its_block(right: Any, y: Any, x: Any, seed: Any, draws: Any, rate: float, site: int) -> Any:
    """Each part of a long array counts from 0."""
    flat, block = (each.reshape(-1, copy=False) for each in (y, x)), 16384
    outs, ins = ([each[at : at + block] for at in range(0, each.size, block)] for each in flat)
    return [run for out, part in zip(outs, ins, strict=True) for run in right(out, part, seed, draws, rate, site)]


def _on_cpu(wrong: Callable[..., Any]) -> Plant:
    @contextmanager
    def plant() -> Iterator[None]:
        module = import_module("tapeless.ops.dropout.cpu")
        with wrapped(module, "forward", lambda right: lambda *args: wrong(right, *args))():
            yield

    return plant


def _nothing(p: Any, d: Any, x: Any) -> Any:
    return x


def _as_it_came(p: Any, d: Any, dy: Any, x: Any) -> Any:
    return dy


BUGS = (
    Bug(
        "dropout-not-scaled",
        "dropout",
        "What is kept is not divided by 1 − rate.",
        "Every branch is weaker in training than in use: samples are worse than the training loss promises.",
        _both(lambda a: (_factors(a) > 0).astype(float)),
    ),
    Bug(
        "dropout-scaled-by-rate",
        "dropout",
        "What is kept is divided by the rate.",
        "Right at a rate of one half, and the loss explodes at 0.1.",
        _both(lambda a: _factors(a) * (1 - a.rate) / a.rate),
    ),
    Bug(
        "dropout-keeps-what-it-should-drop",
        "dropout",
        "The comparison is the wrong way round: at a rate of 0.1 nine tenths are dropped.",
        "Right at a rate of one half; else the model hardly learns.",
        _both(_inverted),
    ),
    Bug(
        "dropout-gradient-of-everything",
        "dropout",
        "The backward lets the gradient pass where the forward dropped.",
        "Trains, a little worse.",
        backward("dropout", dx=lambda a: a.dy),
    ),
    Bug(
        "dropout-gradient-not-scaled",
        "dropout",
        "The backward drops as the forward did, and forgets the scale.",
        "Every gradient below a branch is too small by 1 − rate, once for each branch.",
        backward("dropout", dx=lambda a: (_factors(a) > 0) * a.dy),
    ),
    Bug(
        "dropout-drawn-anew-in-the-backward",
        "dropout",
        "The backward draws a mask of its own.",
        "Gradients that are right on average, and noise for each batch.",
        backward("dropout", dx=lambda a: _factors(a, draws=1) * a.dy),
        public="Recomputation that draws again has the same effect: pytorch, issue 190758.",
    ),
    Bug(
        "dropout-same-for-every-row",
        "dropout",
        "One mask of channels for all rows.",
        "Whole channels vanish from a batch; trains, much more noisily.",
        _both(_one_row),
    ),
    Bug(
        "dropout-three-rounds",
        "dropout",
        "The generator mixes three times instead of ten.",
        "Masks of neighbouring steps resemble each other; no gradient check sees it.",
        around(reference, "bits", _three_rounds),
    ),
    Bug(
        "dropout-half-a-seed",
        "dropout",
        "Of seed and count only the low 32 bits are used.",
        "Two seeds that differ above give the same run.",
        around(reference, "bits", _low_words_only),
    ),
    Bug(
        "dropout-threshold-of-31-bits",
        "dropout",
        "The random bits are compared as if there were 31 of them.",
        "Half as much is dropped as was asked for.",
        helper("dropout", "threshold", lambda rate: int(rate * 2**31)),
    ),
    Bug(
        "dropout-mask-of-another-site",
        "dropout in dropout",
        "The backward call is given the site of another branch.",
        "As a mask that is drawn anew: gradients with noise in them.",
        call("dropout.backward", _site(lambda site: site + 1)),
    ),
    Bug(
        "dropout-one-mask-for-all-sites",
        "dropout in dropout",
        "All branches have the same site, in both directions.",
        "Every layer drops the same channels at the same place, which then never say anything.",
        together(
            call("dropout.forward", _site(lambda site: 0)),
            call("dropout.backward", _site(lambda site: 0)),
        ),
    ),
    Bug(
        "dropout-same-mask-each-step",
        "dropout in dropout",
        "Nothing counts the batches.",
        "The same numbers are dropped in every step: a smaller network, trained without dropout.",
        call("count_draws.forward", lambda values: None),
    ),
    Bug(
        "draws-counted-from-one-each-time",
        "count_draws",
        "The count is set to 1 where it should grow by 1.",
        "From the second batch on, every batch drops the same numbers.",
        forward("count_draws", draws=lambda a: np.ones_like(a.draws)),
    ),
    Bug(
        "dropout-counted-when-bound",
        "draws in model",
        "The cpu kernel reads the count where it is bound, once, instead of each time it runs.",
        "The reference is right, every op by itself is right, and all steps drop the same.",
        _on_cpu(_bound_once),
    ),
    Bug(
        "dropout-each-block-counts-from-zero",
        "dropout on cpu",
        "The counter starts again in every block that is shared out to threads.",
        "Right up to 16,384 numbers; then the mask repeats.",
        _on_cpu(_from_the_start_of_its_block),
    ),
    Bug(
        "dropout-another-mask-when-computed-again",
        "dropout in dropout",
        "A block that is computed again for the backward drops at another site.",
        "Right without recomputation.",
        around(Builder, "call", _another_when_computed_again),
    ),
    Bug(
        "dropout-in-evaluation",
        "dropout in dropout",
        "An evaluation, and sampling, drop as training does.",
        "Held-out losses are too high and differ from time to time.",
        around(transformer, "declare", _always_learning),
    ),
    Bug(
        "dropout-of-nothing",
        "residual in blocks",
        "The branches are not dropped, whatever the rate; the embedding is.",
        "Overfits as if there were no dropout.",
        together(replaced(blocks, "dropout_forward", _nothing), replaced(blocks, "dropout_backward", _as_it_came)),
    ),
    Bug(
        "draws-forgotten-in-a-checkpoint",
        "resume in loop",
        "A checkpoint does not keep how often random numbers were drawn.",
        "A resumed run drops what it has dropped before.",
        around(Trainer, "state", _not_kept),
    ),
)
