"""`tapeless.check.op`: an op of your own, judged: its backward in float64, its kernel in the dtype it runs in."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from tapeless.check.own.apart import in_a_process, interpreted, on_one_thread
from tapeless.check.own.autograd import opchecked
from tapeless.check.own.definition import (
    Definition,
    Expected,
    dtype_of,
    expected,
    floats_of,
    taken_by,
    tensor_of,
)
from tapeless.check.own.example import Example, example_of
from tapeless.check.own.given import Claims, checked_wrt, claims_of, pair_of
from tapeless.check.own.gradient import Report, WeightedSum, not_analytic, prove
from tapeless.check.own.harness import (
    RefusalError,
    first_line,
    first_outputs,
    is_tensor,
    share_memory,
)
from tapeless.check.own.naming import described
from tapeless.check.own.pair import Kernel, PairKernel
from tapeless.check.own.report import Verdict
from tapeless.check.own.runner import Bench, primary, unknown_case
from tapeless.check.own.target import AutogradKernel, signature_of
from tapeless.errors import TapelessError
from tapeless.inputs import check_seed
from tapeless.ops.contract import Array

Function = Callable[..., Any]
Progress = Callable[[int, int, str], None]


@overload
def op(
    forward: Function,
    backward: Function,
    inputs: Any,
    *,
    wrt: Any = None,
    dy: Any = None,
    saved: bool = False,
    seed: int = 0,
    tolerance: float | None = None,
    kernel: None = None,
) -> Report: ...


@overload
def op(forward: Any, backward: Any = None, inputs: Any = None, *, kernel: Any = None, **claims: Any) -> Verdict: ...


def op(
    forward: Any,
    backward: Any = None,
    inputs: Any = None,
    *,
    kernel: Any = None,
    wrt: Sequence[int | str] | None = None,
    dy: Any = None,
    saved: bool = False,
    seed: int = 0,
    tolerance: float | None = None,
    relate: Function | None = None,
    limit: float | None = None,
    progress: Progress | None = None,
    **claims: Any,
) -> Report | Verdict:
    """Judge a kernel, or prove that `backward` is the derivative of `forward`.

    `op(forward, backward, inputs)` proves a pair in float64, to twelve digits: `forward(*inputs)` returns y, or a tuple
    of outputs; `backward(dy, *inputs)` returns the gradient of each input (None for what takes none), dy being a tuple
    where y is. With `saved=True` they are `forward(*inputs) -> (y, saved)` and `backward(dy, saved, *inputs)`.

    `op(definition, inputs, kernel=…)` compares a kernel with its definition: a `torch.autograd.Function`, a function or
    module or custom op with a backward that somebody wrote, or a pair of functions (forward, backward), either of them
    None. `op(MyFunction, inputs)` takes what has no definition as its own, in float64. Inputs are NumPy arrays or
    tensors in the kernel's dtype; lists of them, integers and anything else among them are handed on.

    `wrt` names the inputs that take gradients, all by default; `relate` makes related inputs (it takes all inputs and
    returns them); `options` are arguments by name, a list where several values are to be tried; `shapes` names the axes
    of each input (["R C", "C"]), and `sizes` says what an axis may be ({"C": range(16, 4096, 16)}); `dtypes` those that
    the kernel takes; `limits` what it does not promise (`LIMITS`); `seconds` how long it may take; `case` tries one
    case alone; `limit` runs it in a process of its own, which may hang for so many seconds. Of a raw kernel: `writes`
    says whether it writes into outputs that it is given first; `adds` names the gradients that it always adds to.
    """
    if inputs is None and not (callable(backward) and not is_tensor(backward)):
        backward, inputs = None, backward
    if inputs is None:
        raise TapelessError("there are no inputs: op(forward, backward, inputs), or op(forward, inputs, kernel=…).")
    check_seed(seed)
    if not isinstance(saved, bool):
        raise TapelessError(f"saved must be True or False, not {saved!r}.")
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    if kernel is None and backward is not None and is_function(forward):
        raise TapelessError("a torch.autograd.Function has its own backward: op(MyFunction, inputs).")
    if kernel is None and backward is not None and not _halves(given):
        if claims:
            raise TapelessError(
                f"{min(claims)} is said of a kernel, and there is none: give kernel=(forward, backward)."
            )
        pair = pair_of(forward, backward, given, saved)
        if tolerance is not None and not (isinstance(tolerance, int | float) and 0 < tolerance < 1):
            raise TapelessError(f"tolerance must be a number between 0 and 1, not {tolerance!r}.")
        return prove(pair, checked_wrt(pair, wrt), dy, seed, tolerance)
    if dy is not None or tolerance is not None:
        raise TapelessError("a kernel is tried with many dy, and its tolerance follows from its dtype: leave both out.")
    made = claims_of(claims)
    if kernel is None and backward is not None:  # a pair in the dtype it runs in
        kernel, backward = (None, backward), None
    check = partial(_judged, forward, backward, given, kernel, wrt, saved, seed, relate, made)
    if limit is not None:
        return in_a_process(lambda told: check(told), limit, described(forward if kernel is None else kernel))
    return check(progress)


def _halves(inputs: Sequence[Any]) -> bool:
    """Whether a pair is given in a dtype that is not float64's."""
    narrow = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
    return any(dtype_of(each) in narrow for each in inputs if is_tensor(each) or isinstance(each, np.ndarray))


