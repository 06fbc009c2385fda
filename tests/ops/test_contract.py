"""What every op promises, whatever it computes: held over all of OPS, so that a new op is held to it too."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tapeless import ops
from tapeless.check.tolerances import TOLERANCES
from tapeless.ops import OPS
from tapeless.ops.contract import (
    LEGEND,
    NONE,
    Array,
    Signature,
    Spec,
    away_from_zero,
    given,
    product_flops,
    store,
)
from tapeless.ops.linear import reference as linear

BOTH_WAYS = [
    pytest.param(name, direction, id=f"{name}.{direction}")
    for name, op in OPS.items()
    for direction in ("forward", "backward")
    if direction == "forward" or op.SPEC.backward is not None
]
NOT_IN_PLACE = [
    pytest.param(name, direction, id=f"{name}.{direction}")
    for name, op in OPS.items()
    for direction in ("forward", "backward")
    if (direction == "forward" or op.SPEC.backward is not None) and not op.SPEC.signature(direction).updates
]
ADDING = [
    pytest.param(name, direction, output, id=f"{name}.{direction} {output}")
    for name, op in OPS.items()
    for direction in ("forward", "backward")
    if direction == "forward" or op.SPEC.backward is not None
    for output in op.SPEC.signature(direction).adds
]
LEFT_OUT = [
    pytest.param(name, direction, argument, id=f"{name}.{direction} {argument}")
    for name, op in OPS.items()
    for direction in ("forward", "backward")
    if direction == "forward" or op.SPEC.backward is not None
    for argument in op.SPEC.signature(direction).optional
    if argument not in op.SPEC.signature(direction).needed_by
]
# Sums of a handful of numbers of size 1 to 10, in one order or the other: a few units in the last place of 10.
ROUNDING = 1e-14
# float32 keeps 7 digits; the longest chains here are some tens of operations.
FLOAT32 = 1e-5


class Case:
    """An op's own example, ready to run: outputs full of NaN, everything that is read beside them."""

    def __init__(self, name: str, direction: str, dtype: Any = np.float64, *, without: str = "") -> None:
        self.op: ModuleType = OPS[name]
        self.direction = direction
        spec: Spec = self.op.SPEC
        self.signature: Signature = spec.signature(direction)
        example = self.op.example(np.random.default_rng(5))
        self.scalars = {scalar: example[scalar] for scalar in self.signature.scalars}
        arrays = {key: value for key, value in example.items() if key in spec.shapes}
        self.dims = spec.dims({k: v if isinstance(v, tuple) else v.shape for k, v in arrays.items()})
        self.reads: dict[str, Array] = {}
        for read in set(spec.forward.optional) - set(arrays):  # an example of its own, or of check/examples.py, has it
            shape = tuple(self.dims[letter] for letter in spec.letters(read))
            arrays[read] = np.random.default_rng(7).uniform(0.5, 2, shape)
        if "master" in arrays:  # of one type, weights and master copy are the same
            arrays["master"] = arrays["weights"].copy()
        known = {k: self._typed(k, v, dtype) for k, v in arrays.items() if not isinstance(v, tuple)}
        if direction == "backward" and not spec.fused:
            forward = Case(name, "forward", dtype)
            forward.run()
            known |= forward.outputs
            rng = np.random.default_rng(6)
            for output, value in forward.outputs.items():
                known[f"d{output}"] = rng.normal(size=value.shape).astype(dtype)
        self.reads = {read: known[read] for read in self.signature.reads}
        self.outputs: dict[str, Array] = {
            output: known[output].copy() if output in self.signature.updates else self._nan(output, dtype)
            for output in self.signature.writes
        }
        self.without = without

    def _typed(self, name: str, value: Array, dtype: Any) -> Array:
        return value.astype(self.op.SPEC.dtype(name, dtype))

    def _nan(self, name: str, dtype: Any) -> Array:
        spec: Spec = self.op.SPEC
        shape = tuple(int(x) if x.isdigit() else self.dims[x] for x in spec.letters(name))
        kind = np.dtype(spec.dtype(name, dtype))
        return np.full(shape, -1 if kind.kind == "i" else np.nan, kind)

    def run(self, add: frozenset[str] = NONE) -> dict[str, Array]:
        given = {k: None if k == self.without else v for k, v in (self.outputs | self.reads).items()}
        kernel = getattr(self.op, self.direction)
        extra = {"add": add} if add else {}
        result = kernel(*given.values(), *self.scalars.values(), **extra)
        assert result is None
        return {name: array for name, array in self.outputs.items() if name != self.without}


