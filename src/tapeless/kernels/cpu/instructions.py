"""Functions that kernels call and whose LLVM instructions are written one by one."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from inspect import signature as signature_of
from typing import Any

from numba import types
from numba.extending import intrinsic


def instruction(signature: Any, literals: int = 0) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function of LLVM's builder and of the values of its arguments, which emits the instructions.

    `signature`: Numba's types of what it returns and of its arguments. So many `literals` stand in front of those:
    integers that are known when a kernel is compiled."""

    def decorated(emit: Callable[..., Any]) -> Any:
        def typed(typing: Any, *arguments: Any) -> Any:
            numbers = [each.literal_value for each in arguments[:literals]]
            kinds = (*(types.IntegerLiteral(number) for number in numbers), *signature.args)

            def generate(context: Any, builder: Any, chosen: Any, values: Any) -> Any:
                made = emit(builder, *numbers, *values[literals:])
                return context.get_dummy_value() if made is None else made

            return signature.return_type(*kinds), generate

        _, *named = signature_of(emit).parameters.values()
        first = Parameter("typing", Parameter.POSITIONAL_OR_KEYWORD)
        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        typed.__signature__ = Signature([first, *named])  # type: ignore[attr-defined]
        return intrinsic(prefer_literal=literals > 0)(typed)

    return decorated
