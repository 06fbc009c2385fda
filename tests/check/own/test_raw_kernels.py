"""`check.op` on raw kernels (C, Numba, NumPy, pairs): right ones are accepted, and each mistake is named."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from tapeless import TapelessError
from tapeless.check import op

RNG = np.random.default_rng(3)
SOURCE = Path(__file__).with_name("kernels.c")
NORM = (RNG.normal(size=(4, 6)), RNG.normal(size=6), 1e-5)
SCORES = (RNG.normal(size=(5, 7)),)


# RMSNorm in C


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")

    @cache
    def built(mistake):
        file = folder / f"kernels{mistake}.so"
        flags = [f"-D{mistake}"] if mistake else []
        compiler = shutil.which("cc")
        assert compiler, "these tests need a C compiler"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", *flags, str(SOURCE), "-o", str(file), "-lm"], check=True)
        return ctypes.CDLL(str(file))

    return built


def rmsnorm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def rmsnorm_backward(dy, x, weight, eps):
    rstd = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    g, xhat = dy * weight, x * rstd
    return rstd * (g - xhat * (g * xhat).mean(axis=-1, keepdims=True)), (dy * xhat).sum(axis=0), None


def pointers(*arrays):
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def c_kernel(library):
    def forward(y, x, weight, eps):
        library.rmsnorm_forward(*pointers(y, x, weight), ctypes.c_float(eps), *map(ctypes.c_long, x.shape))

    def backward(dx, dweight, dy, x, weight, eps):
        arrays = pointers(dx, dweight, dy, x, weight)
        library.rmsnorm_backward(*arrays, ctypes.c_float(eps), *map(ctypes.c_long, x.shape))

    return forward, backward


def test_a_right_kernel_in_c_is_accepted(library):
    report = op(rmsnorm, rmsnorm_backward, NORM, kernel=c_kernel(library("")), pairs=4)
    assert report, report
    assert report.definition
    assert report.covered["shapes"] > 15
    assert set(report.limits) == {"numbers of 1e19"}  # their squares do not fit, in PyTorch neither
    report.raise_if_wrong()


def test_without_a_backward_the_complex_step_is_its_definition(library):
    report = op(rmsnorm, NORM, kernel=c_kernel(library("")), within=1e3, largest=17, pairs=0)
    assert report, report
    assert "by the complex step" in str(report)
    wrong = op(rmsnorm, NORM, kernel=c_kernel(library("NO_MEAN")), case="x 4×6, weight 6 · float32")
    assert [each.sentence.split()[0] for each in wrong.wrong] == ["dx"]


@pytest.mark.parametrize(
    ("mistake", "kind", "sentence"),
    [
        ("EPS_OUTSIDE", "the result of the forward", "y is "),
        ("NO_MEAN", "the gradient of x is wrong", "dx is "),
        (
            "WHOLE_BLOCKS",
            "does not write all of its results",
            r"it does not write dx at 8 of 24 places, first \(0, 4\)",
        ),
        ("ONE_MORE", "writes outside its arrays", "it writes a number outside dx, the first 1 past its end"),
        ("ADDS", "adds where it should overwrite", "dweight depends on what it held before"),
        ("SCALES_DY", "writes over dy", "changes dy in place"),
        (
            "SHARED_ROOM",
            "threads share memory",
            "where 4 threads call the kernel at once, each with numbers of its own",
        ),
    ],
)
def test_a_mistake_in_c_is_named(library, mistake, kind, sentence):
    report = op(rmsnorm, rmsnorm_backward, NORM, kernel=c_kernel(library(mistake)), first=True)
    assert report.verdict == "wrong"
    assert report.wrong[0].kind.startswith(kind), report
    with pytest.raises(TapelessError, match=sentence):
        report.raise_if_wrong()


def test_one_case_alone_sees_what_it_saw_among_the_others(library):
    kernel = c_kernel(library("NO_MEAN"))
    whole = op(rmsnorm, rmsnorm_backward, NORM, kernel=kernel)
    first = whole.wrong[0]
    alone = op(rmsnorm, rmsnorm_backward, NORM, kernel=kernel, case=first.again)
    assert alone.wrong[0].kind == first.kind
    assert first.inputs[0].shape == (4, 6)
    assert sum(alone.covered.values()) == 1


def test_a_kernel_that_always_adds_says_so(library):
    kernel = c_kernel(library("ADDS"))
    report = op(rmsnorm, rmsnorm_backward, NORM, kernel=kernel, adds=["dweight"], largest=17, pairs=0)
    assert report, report
    wrong = op(rmsnorm, rmsnorm_backward, NORM, kernel=c_kernel(library("")), adds=["dweight"], first=True)
    assert wrong.wrong[0].kind == "wrong where it should add"


# Softmax in Numba, with a sum to add to and threads to count


@numba.njit(nogil=True)
def numba_softmax(y, x):
    for r in range(x.shape[0]):
        largest = x[r].max()
        total = np.float32(0)
        for c in range(x.shape[1]):
            y[r, c] = np.exp(x[r, c] - largest)
            total += y[r, c]
        for c in range(x.shape[1]):
            y[r, c] /= total


def softmax(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_backward(dy, x):
    p = softmax(x)
    return p * (dy - (p * dy).sum(axis=-1, keepdims=True))


def own_backward(add_wrongly=False, wrong_on_threads=False):
    def backward(dx, dy, x, add=frozenset(), threads=1):
        p = softmax(x)
        value = p * (dy - (p * dy).sum(axis=-1, keepdims=True))
        if wrong_on_threads and threads == 3:
            value = 1.001 * value
        if "dx" in add and not add_wrongly:
            dx += value
        else:
            dx[...] = value

    return backward


def test_a_kernel_in_numba_is_accepted():
    report = op(softmax, softmax_backward, SCORES, kernel=(numba_softmax, own_backward()), pairs=4, largest=65)
    assert report, report


def test_a_softmax_without_its_maximum_overflows():
    def naive(x):
        e = np.exp(x)
        return e / e.sum(axis=-1, keepdims=True)

    report = op(softmax, SCORES, kernel=(naive, None), pairs=0)
    assert "the result of the forward overflows for a mean of 100, a deviation of 0.1" in str(report)
    assert "y is nan at" in str(report)


def test_both_forms_of_adding():
    report = op(softmax, softmax_backward, SCORES, kernel=(None, own_backward(add_wrongly=True)), first=True)
    assert report.wrong[0].kind == "wrong where it should add"
    assert "added to what was there" in str(report)


def test_other_numbers_of_threads():
    report = op(softmax, softmax_backward, SCORES, kernel=(None, own_backward(wrong_on_threads=True)), first=True)
    assert report.wrong[0].kind == "wrong on another number of threads"
    assert "on 3 of its threads" in str(report)


def test_nan_that_is_swallowed():
    def relu(x):
        return np.where(x.real > 0, x, 0 * x)

    report = op(relu, (RNG.normal(size=9),), kernel=(lambda x: np.maximum(np.nan_to_num(x), 0), None))
    assert [each.kind for each in report.wrong] == ["NaN"]
    assert "a NaN in the input is not seen in y" in str(report)
    assert op(relu, (RNG.normal(size=9),), kernel=(lambda x: np.maximum(np.nan_to_num(x), 0), None), limits=["nan"])


def test_sizes_beyond_a_block():
    def only_a_block(y, x):
        y[..., :64] = softmax(x[..., :64])
        y[..., 64:] = 0

    report = op(softmax, SCORES, kernel=(only_a_block, None), first=True)
    assert report.wrong[0].kind == "wrong for more than 64 columns"
    assert report.wrong[0].case == "x 1×65 · float32"


def test_strides_only_where_they_are_claimed():
    def flat(x):
        strided = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,))  # as C does with a bare pointer
        return 2 * strided.reshape(x.shape)

    assert op(lambda x: 2 * x, SCORES, kernel=(flat, None))
    report = op(lambda x: 2 * x, SCORES, kernel=(flat, None), strides=True, first=True)
    assert report.wrong[0].kind.startswith("wrong for an input that is not contiguous")


def test_results_that_differ_from_run_to_run():
    noise = np.random.default_rng(0)

    def backward(dy, x):
        return (softmax_backward(dy, x) * (1 + 1e-7 * noise.normal(size=x.shape))).astype(np.float32)

    report = op(softmax, softmax_backward, SCORES, kernel=(None, backward), pairs=0, largest=17)
    assert report.verdict == "right, with limits"
    assert "not deterministic" in report.limits
    assert not op(
        softmax, softmax_backward, SCORES, kernel=(None, backward), repeatable=False, pairs=0, largest=3
    ).limits


def test_what_torch_allocates_and_nobody_writes():
    def backward(dy, x):
        dx = torch.empty_like(x)
        dx[:-1] = 2 * dy[:-1]
        return dx

    report = op(lambda x: 2 * x, (torch.tensor(SCORES[0]),), kernel=(None, backward))
    assert "not all of it is finite" in str(report)
    assert not torch.are_deterministic_algorithms_enabled()


# Saved statistics, losses, several outputs


def normed(x):
    rstd = 1 / np.sqrt((x * x).mean(axis=-1) + 1e-5)
    return x * rstd[..., None], (rstd,)


def normed_backward(dy, saved, x):
    rstd = saved[0][..., None]
    return rstd * (dy - x * rstd * (dy * x * rstd).mean(axis=-1, keepdims=True))


def test_what_a_forward_saves_is_held_to_the_definition_too():
    def forward(y, rstd, x):
        y[...], kept = normed(x)
        rstd[...] = kept[0]

    def backward(dx, dy, rstd, x):
        dx[...] = normed_backward(dy, (rstd,), x)

    assert op(normed, normed_backward, SCORES, saved=True, kernel=(forward, backward), pairs=0)

    def rough(y, rstd, x):
        forward(y, rstd, x)
        rstd *= np.float32(1.0001)

    report = op(normed, normed_backward, SCORES, saved=True, kernel=(rough, backward))
    assert report.wrong[0].sentence.startswith("saved is ")
    assert report.wrong[0].others == ("dx",)


def cross_entropy(logits, targets):
    top = logits.real.max(axis=-1, keepdims=True)
    lse = np.log(np.exp(logits - top).sum(axis=-1)) + top[:, 0]
    return (lse - logits[np.arange(len(logits)), targets]).mean()


def fused_cross_entropy(mistake=""):
    def backward(dlogits, dy, logits, targets):
        p = softmax(logits)
        if mistake != "no one-hot":
            p[np.arange(len(p)), targets] -= 1
        dlogits[...] = p / len(p) * (1 if mistake == "dy forgotten" else dy)

    def forward(loss, logits, targets):
        loss[...] = cross_entropy(logits, targets)

    return forward, backward


LOGITS = (RNG.normal(size=(5, 7)), RNG.integers(0, 7, 5))


def test_a_fused_cross_entropy_over_the_whole_range():
    report = op(cross_entropy, LOGITS, kernel=fused_cross_entropy(), largest=17, pairs=0, sizes={"n7": range(7, 999)})
    assert report, report


@pytest.mark.parametrize("mistake", ["no one-hot", "dy forgotten"])
def test_a_wrong_cross_entropy(mistake):
    report = op(cross_entropy, LOGITS, kernel=fused_cross_entropy(mistake), case="logits 5×7, targets 5 · float32")
    assert report.wrong[0].sentence.startswith("dlogits is ")


# A sentence for each slip


def returning(value):
    return lambda *given: value


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"kernel": (lambda x: None, None)}, "the kernel's forward returned None: is there a `return`"),
        ({"kernel": (None, lambda dy, x: None)}, "the kernel's backward returned None: is there a `return`"),
        ({"kernel": (None, lambda dy, x: (dy, dy))}, "the kernel's backward returned 2 gradients where 1"),
        ({"kernel": (lambda x: x.astype(np.float64), None)}, "y of the kernel's forward is float64"),
        ({"kernel": (lambda x: x.astype(np.int32), None)}, "y of the kernel's forward is int32"),
        ({"kernel": (lambda x: x[:2].copy(), None)}, r"y of the kernel's forward has shape \(2, 7\)"),
        ({"kernel": (lambda x: x, None)}, "y of the kernel's forward shares its memory with x"),
        ({"kernel": (lambda x: x.__imul__(2) * 1, None)}, "the forward changes x in place"),
        ({"kernel": (lambda a, b, c, d: None, None)}, r"takes 4 arguments, but one that writes .* 2 \(y, x\)"),
        ({"kernel": (lambda *given: None, None)}, "cannot be seen: say writes=True"),
        ({"kernel": (lambda x: 1 / 0, None)}, "the forward raises ZeroDivisionError"),
        ({"kernel": (lambda y, x: 2 * x, None)}, "returns a ndarray and writes nothing into the outputs"),
        ({"kernel": numba_softmax}, r"or be a pair: kernel=\(forward, backward\)"),
        ({"kernel": (None, None)}, r"kernel must be \(forward, backward\)"),
        ({"kernel": (3, None)}, "the kernel's forward must be a function, not 3"),
        ({"adds": ["dw"]}, "adds names 'dw', which is no gradient: choose among dx"),
        ({"adds": "dx"}, r"adds must be names of gradients, such as \['dweight'\], not 'dx'"),
        ({"within": 0.5}, "within must be a number above 1"),
        ({"largest": 0}, "largest must be a whole number of at least 1"),
        ({"strides": 1}, "strides must be True or False, not 1"),
        ({"speed": 1}, "op takes no speed"),
        ({"shapes": "R C"}, "shapes must say the axes of each of the 1 inputs"),
        ({"shapes": ["R"]}, "shapes says 'R' of input 0, which has 2 axes"),
        ({"shapes": ["R R"]}, "shapes calls two axes R, but one is 5 and one, of input 0, 7"),
        ({"dy": SCORES[0]}, "a kernel is tried with many dy"),
        ({"inputs": None, "backward": None}, "there are no inputs"),
        ({"dtypes": "float31"}, "There is no dtype 'float31'|float31"),
        ({"limits": ["larg"]}, "large"),
        ({"forward": lambda x: np.abs(x), "kernel": (None, lambda dy, x: dy)}, "no backward, and the complex step"),
    ],
)
def test_slips_get_one_sentence(given, sentence):
    arguments = {"forward": softmax, "backward": None, "inputs": SCORES, "kernel": (softmax, softmax_backward)} | given
    with pytest.raises(TapelessError, match=sentence):
        op(**arguments).raise_if_wrong()


def test_claims_without_a_kernel_are_refused():
    with pytest.raises(TapelessError, match="largest is said of a kernel, and there is none"):
        op(softmax, softmax_backward, SCORES, largest=5)


def test_a_definition_that_is_wrong_holds_nothing():
    report = op(softmax, lambda dy, x: dy * 2, SCORES, kernel=(softmax, None))
    assert report.verdict == "refused"
    assert "the definition is wrong" in str(report)
    assert "dx: wrong" in str(report)


def test_shapes_say_what_sizes_do_not():
    """A square example, and an input whose length is its own."""
    square = RNG.normal(size=(4, 4))
    assert op(softmax, (square,), kernel=(softmax, None), shapes=["R C"])
    seen = []

    def forward(x):
        seen.append(x.shape)
        return softmax(x)

    op(softmax, (square,), kernel=(forward, None), shapes=["R 4"], largest=5)
    assert {shape[1] for shape in seen} == {4}


def test_a_number_alone_several_outputs_and_gradients_that_do_not_depend_on_x():
    assert op(lambda x: x * x, np.array(3.0), kernel=(lambda x: x * x, lambda dy, x: 2 * dy * x), largest=9)
    assert op(lambda x: 2 * x, np.arange(1.0, 6.0), kernel=(None, lambda dy, x: 2 * dy), pairs=0, largest=9)
    two = (lambda x: (2 * x, x.sum()), lambda dy, x: 2 * dy[0] + dy[1])
    assert op(two[0], SCORES, kernel=two, pairs=0, largest=9)


def test_a_case_that_is_none_is_no_verdict():
    with pytest.raises(TapelessError, match="there is no case 'x 3'"):
        op(softmax, SCORES, kernel=(softmax, None), case="x 3")