def scaled_error(found: Array, true: Array) -> float:
    return float(np.abs(found - true).max() / max(np.abs(true).max(), 1e-300))


# Form


def test_every_folder_is_an_op() -> None:
    folder = Path(inspect.getfile(ops)).parent
    found = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert found == set(OPS) == set(ops.NAMES)


@pytest.mark.parametrize("name", OPS)
def test_the_folder_is_the_name(name: str) -> None:
    op = OPS[name]
    assert op.SPEC.name == name == Path(inspect.getfile(op)).parent.name
    assert op.__name__ == f"tapeless.ops.{name}.reference"


@pytest.mark.parametrize("name", OPS)
def test_the_derivation_is_short_and_numbered(name: str) -> None:
    """At most 25 lines; equations (1), (2), … in order; each is cited by the code, and no other is."""
    op = OPS[name]
    assert op.__doc__ is not None
    derivation = op.__doc__.strip().splitlines()
    assert len(derivation) <= 25
    numbered = [int(n) for line in derivation for n in re.findall(r"^\((\d+)\)  ", line)]
    assert numbered
    assert numbered == list(range(1, len(numbered) + 1))
    source = inspect.getsource(op)
    body = source[source.index('"""', 3) + 3 :]
    cited = {int(n) for comment in re.findall(r"#(.*)", body) for n in re.findall(r"\((\d+)\)", comment)}
    assert cited == set(numbered)


@pytest.mark.parametrize(("name", "direction"), BOTH_WAYS)
def test_the_kernel_takes_what_the_signature_says(name: str, direction: str) -> None:
    """Outputs, saved, inputs, scalars, in that order; `add` where there are outputs that can be added to."""
    op = OPS[name]
    signature = op.SPEC.signature(direction)
    parameters = inspect.signature(getattr(op, direction)).parameters
    wanted = [*signature.arguments, *signature.scalars, *(["add"] if signature.adds else [])]
    assert list(parameters) == wanted
    if signature.adds:
        assert parameters["add"].default == NONE


@pytest.mark.parametrize("name", OPS)
def test_an_op_has_a_kernel_for_every_signature_and_no_more(name: str) -> None:
    assert hasattr(OPS[name], "backward") == (OPS[name].SPEC.backward is not None)


@pytest.mark.parametrize(("name", "direction"), BOTH_WAYS)
def test_the_signature_holds_together(name: str, direction: str) -> None:
    spec: Spec = OPS[name].SPEC
    signature = spec.signature(direction)
    assert signature.writes
    assert all(formula.strip() for formula in signature.writes.values())
    assert len(set(signature.arguments)) == len(signature.arguments)
    assert set(signature.adds) <= set(signature.writes)
    assert set(signature.updates) <= set(signature.writes)
    assert not set(signature.adds) & set(signature.updates)
    for argument in signature.arguments:
        assert argument in spec.shapes or argument[1:] in spec.shapes
        assert spec.letters(argument)


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.SPEC.backward is not None])
def test_a_backward_writes_gradients_of_inputs(name: str) -> None:
    """d + an input; a fused loss also yields the loss and uses the scores' memory."""
    spec: Spec = OPS[name].SPEC
    assert spec.backward is not None
    gradients = {f"d{read}" for read in spec.forward.reads}
    assert set(spec.backward.writes) <= gradients | (set(spec.forward.writes) if spec.fused else set())
    assert set(spec.backward.writes) & gradients
    known = {*spec.forward.arguments, *(f"d{write}" for write in spec.forward.writes)}
    assert set(spec.backward.reads) <= known
    # A bias may be absent, a gradient nobody needs, and what is needed for such a gradient alone; never the loss.
    assert set(spec.forward.optional) <= set(spec.forward.reads)
    left_out = set(spec.backward.optional) - set(spec.forward.optional) - set(spec.backward.needed_by)
    assert left_out <= {write for write in spec.backward.writes if write in gradients}
    for read, outputs in spec.backward.needed_by.items():
        assert read in spec.backward.reads
        assert set(outputs) <= left_out
    assert spec.backward.scalars == () or spec.backward.scalars == spec.forward.scalars