# What is compared with what.


def _judged(
    forward: Any,
    backward: Any,
    inputs: tuple[Any, ...],
    kernel: Any,
    wrt: Any,
    saved: bool,
    seed: int,
    relate: Any,
    claims: Claims,
    progress: Progress | None,
) -> Verdict:
    began, name = time.perf_counter(), described(forward if kernel is None else kernel)
    proof: Report | None = None
    try:
        with interpreted(), on_one_thread():
            source = forward if kernel is None else kernel
            forward, kernel_function, names, inputs = _functions(forward, kernel, inputs)
            example = example_of(names, inputs, claims.shapes, wrt, relate)
            pair = isinstance(kernel, tuple | list)
            if not pair and kernel is not None and not example.torch:
                raise TapelessError(
                    f"{name} must be called by autograd, with tensors as inputs, or be a pair: "
                    f"kernel=(forward, backward), one of which may be None."
                )
            definition, proof = _definition(forward, backward, example, saved, seed, kernel, inputs, claims)
            if proof is not None and proof.verdict in ("wrong", "refused"):
                return Verdict(
                    "refused", "the definition does not hold, and nothing is compared with it.", proof, kernel=name
                )
            dtypes = primary(example, claims, pair)
            first = _first(definition, dtypes[0], claims, seed, not pair or kernel[1] is not None)
            target: Kernel
            if pair:
                target = PairKernel(kernel, example, first, saved, claims.writes, claims.adds)
            else:
                target = AutogradKernel(kernel_function, example, name, _aliases(definition))
                target.source, target.in_place = source, "in place" in claims.limits
            bench = Bench(definition, target, claims, seed, progress)
            bench.run(dtypes, len(first.outputs))
            unknown_case(bench)
            if not pair and claims.case is None and not bench.findings:
                opchecked(bench, kernel_function, first)
    except RefusalError as refusal:
        return Verdict("refused", str(refusal), proof, kernel=name, seconds=time.perf_counter() - began)
    verdict = "wrong" if bench.findings else "right, with limits" if bench.limits else "right"
    if verdict != "wrong" and proof is not None and not proof.ok:
        verdict = "cannot tell"
    ways = {
        "backward": "its own backward, proven",
        "autograd": "PyTorch's autograd in float64",
        "complex step": "the complex step in float64",
        "itself": "its own backward in float64, compared with the slope of its forward at every size",
    }
    way = ways.get(definition.way)
    notes = [f"compared with: the definition in float64, its gradients by {way}"] if way else []
    return Verdict(
        verdict,
        "",
        proof,
        tuple(bench.findings),
        dict(bench.limits),
        tuple(bench.rows[key] for key in sorted(bench.rows, key=lambda key: (dtypes.index(key[1]), key[0]))),
        dict(bench.covered),
        dict(bench.left),
        (*notes, *bench.notes),
        name,
        time.perf_counter() - began,
    )


