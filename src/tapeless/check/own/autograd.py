"""What PyTorch asks of an op besides: a second derivative where it says that it has one, `opcheck` of a custom op."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tapeless.check.own.bounds import in_float64
from tapeless.check.own.definition import Definition, Expected, floats_of, taken_by, tensor_of
from tapeless.check.own.harness import first_line
from tapeless.check.own.memory import as_float64
from tapeless.check.own.report import Mistake
from tapeless.ops.contract import Array

if TYPE_CHECKING:
    from tapeless.check.own.runner import Bench

ROUGH = 0.02  # of a second derivative: beyond that it is another one


def second_derivative(
    definition: Definition, kernel: Callable[..., Any], at: Expected, dtype: str, options: Mapping[str, Any]
) -> str:
    """Empty where it is right, or where the kernel says that it has none; else a sentence."""
    try:
        with in_float64():
            true = _second(definition.function, definition, at, "float64", options)
    except Exception:  # the definition has none
        return ""
    try:
        found = _second(kernel, definition, at, dtype, options)
    except BaseException:  # it says so
        return ""
    for name, one, other in zip(definition.example.gradients, found, true, strict=True):
        size = float(np.abs(other).max(initial=0))
        off = float(np.abs(one - other).max(initial=0))
        if not off <= ROUGH * size + 1e-3:
            return (
                f"the second derivative by {name[1:]} is off by {off / (size or 1):.1e} of its largest element, and "
                f"nothing is raised: mark the backward with once_differentiable"
            )
    return ""


def _second(
    function: Callable[..., Any], definition: Definition, at: Expected, dtype: str, options: Mapping[str, Any]
) -> list[Array]:
    torch, example = sys.modules["torch"], definition.example
    given = [
        tensor_of(value, dtype if leaf.floats else "", leaf.device) if leaf.array else value
        for leaf, value in zip(example.leaves, at.values, strict=True)
    ]
    sources = [given[index].requires_grad_() for index in example.wrt]
    outputs = floats_of(function(*example.arguments(given), **taken_by(function, options)))
    dys = [tensor_of(dy, dtype, y.device).to(y.dtype) for dy, y in zip(at.dys, outputs, strict=True)]
    first = torch.autograd.grad(outputs, sources, dys, create_graph=True, allow_unused=True)
    total = sum((each * each).sum() for each in first if each is not None)
    second = torch.autograd.grad(total, sources, allow_unused=True)
    return [np.zeros(s.shape) if each is None else as_float64(each) for each, s in zip(second, sources, strict=True)]


def opchecked(bench: Bench, function: Any, at: Expected) -> None:
    torch = sys.modules["torch"]
    if not isinstance(
        function, torch._library.custom_ops.CustomOpDef | torch._ops.OpOverload | torch._ops.OpOverloadPacket
    ):
        return
    example = bench.example
    given = [
        tensor_of(value, bench.dtypes[0] if leaf.floats else "", leaf.device) if leaf.array else value
        for leaf, value in zip(example.leaves, at.values, strict=True)
    ]
    for index in example.wrt:
        given[index].requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = torch.library.opcheck(function, tuple(example.arguments(given)), raise_exception=False)
    for name, said in seen.items():
        if said == "SUCCESS":
            continue
        sentence = f"torch.library.opcheck: {name} fails: {first_line(said) if isinstance(said, Exception) else said}"
        if name == "test_schema":
            bench.findings.append(Mistake("opcheck: the schema", sentence, "the example", "the example"))
        else:
            bench.limits[f"opcheck, {name}"] = sentence
    bench.notes.append(
        f"torch.library.opcheck: {', '.join(f'{name} {said}' for name, said in seen.items() if said == 'SUCCESS')}"
    )