@pytest.mark.parametrize("name", OPS)
def test_every_letter_is_in_the_legend(name: str) -> None:
    spec: Spec = OPS[name].SPEC
    for argument, letters in spec.shapes.items():
        for letter in letters.split():
            assert letter in LEGEND or letter.isdigit(), f"{letter} of {argument}"
    assert set(spec.roles) <= set(spec.shapes)
    assert set(spec.roles.values()) <= {"statistic", "index", "scalar"}


@pytest.mark.parametrize("name", OPS)
def test_kernels_have_no_bare_except_no_assert_and_no_print(name: str) -> None:
    for node in ast.walk(ast.parse(inspect.getsource(OPS[name]))):
        assert not isinstance(node, ast.Assert | ast.Try)
        assert not (isinstance(node, ast.Name) and node.id == "print")


@pytest.mark.parametrize("name", OPS)
def test_the_example_hides_nothing(name: str) -> None:
    """No size of 1 where the letter is not a 1, and no two letters of the same size that could be mixed up."""
    dims = Case(name, "forward").dims
    assert all(size > 1 for size in dims.values()), dims
    pairs = [("R", "C"), ("R", "F"), ("C", "F"), ("V", "C"), ("R", "V"), ("T", "S"), ("B", "T"), ("P", "T")]
    for one, two in pairs:
        if one in dims and two in dims:
            assert dims[one] != dims[two], dims


# Running


@pytest.mark.parametrize(("name", "direction"), BOTH_WAYS)
def test_outputs_are_written_completely(name: str, direction: str) -> None:
    """They were NaN before: not one element is left, and none is computed from what was there."""
    for output, value in Case(name, direction).run().items():
        assert np.isfinite(value).all(), output


@pytest.mark.parametrize(("name", "direction"), BOTH_WAYS)
def test_inputs_are_never_changed(name: str, direction: str) -> None:
    case = Case(name, direction)
    before = {read: array.copy() for read, array in case.reads.items()}
    for array in case.reads.values():
        array.setflags(write=False)  # a kernel that writes here and back again is caught as well
    case.run()
    for read, array in case.reads.items():
        assert np.array_equal(array, before[read]), read


@pytest.mark.parametrize(("name", "direction"), NOT_IN_PLACE)
def test_running_twice_gives_the_same(name: str, direction: str) -> None:
    """Nothing is kept between calls, and what an output held before does not matter."""
    case = Case(name, direction)
    first = {output: value.copy() for output, value in case.run().items()}
    for output, value in case.run().items():
        assert np.array_equal(value, first[output]), output


@pytest.mark.parametrize(("name", "direction", "output"), ADDING)
def test_add_adds(name: str, direction: str, output: str) -> None:
    """What was there plus what writing gives; the other outputs are still overwritten."""
    written = Case(name, direction).run()
    case = Case(name, direction)
    there = np.random.default_rng(8).normal(size=written[output].shape)
    case.outputs[output][...] = there
    added = case.run(add=frozenset({output}))
    assert np.abs(written[output]).max() > 100 * ROUNDING  # else there would be nothing to see
    assert np.abs(added[output] - (there + written[output])).max() <= ROUNDING
    for other in written.keys() - {output}:
        assert np.array_equal(added[other], written[other])


