"""One example of the operations task, from probabilities to every gradient, and the exercises of the lessons.

Every number is the engine's: read from a walk of its backward, or made by its kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tapeless.check.complex_step import STEP
from tapeless.explorer.keys import lesson_keys
from tapeless.explorer.pupil import Pupil, one_expression
from tapeless.model import Model
from tapeless.ops import OPS
from tapeless.ops.contract import Array
from tapeless.program.call import Call
from tapeless.program.listing import describe
from tapeless.tasks.operations import WORDS, spell, targets_for

SHOWN = 6  # numbers of a long row
WIDTHS = tuple(10.0**-power for power in range(1, 13))  # of a difference of two losses
GRADIENTS = (-0.1, -0.08, -0.12, -0.09, -0.11)  # of the exercise with optimizers
RATES = (0.1, 0.5, 1.0, 1.5, 1.9, 2.0, 2.1)


def lesson(pupil: Pupil, at: int, asked: str) -> dict[str, Any]:
    """A moment of its training, and everything that one example sends back."""
    expression = one_expression(asked or pupil.question())
    at = min(at, len(pupil.steps) - 1)
    model = pupil.at(at)
    tokens, answer = expression.tokens, int(expression.answers[0])
    targets = targets_for(model.config, expression.answers)
    walked = _walk(model, tokens, targets, answer)
    gradients = {name: array.copy() for name, array in model.grads.items()}
    found = {
        "run": pupil.name,
        "steps": pupil.steps,
        "at": at,
        "question": spell(tokens[0]),
        "shown": [WORDS[token] for token in tokens[0]],
        "words": WORDS,
        "target": answer,
        "parameters": model.parameters,
        "channels": model.config.channels,
        **walked,
        "sizes": {name: _size(array) for name, array in gradients.items()},
        "update": _update(model, gradients["head.weight"], answer, pupil.lr),
        "check": _checked(pupil, at, tokens, targets, gradients["head.weight"], answer),
        "placement": model.config.placement,
    }
    return {**found, "keys": lesson_keys(found)}


def _walk(model: Model, tokens: Array, targets: Array, answer: int) -> dict[str, Any]:
    back: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for number, (call, values) in enumerate(model.trace(tokens, targets)):
        if call.phase != "backward":
            continue
        if call.op == "classifier":
            found |= _beginning(values, answer)
        elif call.op == "embedding":
            found["repeated"] = _repeated(values, tokens)
        elif call.op == "attention" and _is_plain(call, values):
            found["attention"] = {"call": number, "section": call.section, **_attended(values)}
        elif call.op == "layernorm" and "norm" not in found:
            found["norm"] = {"call": number, "section": call.section, **_normed(values)}
        described = describe(model.program, number)
        handed = {each["argument"]: values[each["argument"]] for each in described["results"]}
        onward = [array for name, array in handed.items() if name in ("dx", "dq", "dk", "dv")]
        back.append(
            {
                "call": number,
                "op": call.op,
                "section": call.section,
                "reads": _size(values["dy"]) if "dy" in values else None,
                "writes": _size(np.concatenate([each.ravel() for each in onward])) if onward else None,
                "zeros": float(np.mean(np.concatenate([each.ravel() for each in onward]) == 0)) if onward else None,
                "formulas": [f"{each['argument']} {each['sign']} {each['formula']}" for each in described["results"]],
            }
        )
    return {"back": back, **found}


def _beginning(values: dict[str, Array], answer: int) -> dict[str, Any]:
    """Where it begins: p − y, and the product that it goes through first."""
    x, weight, slope = values["x"][-1], values["weight"], values["logits"][-1]
    scores = weight @ x
    likely = np.exp(scores - scores.max())
    return {
        "scores": scores[: len(WORDS)].tolist(),
        "likely": (likely / likely.sum())[: len(WORDS)].tolist(),
        "slope": slope[: len(WORDS)].tolist(),
        "loss": float(values["loss"][0]),
        "head": {
            "x": x[:SHOWN].tolist(),
            "dweight": values["dweight"][answer, :SHOWN].tolist(),
            "terms": (slope * weight[:, 0])[: len(WORDS)].tolist(),
            "dx": values["dx"][-1][:SHOWN].tolist(),
        },
    }


def _is_plain(call: Call, values: dict[str, Array]) -> bool:
    """A query for every token, a head of keys for every head of queries, and every pair seen: the textbook's."""
    scalars = dict(call.scalars)
    return values["q"].shape == values["k"].shape and not (scalars["causal"] or scalars["window"])


