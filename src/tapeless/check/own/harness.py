"""Other people's functions, called: a forward and a backward in float64. They get copies, with NumPy or torch, and are
refused where they misbehave."""

from __future__ import annotations

import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapeless.errors import TapelessError
from tapeless.inputs import spelled
from tapeless.ops.contract import Array

CASTING = "Casting complex values to real"  # how the warning begins, NumPy's and torch's
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

Arrays = dict[str, Array]
Changes = Mapping[int, Array]  # of inputs, by number


class RefusalError(Exception):
    """What is under test breaks a rule that comes before its numbers; the message is the sentence."""


@dataclass(frozen=True)
class Pair:
    """A forward and a backward, the inputs they are tested on, and their names."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    inputs: tuple[Any, ...]  # arrays for tensors; what is no array stays as it is
    devices: tuple[Any, ...]  # the torch device where a tensor was given, else None
    names: tuple[str, ...]
    saved: bool  # the forward returns (y, saved), the backward takes (dy, saved, *inputs)

    @property
    def tensors(self) -> bool:
        return any(device is not None for device in self.devices)


def is_tensor(value: Any) -> bool:
    """Whoever passes a tensor has imported torch; nobody else should pay for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(value: Any) -> Array:
    """A tensor's numbers, in its own memory if it lies on the CPU."""
    if is_tensor(value):
        array: Array = value.detach().cpu().resolve_conj().resolve_neg().numpy()
        return array
    return np.asarray(value)


def handed(array: Array, device: Any) -> Any:
    """A copy in the form in which the user works."""
    copy = np.array(array, order="K")  # one of no dimensions, too, stays an array
    return copy if device is None else sys.modules["torch"].from_numpy(copy).to(device)


def arguments(pair: Pair, changes: Changes | None = None) -> list[Any]:
    replaced = changes or {}
    return [
        handed(replaced.get(index, value), device) if isinstance(value, np.ndarray) else value
        for index, (value, device) in enumerate(zip(pair.inputs, pair.devices, strict=True))
    ]


def run_forward(pair: Pair, changes: Changes | None = None) -> tuple[list[Array], Any]:
    """The outputs with some inputs replaced, and what is saved; what the forward raises goes on."""
    outputs, saved = outputs_of(pair, pair.forward(*arguments(pair, changes)))
    return [as_array(output) for output in outputs], saved