@pytest.mark.parametrize(("name", "direction", "argument"), LEFT_OUT)
def test_what_is_optional_can_be_left_out(name: str, direction: str, argument: str) -> None:
    """The other outputs are written completely without it; without a gradient, they are the very same."""
    whole, rest = Case(name, direction).run(), Case(name, direction, without=argument).run()
    assert rest.keys() == whole.keys() - {argument}
    for other, value in rest.items():
        assert np.isfinite(value).all()
        if other != "logits":  # scratch: what is left there means nothing
            assert np.array_equal(value, whole[other]) == (argument in whole)


def test_without_dweight_a_linear_needs_no_x() -> None:
    whole, case = Case("linear", "backward"), Case("linear", "backward")
    whole.run()
    linear.backward(case.outputs["dx"], None, case.outputs["dbias"], case.reads["dy"], None, case.reads["weight"])
    assert all(np.array_equal(case.outputs[name], whole.outputs[name]) for name in ("dx", "dbias"))


@pytest.mark.parametrize(("name", "direction"), BOTH_WAYS)
def test_float32_in_float32_out(name: str, direction: str) -> None:
    double, single = Case(name, direction), Case(name, direction, np.float32)
    double.run()
    single.run()
    for output, value in single.outputs.items():
        assert value.dtype == double.op.SPEC.dtype(output, "float32")
        assert scaled_error(value, double.outputs[output]) <= FLOAT32, output


@pytest.mark.parametrize(("name", "direction"), BOTH_WAYS)
def test_complex_without_imaginary_part_is_float64(name: str, direction: str) -> None:
    real, unreal = Case(name, direction), Case(name, direction, np.complex128)
    real.run()
    unreal.run()
    for output, value in unreal.outputs.items():
        assert scaled_error(value.real, real.outputs[output]) <= TOLERANCES["complex step"], output
        assert np.array_equal(value.imag, np.zeros_like(value.imag)), output


# FLOPs


@pytest.mark.parametrize(("name", "direction"), BOTH_WAYS)
def test_flops_is_a_count(name: str, direction: str) -> None:
    case = Case(name, direction)
    count = case.op.flops(direction, case.dims, frozenset(case.signature.writes), case.scalars)
    assert type(count) is int
    assert count >= 0
    # A copy or a fill does no arithmetic; everything else does.
    free = {
        ("zero", "forward"),
        ("embedding", "forward"),
        ("last_position", "forward"),
        ("last_position", "backward"),
        ("remember", "forward"),
    }
    assert (count == 0) == ((name, direction) in free)


def count_of(name: str, direction: str, dims: dict[str, int], *writes: str, **scalars: Any) -> int:
    asked = frozenset(writes or OPS[name].SPEC.signature(direction).writes)
    count: int = OPS[name].flops(direction, dims, asked, scalars)
    return count


def test_flops_of_linear() -> None:
    dims = {"R": 7, "C": 5, "F": 3}
    product = 2 * 7 * 5 * 3
    assert count_of("linear", "forward", dims) == product + 7 * 3
    assert count_of("linear", "backward", dims) == 2 * product + 7 * 3
    assert count_of("linear", "backward", dims, "dweight", "dbias") == product + 7 * 3


def test_flops_of_linear_count_no_bias_that_is_not_there() -> None:
    assert count_of("linear", "backward", {"R": 7, "C": 5, "F": 3}, "dx", "dweight") == 2 * 2 * 7 * 5 * 3


def test_flops_of_attention() -> None:
    """Products over the visible pairs only: forward q·k and p·v; backward q·k again, dp, dv, dq, dk."""
    dims = {"B": 2, "T": 4, "S": 6, "C": 8, "H": 2, "D": 4}
    visible = sum(1 for query in range(4) for key in range(6) if key <= query + 2)
    assert visible == 3 + 4 + 5 + 6
    for causal, pairs in ((True, visible), (False, 4 * 6)):
        softmax = 2 * 2 * pairs * 6  # B · H · pairs, some operations each
        assert count_of("attention", "forward", dims, causal=causal, window=0) == 2 * 2 * pairs * 2 * 8 + softmax
        assert count_of("attention", "backward", dims, causal=causal, window=0) == 2 * 5 * pairs * 2 * 8 + softmax