def _attended(values: dict[str, Array]) -> dict[str, Any]:
    """One head of an attention on its way back, with all that its gradients are made of: the head whose scores get the
    most, and in it the query and the key that do."""
    heads = values["lse"].shape[1]
    q, k, v, dy, dq, dk, dv = (
        np.stack(np.split(values[name][0], heads, axis=1)) for name in ("q", "k", "v", "dy", "dq", "dk", "dv")
    )
    scale = 1 / np.sqrt(q.shape[2])
    scores = q @ k.swapaxes(1, 2) * scale
    p = np.exp(scores - values["lse"][0][:, :, None])
    dp = dy @ v.swapaxes(1, 2)
    means = (p * dp).sum(axis=2)
    ds = p * (dp - means[:, :, None])
    head, query, key = np.unravel_index(int(np.abs(ds).argmax()), ds.shape)
    return {
        "head": int(head),
        "query": int(query),
        "key": int(key),
        "scale": scale,
        "width": q.shape[2],
        "p": p[head].tolist(),
        "dp": dp[head].tolist(),
        "ds": ds[head].tolist(),
        "mean": means[head].tolist(),
        "dy": dy[head][:, 0].tolist(),
        "k": k[head][:, 0].tolist(),
        "q": q[head][:, 0].tolist(),
        "dq": dq[head][query, 0],
        "dk": dk[head][key, 0],
        "dv": dv[head][key, 0],
        "sizes": {name: _size(values[name]) for name in ("dy", "dq", "dk", "dv")},
    }


def _normed(values: dict[str, Array]) -> dict[str, Any]:
    """The last row of a LayerNorm on its way back, and the two terms that correct it."""
    x, dy = values["x"][-1], values["dy"][-1]
    rstd = float(values["rstd"][-1])
    hat = (x - values["mean"][-1]) * rstd
    g = dy * values["weight"]
    return {
        "x": hat[:SHOWN].tolist(),
        "g": g[:SHOWN].tolist(),
        "rstd": rstd,
        "mean": float(g.mean()),
        "along": float((g * hat).mean()),
        "dx": values["dx"][-1][:SHOWN].tolist(),
        "sum": float(values["dx"][-1].sum()),
        "channels": len(x),
    }


def _repeated(values: dict[str, Array], tokens: Array) -> dict[str, Any]:
    """A word that stands twice: its row of the table gets both gradients, one after the other."""
    rows = values["dy"].reshape(tokens.shape[1], -1)
    word = next(int(each) for each in tokens[0] if (tokens[0] == each).sum() > 1)
    places = np.flatnonzero(tokens[0] == word)
    return {
        "word": WORDS[word],
        "places": (places + 1).tolist(),
        "parts": rows[places, :SHOWN].tolist(),
        "whole": values["dweight"][word, :SHOWN].tolist(),
    }


def _size(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array))))


def moved(op: str, value: float, gradients: tuple[float, ...], lr: float) -> list[dict[str, float]]:
    """One weight, stepped by the kernel of an optimizer: after each step its value and what the optimizer remembers."""
    weight, m, v = np.array([value]), np.zeros(1), np.zeros(1)
    told, found = (np.array([0]), np.zeros(1), np.zeros(1)), []
    for gradient in gradients:
        read = (np.array([gradient]), np.ones(1), np.array([1]), np.array([lr]))
        arguments: tuple[Any, ...] = {
            "sgd": (weight, None, *told, *read, (0,)),
            "momentum": (weight, m, None, *told, *read, 0.9, (0,)),
            "adamw": (weight, m, v, None, *told, *read, 0.9, 0.999, 1e-8, 0.0, (), (0,)),
        }[op]
        OPS[op].forward(*arguments)
        found.append({"value": float(weight[0]), "m": float(m[0]), "v": float(v[0])})
    return found


