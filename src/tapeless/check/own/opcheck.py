"""`torch.library.opcheck` on a custom op, reported beside our own verdict."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from tapeless.check.own.definition import Expected, tensor_of
from tapeless.check.own.harness import first_line
from tapeless.check.own.report import Mistake

if TYPE_CHECKING:
    from tapeless.check.own.runner import Bench


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
