"""Bugs of rotary positions: turned the wrong way, by the wrong angle, or in other pairs than the published weights."""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

import tapeless.generate as generating
from tapeless import model
from tapeless.ops.angles import reference as angles
from tapeless.ops.contract import Array
from tapeless.ops.rope import reference as rope
from tests.bugs.planting import Bug, around, backward, forward, helper, replaced, together

_pairs, _joined = rope._pairs, rope._joined


def _turned(x: Array, a: Any, way: int) -> Array:
    first, second, c, s = _pairs(x, a.cos, a.sin)
    return _joined(first * c - way * second * s, second * c + way * first * s)


def _neighbours(x: Array, cos: Array, sin: Array) -> tuple[Array, Array, Array, Array]:
    batch, time, _ = x.shape
    pairs = x.reshape(batch, time, -1, cos.shape[2], 2)
    return pairs[..., 0], pairs[..., 1], *_pairs(x, cos, sin)[2:]


def _joined_neighbours(first: Array, second: Array) -> Array:
    return np.stack([first, second], axis=4).reshape(*first.shape[:2], -1)


def _first_angles(x: Array, cos: Array, sin: Array) -> tuple[Array, Array, Array, Array]:
    """Those of the first T places, also where x has the last."""
    time = x.shape[1]
    return _pairs(x, cos[:, :time], sin[:, :time])


def _without_second_sine(a: Any) -> Any:
    first, second, c, s = _pairs(a.dy, a.cos, a.sin)
    return _joined(first * c + second * s, second * c)


def _halved(a: Any) -> Any:
    first, second, c, s = _pairs(a.x, a.cos, a.sin)
    return _joined(first * c - second * s, second * c)


_llama3 = angles.llama3


def _exchanged(plain: Array, factor: float, *bands: Any) -> Array:
    return plain + plain / factor - _llama3(plain, factor, *bands)


def _rounded(a: Any) -> Any:
    return np.where(a.places > 256, a.places // 8 * 8, a.places)[..., None] * a.rates


def _from_the_beginning(engine: Any, position: int, tokens: list[int]) -> None:
    """Every chunk and every step as if nothing had come before it."""
    engine.write("tokens", [tokens])
    engine.write("position", position)
    if "places" in engine.plan.placements:
        engine.write("places", [range(len(tokens))])
    engine.run()


def _one_document(right: Any, config: Any, segments: Any, shape: Any) -> Any:
    return right(config, None, shape)


BUGS = (
    Bug(
        "decoding-turns-from-the-beginning",
        "decoder",
        "When decoding, each new token is turned as if it stood at the first place.",
        "Sampled text falls apart after the first words; without a cache it is fine.",
        replaced(generating, "_run", _from_the_beginning),
    ),
    Bug(
        "documents-not-told",
        "rope in attention",
        "The model is given packed rows and forgets to say where documents begin.",
        "The loss depends on which documents share a row.",
        around(model, "documents", _one_document),
    ),
    Bug(
        "rope-not-turned-back",
        "rope",
        "The backward turns dy the same way as the forward turned x.",
        "Right at place 0; the further on, the less the gradients of queries and keys have to do with the loss.",
        backward("rope", dx=lambda a: _turned(a.dy, a, 1)),
    ),
    Bug(
        "rope-gradient-passed-on",
        "rope",
        "The backward passes dy on: the turn is forgotten.",
        "Trains, worse the longer the text.",
        backward("rope", dx=lambda a: a.dy),
    ),
    Bug(
        "rope-half-a-transpose",
        "rope",
        "One of the two sines is missing in the backward.",
        "The loss still falls.",
        backward("rope", dx=_without_second_sine),
    ),
    Bug(
        "rope-other-way-round",
        "rope",
        "Turned by −angle, in the forward and in the backward alike.",
        "None in training, since only differences of places count; published weights write noise.",
        forward("rope", y=lambda a: _turned(a.x, a, -1)),
    ),
    Bug(
        "rope-pairs-side-by-side",
        "rope",
        "Channels 2a and 2a + 1 are a pair, instead of a and a + D/2.",
        "None in training, where it is another order of channels; published weights write noise.",
        together(helper("rope", "_pairs", _neighbours), helper("rope", "_joined", _joined_neighbours)),
        public="GPT-J and the original LLaMA have them so; their weights are permuted when they are converted.",
    ),
    Bug(
        "rope-angles-of-first-places",
        "rope",
        "With fewer queries than keys, the queries take the angles of the first places instead of the last.",
        "Right in training; a readout at the last position believes it stands at the first.",
        helper("rope", "_pairs", _first_angles),
    ),
    Bug(
        "rope-sine-of-half-the-head",
        "rope",
        "Only the first half of each head is turned: the second keeps its cosine part alone.",
        "Trains; lengths are no longer kept.",
        forward("rope", y=_halved),
    ),
    Bug(
        "angles-places-rounded",
        "angles",
        "Places go through a bfloat16 on their way: from 257 on they are rounded.",
        "Nothing in a short text; far on, neighbours stand at the same place.",
        forward("angles", cos=lambda a: np.cos(_rounded(a)), sin=lambda a: np.sin(_rounded(a))),
    ),
    Bug(
        "angles-in-degrees",
        "angles",
        "Angles are taken for degrees.",
        "Positions hardly differ: the model cannot count.",
        forward("angles", cos=lambda a: np.cos(pi / 180 * a.places[..., None] * a.rates)),
    ),
    Bug(
        "rates-of-the-whole-width",
        "angles",
        "The exponent runs over all channels of a head instead of its pairs: rates fall half as far.",
        "Trains as well; published weights lose the thread after some dozens of tokens.",
        helper("angles", "rates", lambda pairs, base: base ** (-np.arange(pairs) / (2 * pairs))),
    ),
    Bug(
        "scaled-rates-multiplied",
        "angles",
        "Linear scaling multiplies the rates by the factor instead of dividing.",
        "A model that is to read further reads less far.",
        helper("angles", "linear", lambda plain, factor: plain * factor),
    ),
    Bug(
        "llama3-bands-exchanged",
        "angles",
        "Fast rates are slowed down and slow ones kept.",
        "Llama 3.1 and later: fluent and off the subject from the first sentence.",
        helper("angles", "llama3", _exchanged),
    ),
)