def _update(model: Model, gradient: Array, answer: int, lr: float) -> dict[str, Any]:
    """The element of the right answer's row that has the largest gradient, and what two optimizers do with it."""
    channel = int(np.abs(gradient[answer]).argmax())
    value, slope = float(model.params["head.weight"][answer, channel]), float(gradient[answer, channel])
    return {
        "element": f"head.weight[{answer}, {channel}]",
        "value": value,
        "gradient": slope,
        "lr": lr,
        "sgd": moved("sgd", value, (slope,), lr)[0],
        "adam": moved("adamw", value, (slope,), lr)[0],
    }


def _checked(pupil: Pupil, at: int, tokens: Array, targets: Array, gradient: Array, answer: int) -> dict[str, Any]:
    """The same element's gradient by differences of two losses, in two types, and by complex step."""
    place = answer, int(np.abs(gradient[answer]).argmax())
    right = float(gradient[place])

    errors: dict[str, list[float]] = {}
    for precision in ("float64", "float32"):
        model = pupil.at(at, precision)
        weight = model.params["head.weight"]
        kept = weight[place].copy()
        errors[precision] = []
        for width in WIDTHS:
            losses = []
            for side in (width, -width):
                weight[place] = kept + side
                losses.append(float(model.loss(tokens, targets)))
            errors[precision].append(abs((losses[0] - losses[1]) / (2 * width) - right))
        weight[place] = kept
    model = pupil.at(at, "complex128")
    model.params["head.weight"][place] += 1j * STEP
    stepped = complex(model.loss(tokens, targets)).imag / STEP
    return {"widths": WIDTHS, "backward": right, "complex_step": stepped, "errors": errors}


def exercises() -> dict[str, Any]:
    """The answers of the five exercises, by the engine's own kernels."""
    return {
        "hand": _by_hand(),
        "optimizers": {
            op: [0.5, *(each["value"] for each in moved(op, 0.5, GRADIENTS, 0.01))]
            for op in ("sgd", "momentum", "adamw")
        },
        "gradients": GRADIENTS,
        "quadratic": {str(rate): _quadratic(rate) for rate in RATES},
    }


def _quadratic(rate: float) -> list[float]:
    """loss = ½ (w − 3)² from w = 0, ten steps."""
    path = [0.0]
    for _ in range(10):
        path.append(moved("sgd", path[-1], (path[-1] - 3.0,), rate)[0]["value"])
    return path


def _by_hand() -> list[dict[str, Any]]:
    """Two inputs, two hidden units, one output: forward and back through the kernels of linear and relu."""
    linear, relu = OPS["linear"], OPS["relu"]
    x, target = np.array([[2.0, 1.0]]), 1.5
    first, first_bias = np.array([[0.5, -0.3], [0.2, 0.4]]), np.array([0.1, -0.1])
    second, second_bias = np.array([[0.6], [0.3]]), np.array([0.2])
    z, hidden, output = np.empty((1, 2)), np.empty((1, 2)), np.empty((1, 1))
    linear.forward(z, x, first, first_bias)
    relu.forward(hidden, z)
    linear.forward(output, hidden, second, second_bias)
    slope = output - target
    dhidden, dsecond, dsecond_bias = np.empty((1, 2)), np.empty((2, 1)), np.empty(1)
    linear.backward(dhidden, dsecond, dsecond_bias, slope, hidden, second)
    dz, dx, dfirst, dfirst_bias = np.empty((1, 2)), np.empty((1, 2)), np.empty((2, 2)), np.empty(2)
    relu.backward(dz, dhidden, z)
    linear.backward(dx, dfirst, dfirst_bias, dz, x, first)
    asked = {
        "z = x @ W₁ + b₁": z,
        "h = ReLU(z)": hidden,
        "y = h @ W₂ + b₂": output,
        "loss = ½ (y − 1.5)²": 0.5 * slope**2,
        "∂loss/∂y": slope,
        "∂loss/∂W₂": dsecond.T,
        "∂loss/∂b₂": dsecond_bias,
        "∂loss/∂h": dhidden,
        "∂loss/∂z": dz,
        "∂loss/∂W₁": dfirst,
        "∂loss/∂b₁": dfirst_bias,
    }
    return [{"name": name, "rows": np.atleast_2d(values).tolist()} for name, values in asked.items()]