def run_backward(
    pair: Pair, wrt: tuple[int, ...], dy: Sequence[Array], changes: Changes | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """The gradients of the inputs in `wrt` as the backward has them, and the inputs and dy that it was given."""
    returned = called("forward", pair.forward, arguments(pair, changes))
    _, saved = outputs_of(pair, returned)
    device = next((each for each in pair.devices if each is not None), None)
    incoming = [handed(each, device) for each in dy]
    single = not isinstance(returned[0] if pair.saved else returned, tuple | list)
    first = [incoming[0] if single else tuple(incoming), *([saved] if pair.saved else [])]
    given = arguments(pair, changes)
    return gradients_of(pair, wrt, called("backward", pair.backward, [*first, *given])), given, incoming


def outputs_near(pair: Pair, changes: Changes, like: list[Array]) -> list[Array]:
    """The outputs with some inputs replaced; NaN where the forward raises, as at the square root of −1."""
    try:
        with _quiet():
            arrays, _ = run_forward(pair, changes)
    except RefusalError:
        raise
    except Exception:  # the user's own code, at a place where it need not work
        return [np.full_like(each, np.nan) for each in like]
    if [array.shape for array in arrays] != [each.shape for each in like]:
        raise RefusalError("the forward changes the shape or the number of its outputs with the values of its inputs.")
    return arrays


def complex_outputs(pair: Pair, index: int, value: Array) -> list[Array] | str:
    """The outputs with one input complex, or the reason why there are none. torch multiplies no matrices of two types:
    there all numbers are complex where one alone is not taken."""
    found = _complex_outputs(pair, {index: value})
    if isinstance(found, str) and pair.tensors:
        floats = [(n, x) for n, x in enumerate(pair.inputs) if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
        whole = _complex_outputs(pair, {n: x.astype(value.dtype) for n, x in floats} | {index: value})
        return found if isinstance(whole, str) else whole
    return found


def _complex_outputs(pair: Pair, changes: Changes) -> list[Array] | str:
    with _quiet():
        warnings.filterwarnings("error", message=CASTING)
        try:
            with _torch_warns_always(pair):
                return run_forward(pair, changes)[0]
        except Exception as error:  # whatever a forward raises on complex input, it does not take it
            if str(error).startswith(CASTING):
                return "the forward discards the imaginary part of complex input"
            return f"the forward does not take complex input ({type(error).__name__}: {first_line(error)})"


def first_outputs(pair: Pair) -> list[Array]:
    """The outputs on the inputs as given, and every rule that a forward must keep."""
    given = arguments(pair)
    with _quiet():
        outputs, _ = outputs_of(pair, called("forward", pair.forward, given))
    arrays = _checked_outputs(outputs)
    _refuse_changes("forward", pair, given)
    for number, output in enumerate(outputs):
        _refuse_alias(f"output {number} of the forward", output, _named(pair, given))
    elsewhere = {
        index: value * (1 + 2.0**-20)
        for index, value in enumerate(pair.inputs)
        if isinstance(value, np.ndarray) and value.dtype == np.float64
    }
    outputs_near(pair, elsewhere, arrays)  # what it remembers of other inputs must not show in the next call
    for number, (once, again) in enumerate(zip(arrays, outputs_near(pair, {}, arrays), strict=True)):
        _refuse_difference(f"output {number} of the forward", once, again)
    return arrays


def gradients_at(pair: Pair, wrt: tuple[int, ...], dy: list[Array], changes: Changes) -> list[Any]:
    """The gradients of the inputs in `wrt`, None where the backward gives none; every rule it must keep."""
    with _quiet():
        gradients, given, incoming = run_backward(pair, wrt, dy, changes)
    _refuse_changes("backward", pair, given, changes)
    for before, after in zip(dy, incoming, strict=True):
        if not same(before, as_array(after)):
            raise RefusalError("the backward changes dy: work on a copy.")
    named = _named(pair, given) | {"dy": incoming[0]} | {f"dy of output {n}": each for n, each in enumerate(incoming)}
    for index, gradient in zip(wrt, gradients, strict=True):
        if gradient is not None:
            what = f"the gradient of {pair.names[index]}"
            _check_gradient(what, as_array(gradient), pair.inputs[index])
            _refuse_alias(what, gradient, named)
            named[what] = gradient
    return [None if gradient is None else as_array(gradient) for gradient in gradients]


def gradients_on_inputs(pair: Pair, wrt: tuple[int, ...], dy: list[Array]) -> list[Any]:
    """As `gradients_at` on the inputs as given; twice, which must agree to the bit."""
    once, again = gradients_at(pair, wrt, dy, {}), gradients_at(pair, wrt, dy, {})
    for index, one, other in zip(wrt, once, again, strict=True):
        if one is not None or other is not None:
            _refuse_difference(f"the gradient of {pair.names[index]}", np.asarray(one), np.asarray(other))
    return once


def same(one: Array, other: Array) -> bool:
    """To the last bit, so that NaN is like NaN, and −0 is not like 0."""
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def called(what: str, function: Callable[..., Any], given: list[Any]) -> Any:
    try:
        return function(*given)
    except TapelessError:
        raise
    except Exception as error:  # the user's own code: say which call it was, and keep the traceback
        raise TapelessError(f"the {what} raised {type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    return textwrap.shorten((str(error).splitlines() or ["no message"])[0], 120, placeholder=" …")


def outputs_of(pair: Pair, returned: Any) -> tuple[list[Any], Any]:
    saved = None
    if returned is None:
        raise RefusalError("the forward returned None: is there a `return` at its end?")
    if pair.saved:
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise RefusalError(
                f"with saved=True the forward must return (y, saved), not {_described(returned)}; "
                f"several outputs are a tuple in the place of y."
            )
        returned, saved = returned
    outputs = list(returned) if isinstance(returned, tuple | list) else [returned]
    if not outputs:
        raise RefusalError("the forward returned no output.")
    for number, output in enumerate(outputs):
        if not (is_tensor(output) or isinstance(output, np.ndarray | np.generic | float | complex)):
            hint = " (for what only the backward needs, return (y, saved) and pass saved=True)" if number else ""
            raise RefusalError(
                f"output {number} of the forward is {_described(output)}, not an array of numbers{hint}."
            )
    return outputs, saved


def _checked_outputs(outputs: list[Any]) -> list[Array]:
    arrays = [as_array(output) for output in outputs]
    for number, array in enumerate(arrays):
        _check_numbers(f"output {number} of the forward", array)
    if not any(array.size for array in arrays):
        raise TapelessError("the forward returned nothing but empty arrays: choose inputs that give it some output.")
    return [array.copy() for array in arrays]


def gradients_of(pair: Pair, wrt: tuple[int, ...], found: Any) -> list[Any]:
    """One for each input in `wrt`, or one for each input of all."""
    if found is None:
        raise RefusalError("the backward returned None: is there a `return` at its end?")
    gradients = list(found) if isinstance(found, tuple | list) else [found]
    if len(gradients) == len(pair.inputs):
        return [gradients[index] for index in wrt]
    if len(gradients) == len(wrt):
        return gradients
    wanted = str(len(wrt)) if len(wrt) == len(pair.inputs) else f"{len(wrt)} (or {len(pair.inputs)}, with None)"
    names = ", ".join(pair.names[index] for index in wrt)
    raise RefusalError(
        f"the backward returned {len(gradients)} gradients where {wanted} are needed: one for each of {names}."
    )


def _check_gradient(what: str, array: Array, value: Array) -> None:
    if array.shape != value.shape:
        raise RefusalError(f"{what} has shape {spelled(array.shape)}, but the input has {spelled(value.shape)}.")
    _check_numbers(what, array)


def _check_numbers(what: str, array: Array) -> None:
    if array.dtype != np.float64:
        raise RefusalError(f"{what} is {array.dtype}, not float64: rounded so far, it cannot be told from a wrong one.")
    if not np.isfinite(array).all():
        where = tuple(int(axis) for axis in np.argwhere(~np.isfinite(array))[0])
        raise RefusalError(f"{what} is {array[where]} at {where}.")


def _refuse_changes(what: str, pair: Pair, given: list[Any], changes: Changes | None = None) -> None:
    for index, (name, value) in enumerate(zip(pair.names, pair.inputs, strict=True)):
        before = (changes or {}).get(index, value)
        if isinstance(value, np.ndarray) and not same(before, as_array(given[index])):
            raise RefusalError(f"the {what} changes its input {name}: work on a copy.")


def _refuse_alias(what: str, result: Any, others: Mapping[str, Any]) -> None:
    for name, other in others.items():
        if share_memory(result, other):
            raise RefusalError(
                f"{what} shares its memory with {name}: who adds to one changes the other; return a copy."
            )


def share_memory(one: Any, other: Any) -> bool:
    on_cpu = all(not is_tensor(each) or each.device.type == "cpu" for each in (one, other))
    if on_cpu:
        return np.shares_memory(as_array(_bits(one)), as_array(_bits(other)))
    if not (is_tensor(one) and is_tensor(other)):
        return False
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def _bits(value: Any) -> Any:
    """A tensor as integers, in the same memory, where NumPy does not have its type."""
    if not is_tensor(value) or value.dtype.itemsize > 2:
        return value
    return value.detach().view(sys.modules["torch"].int16 if value.dtype.itemsize == 2 else sys.modules["torch"].uint8)


def _refuse_difference(what: str, once: Array, again: Array) -> None:
    if not same(once, again):
        raise RefusalError(
            f"{what} differs between two calls with the same inputs: a random number, something remembered "
            f"from an earlier call, or a race; nothing can be proven about it."
        )


def _named(pair: Pair, given: list[Any]) -> dict[str, Any]:
    arrays = zip(pair.names, given, pair.inputs, strict=True)
    return {f"the input {name}": value for name, value, was in arrays if isinstance(was, np.ndarray)}


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Steps may leave the domain of a logarithm, and complex runs may overflow: what counts is the result."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@contextmanager
def _torch_warns_always(pair: Pair) -> Iterator[None]:
    """torch says a thing once per process, and may have said it before."""
    if not pair.tensors:
        yield
        return
    torch = sys.modules["torch"]
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


def parameters_of(function: Any) -> list[inspect.Parameter]:
    """None where it is compiled or built in: nobody wrote a signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


@contextmanager
def poisoned(tensors: bool) -> Iterator[None]:
    """torch's fresh memory is full of NaN, so that what a kernel allocates and does not write shows."""
    torch = sys.modules.get("torch")
    if not tensors or torch is None:
        yield
        return
    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)
        torch.utils.deterministic.fill_uninitialized_memory = fills