def _functions(forward: Any, kernel: Any, inputs: tuple[Any, ...]) -> tuple[Any, Any, tuple[str, ...], tuple[Any, ...]]:
    """The definition and the kernel as functions, the names of the inputs, and the inputs with a module's weights."""
    torch = sys.modules.get("torch")
    modules = [each for each in (kernel, forward) if torch is not None and isinstance(each, torch.nn.Module)]
    weights = dict(modules[0].named_parameters()) if modules else {}
    count = len(inputs)
    inputs = (*inputs, *(weight.detach() for weight in weights.values()))

    def function_of(value: Any) -> Any:
        if torch is None or isinstance(value, tuple | list | None):
            return value
        if is_function(value):
            return value.apply
        if isinstance(value, torch.nn.Module) and weights:
            names = list(weights)

            def module(*given: Any, **options: Any) -> Any:
                state = dict(zip(names, given[count:], strict=True))
                return torch.func.functional_call(value, state, given[:count], options)

            return module
        return value

    for what, value in (("forward", forward), *((("kernel", kernel),) if kernel is not None else ())):
        if not callable(value) and not isinstance(value, tuple | list):
            raise TapelessError(
                f"{what} must be a function"
                f"{', or a pair (forward, backward)' if what == 'kernel' else ''}, not {value!r}."
            )
    if isinstance(kernel, tuple | list) and (len(kernel) != 2 or all(each is None for each in kernel)):
        raise TapelessError(f"kernel must be (forward, backward), one of which may be None, not {kernel!r}.")
    plain = signature_of(forward)
    names = [plain[index] if index < len(plain) else f"input{index}" for index in range(count)]
    names += [each.replace(".", "_") for each in weights]
    source = forward if kernel is None else kernel
    made = function_of(source)
    return (function_of(forward) if kernel is not None else forward), made, tuple(names), inputs


def _definition(
    forward: Any,
    backward: Any,
    example: Example,
    saved: bool,
    seed: int,
    kernel: Any,
    inputs: tuple[Any, ...],
    claims: Claims,
) -> tuple[Definition, Report | None]:
    if kernel is None:
        return _itself(forward, example, claims), None
    if backward is not None:
        pair = pair_of(forward, backward, _widened(example, inputs), saved)
        wrt = checked_wrt(pair, [place for place, tree in enumerate(example.tree) if tree in example.wrt])
        return Definition(forward, example, "backward", backward, saved), prove(pair, wrt, None, seed, None)
    if isinstance(kernel, tuple | list) and kernel[1] is None:
        return Definition(forward, example, "none", None, saved), None
    if example.torch:
        return Definition(forward, example, "autograd", None, saved), None
    _analytic(forward, example, inputs, saved, seed)
    return Definition(forward, example, "complex step", None, saved), None