def test_flops_of_attention_with_a_window() -> None:
    """A window of 4: the first query sees the three keys there are, the others four each."""
    dims = {"B": 2, "T": 4, "S": 6, "C": 8, "H": 2, "E": 4}
    pairs = 3 + 3 * 4
    assert count_of("attention", "forward", dims, causal=True, window=4) == 2 * 2 * pairs * (2 * 8 + 6)


def test_flops_of_the_classifier() -> None:
    """A product for the scores, one for dx, one for dweight; the softmax beside them is small."""
    dims = {"R": 7, "C": 5, "V": 11, "K": 3}
    product, softmax = 2 * 7 * 5 * 11, 4 * 7 * 11
    assert count_of("classifier", "forward", dims) == product + softmax
    assert count_of("classifier", "backward", dims) == 3 * product + softmax


@pytest.mark.parametrize("name", ["unembed", "proximity"])
def test_flops_of_the_readouts(name: str) -> None:
    dims = {"R": 7, "C": 5, "V": 11}
    assert count_of(name, "forward", dims) == 2 * 7 * 5 * 11
    assert count_of(name, "backward", dims) == 2 * 2 * 7 * 5 * 11


# contract.py itself


SPEC = Spec("some", {"y": "R F", "x": "R C", "weight": "C F", "one": "1", "z": "B T C"}, Signature({"y": "…"}))


def test_dims_finds_every_letter() -> None:
    shapes = {"y": (2, 3, 4), "dx": (2, 3, 5), "weight": (5, 4), "one": (1,)}
    assert SPEC.dims(shapes) == {"R": 6, "F": 4, "C": 5}


@pytest.mark.parametrize(
    ("shapes", "argument", "letters", "wanted", "found"),
    [
        ({"y": (6, 4), "x": (6, 5), "weight": (5, 3)}, "weight", "C F", "5×4", "5×3"),
        ({"y": (6, 4), "x": (2, 2, 5)}, "x", "R C", "6×C", "2×2×5"),
        ({"y": (6, 4), "dx": (5, 5)}, "dx", "R C", "6×C", "5×5"),
        ({"one": (2,)}, "one", "1", "1", "2"),
        ({"weight": (2, 3, 4)}, "weight", "C F", "C×F", "2×3×4"),
        ({"z": (2, 3)}, "z", "B T C", "B×T×C", "2×3"),
    ],
)
def test_dims_refuses_disagreement(
    shapes: dict[str, tuple[int, ...]], argument: str, letters: str, wanted: str, found: str
) -> None:
    with pytest.raises(ValueError, match=argument) as caught:
        SPEC.dims(shapes)
    assert caught.value.args == (argument, letters, wanted, found)


def test_leading_axes_fold_into_rows() -> None:
    assert SPEC.kernel_shape("x", (2, 3, 5)) == (6, 5)
    assert SPEC.kernel_shape("dx", (2, 3, 5)) == (6, 5)
    assert SPEC.kernel_shape("z", (2, 3, 5)) == (2, 3, 5)
    assert SPEC.letters("dweight") == ["C", "F"]


def test_no_backward_to_ask_for() -> None:
    assert SPEC.signature("forward") is SPEC.forward
    with pytest.raises(LookupError, match="some has no backward"):
        SPEC.signature("backward")


def test_store() -> None:
    out = np.array([1.0, 2.0])
    store(out, np.array([3.0, 4.0]), add=True)
    assert out.tolist() == [4.0, 6.0]
    store(out, np.array([3.0, 4.0]), add=False)
    assert out.tolist() == [3.0, 4.0]


def test_counting_helpers() -> None:
    assert product_flops({"R": 2, "C": 3, "F": 5}, "RCF") == 60
    assert product_flops({"R": 2, "C": 3}, "RC", times=3) == 36
    assert given(frozenset({"dx"}), "dx", "dweight") == 1


def test_away_from_zero() -> None:
    values = away_from_zero(np.random.default_rng(0), 1000)
    assert np.abs(values).min() >= 0.1
    assert values.min() < 0 < values.max()