def _widened(example: Example, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    found = []
    for value in inputs:
        if is_tensor(value) and value.is_floating_point():
            value = value.double()
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
            value = value.astype(np.float64)
        found.append(value)
    return tuple(found)


def _analytic(forward: Any, example: Example, inputs: tuple[Any, ...], saved: bool, seed: int) -> None:
    """RefusalError unless the complex step can take the place of a backward."""
    pair = pair_of(forward, _missing, _widened(example, inputs), saved)
    here, rng = first_outputs(pair), np.random.default_rng(seed)
    weights = [np.asarray(rng.normal(size=each.shape)) for each in here]
    total = WeightedSum(pair, here, weights, example.wrt)
    for index in example.wrt:
        doubt = not_analytic(total, index, rng)
        if doubt:
            raise RefusalError(
                f"there is no backward, and the complex step cannot take its place for {pair.names[index]}: {doubt}. "
                f"Give the definition a backward, or write it in torch."
            )


def _missing(*arguments: Any) -> Any:
    raise TapelessError("this definition has no backward.")


def _itself(kernel: Any, example: Example, claims: Claims) -> Definition:
    """A kernel that has no definition is its own, in float64."""
    name = described(kernel)
    if not example.torch:
        if is_function(kernel):
            raise TapelessError(f"{name} is torch's: its inputs must be tensors.")
        raise TapelessError(
            f"{name} has no backward: op(forward, backward, inputs), or op(definition, inputs, kernel=(…, …))."
        )
    function = kernel.apply if is_function(kernel) else _functions(kernel, None, _hung_inputs(example))[1]
    elsewhere = f"Give it a definition: op(definition, inputs, kernel={name})."
    usual = {n: v[0] if isinstance(v, list | tuple) else v for n, v in claims.options.items()}
    given = [
        tensor_of(leaf.value, "float64" if leaf.floats else "", leaf.device) if leaf.array else leaf.value
        for leaf in example.leaves
    ]
    try:
        outputs = floats_of(function(*example.arguments(given), **taken_by(kernel, usual)))
        narrow = {dtype_of(each) for each in outputs} - {"float64"}
    except RefusalError as refusal:
        raise TapelessError(str(refusal).replace("the forward", f"the forward of {name}")) from refusal
    except BaseException as error:  # a kernel that takes other dtypes alone
        if isinstance(error, KeyboardInterrupt):
            raise
        said = f"it raised {type(error).__name__}: {first_line(error)}"
        raise RefusalError(f"{name} does not take float64 ({said}). {elsewhere}") from error
    if narrow:
        raise RefusalError(f"{name} returns {min(narrow)} for float64, and cannot be its own definition. {elsewhere}")
    return Definition(function, example, "itself")


def _hung_inputs(example: Example) -> tuple[Any, ...]:
    return tuple(example.arguments([leaf.value for leaf in example.leaves]))


def _first(definition: Definition, dtype: str, claims: Claims, seed: int, gradients: bool) -> Expected:
    """What the definition says at the example."""
    rng = np.random.default_rng(seed)
    values = [leaf.value for leaf in definition.example.leaves]
    usual = {n: v[0] if isinstance(v, list | tuple) else v for n, v in claims.options.items()}

    def dys(outputs: list[Array]) -> list[Array]:
        return [np.asarray(rng.normal(size=each.shape)) for each in outputs]

    try:
        done = definition.compute(values, dys, "float64", usual, gradients=gradients)
    except RefusalError:
        raise
    except Exception as error:
        raise TapelessError(f"the definition raised {type(error).__name__}: {first_line(error)}") from error
    if not any(each.size for each in done.outputs):
        raise TapelessError("the definition returns nothing but empty arrays: choose inputs that give it some output.")
    if not all(np.isfinite(each).all() for each in done.results(definition.example).values()):
        raise TapelessError("the definition is not finite at the example: choose inputs of its domain.")
    at = expected(definition, values, dys, dtype, usual, gradients=gradients)
    if at is None:
        raise TapelessError("the definition does not take its own example twice.")
    return at


def _aliases(definition: Definition) -> bool:
    """Whether an output of the definition is a view of an input."""
    if definition.way == "itself":
        return False
    example = definition.example
    given = [
        tensor_of(leaf.value, "float64" if leaf.floats else "", leaf.device) if leaf.array else leaf.value
        for leaf in example.leaves
    ]
    try:
        outputs = floats_of(definition.function(*example.arguments(given)))
    except Exception:  # with options, say: then it is held to own its outputs
        return False
    return any(share_memory(y, x) for y in outputs for x in given if is_tensor(x))


def is_function(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, type) and issubclass(value, torch.autograd.Function)
