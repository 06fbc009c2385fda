"""Whatever is called a kernel, whatever it does: it is judged, its faults are findings, and scripts show them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tapeless.check import op
from tests import own_kernels
from tests.own_kernels import RIGHT, WRONG, gelu, silu_mul

ROOT = Path(__file__).parents[3]
A, B = RIGHT["silu"].inputs
QUICK = {"pairs": 0, "largest": 17, "dtypes": ["float32"]}


# Scripts


@pytest.mark.parametrize(
    "name",
    [
        *("forgets_a_term", "one_block_of_64", "transposed_dy", "x_through_its_pointer", "dy_is_ignored"),
        *("second_output_is_forgotten", "swallows_nan", "AsksForTheWrongInput", "keeps_four_bits"),
        *("softmax_without_its_maximum", "AddsToItsBuffer"),
    ],
)
def test_the_script_shows_the_fault_with_pytorch_alone(name):
    wrong = WRONG[name]
    right = RIGHT[wrong.of]
    report = op(right.definition, right.inputs, kernel=wrong.kernel, first=True, **right.options)
    mistake = report.wrong[0]
    assert "tapeless" not in mistake.script
    assert len(mistake.script.splitlines()) < 25
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(mistake.script, name, "exec"), {})
    if mistake.compared is None:
        return
    found = out.getvalue().split()[1]
    assert float(found) == mistake.compared.found or (
        found == "nan" and mistake.compared.found != mistake.compared.found
    )


# Whatever is called a kernel


class Scaled(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, wrong=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.wrong = wrong

    def forward(self, x):
        seen = self.weight.detach() if self.wrong else self.weight
        return x * seen


def test_a_module_has_gradients_of_its_weights():
    assert op(Scaled(), (A,), kernel=Scaled(), **QUICK)
    report = op(lambda x, weight: x * weight, (A,), kernel=Scaled(wrong=True), **QUICK)
    assert report.wrong[0].kind == "the gradient of weight is wrong"
    assert "all of it is 0" in report.wrong[0].sentence


def custom_gelu(wrong_schema=False, wrong=False):
    name = f"tapeless_test::gelu{int(wrong_schema)}{int(wrong)}{time.time_ns()}"

    @torch.library.custom_op(name, mutates_args=())  # type: ignore[untyped-decorator]
    def made(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape) if wrong_schema else gelu(x)

    made.register_fake(torch.empty_like)

    def backward(ctx, dy):
        found = own_kernels.gelu_backward(ctx, dy, ctx.saved_tensors[0])
        return 2 * found if wrong else found

    made.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    return made


def test_a_custom_op_and_opcheck():
    report = op(gelu, (A,), kernel=custom_gelu(), **QUICK)
    assert report, report
    assert any("torch.library.opcheck" in note and "test_schema" in note for note in report.notes)
    assert op(gelu, (A,), kernel=custom_gelu(wrong=True), **QUICK).wrong[0].kind == "the gradient of x is wrong"


def test_lists_integers_none_and_options():
    def definition(xs, rows, bias, *, scale=1.0, square=False):
        total = sum(xs)[rows] * scale
        return total * total if square else total

    def kernel(xs, rows, bias, *, scale=1.0, square=False):
        return definition(xs, rows, bias, scale=scale, square=square)

    def forgets_an_option(xs, rows, bias, *, scale=1.0, square=False):
        return definition(xs, rows, bias, scale=scale)

    inputs = ([A, B], torch.tensor([0, 2, 2, 1]), None)
    options = QUICK | {"options": {"scale": 0.5, "square": [False, True]}, "shapes": [None, "N", None]}
    assert op(definition, inputs, kernel=kernel, **options)
    report = op(definition, inputs, kernel=forgets_an_option, **options)
    assert report.wrong[0].kind == "wrong for square=True"


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class FusedRope(torch.autograd.Function):  # type: ignore[misc]
    """It takes the halves of cos and sin for equal, as they are."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return rope(x, cos, sin)

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        half = dy.shape[-1] // 2
        return dy * cos + torch.cat([dy[..., half:], -dy[..., :half]], -1) * sin, None, None


class InPlaceRelu(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.clamp_(min=0))
        return x

    @staticmethod
    def backward(ctx, dy):
        return dy * (ctx.saved_tensors[0] > 0)


def test_in_place_is_a_limit_where_it_is_declared():
    assert op(torch.relu, (A,), kernel=InPlaceRelu, limits=["in place"], **QUICK)
    assert op(torch.relu, (A,), kernel=InPlaceRelu, **QUICK).wrong[0].kind == "writes over an input"


class TakesTheFirst(torch.autograd.Function):  # type: ignore[misc]
    """The definition shares the gradient among ties."""

    @staticmethod
    def forward(ctx, x):
        y, place = x.max(-1)
        ctx.save_for_backward(place)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(place)
        return y, place

    @staticmethod
    def backward(ctx, dy, _):
        place = ctx.saved_tensors[0][..., None]
        return torch.zeros(ctx.shape, dtype=dy.dtype).scatter_(-1, place, dy[..., None])


class OtherSlopeAt0(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, dy):
        return dy * (ctx.saved_tensors[0] >= 0)


def test_at_ties_and_kinks_any_slope_will_do():
    report = op(lambda x: x.amax(-1), (A,), kernel=TakesTheFirst)
    assert report, report
    report = op(torch.relu, (A,), kernel=OtherSlopeAt0)
    assert report, report


def test_a_relation_between_inputs_and_inputs_without_a_gradient():
    angle = torch.randn(5, 3)
    inputs = A, torch.cat([angle.cos(), angle.cos()], -1), torch.cat([angle.sin(), angle.sin()], -1)

    def relate(x, cos, sin):
        half = cos.shape[-1] // 2
        return x, torch.cat([cos[..., :half]] * 2, -1), torch.cat([sin[..., :half]] * 2, -1)

    options = QUICK | {"wrt": ["x"], "sizes": {"n6": range(2, 99, 2)}, "limits": ["rank"]}
    report = op(rope, inputs, kernel=FusedRope, relate=relate, **options)
    assert report, report
    assert op(rope, inputs, kernel=FusedRope, **options).verdict == "wrong"


def test_what_has_no_definition_is_its_own():
    report = op(RIGHT["silu"].kernel, (A, B), **QUICK)
    assert report, report
    assert "wrong" in op(WRONG["forgets_a_term"].kernel, (A, B), **QUICK).verdict

    class ZeroAboveASize(RIGHT["gelu"].kernel):  # type: ignore[misc]
        @staticmethod
        def backward(ctx, dy):
            return own_kernels.gelu_backward(ctx, dy, *ctx.saved_tensors) * (dy.numel() < 40)

    report = op(ZeroAboveASize, (A,), **QUICK)
    assert report.verdict == "wrong"
    assert "is not the derivative of" in report.wrong[0].sentence


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_pair_in_the_dtype_it_runs_in(dtype):
    x = A.to(getattr(torch, dtype))
    assert op(torch.sigmoid, lambda dy, x: dy * torch.sigmoid(x) * (1 - torch.sigmoid(x)), x, pairs=0, largest=17)
    assert op(torch.sigmoid, lambda dy, x: dy * torch.sigmoid(x), x, pairs=0).verdict == "wrong"


def test_a_definition_that_converts_to_float32_keeps_its_digits():
    def definition(x):
        return gelu(x.float()).to(x.dtype)

    report = op(definition, (A.double(),), kernel=RIGHT["gelu"].kernel, dtypes=["float64"], pairs=0, largest=17)
    assert report, report


def test_triton_without_a_gpu_and_without_preparation():
    code = (
        "from tests.own_triton import *\n"
        "from tapeless.check import op\n"
        "quick = dict(pairs=0, largest=17, dtypes=['float32'])\n"
        "right = op(definition, inputs, kernel=RMSNorm, **quick)\n"
        "assert right, right\n"
        "wrong = op(definition, inputs, kernel=Careless, first=True, **quick)\n"
        "assert 'dy' in wrong.wrong[0].kind, wrong\n"
    )
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def run(command):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


# Whatever it does


def huge(x):
    return torch.empty(10**15) + x.sum()


def ends(x):
    os._exit(3)


def sleeps(x):
    time.sleep(60)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (lambda x: 1 / 0, "raises"),
        (lambda x: sys.exit(2), "raises"),
        (lambda x: 3, "returns something else"),
        (lambda x: [], "returns something else"),
        (lambda x: x[:0], "wrong shape"),
        (lambda x: x.int(), "returns something else"),
        (lambda x: gelu(x).double(), "wrong dtype"),
        (lambda x: gelu(x).to("meta"), "wrong device|raises"),
        (lambda x: gelu(x.detach()), "no gradient"),
        (lambda x: (gelu(x), gelu(x)), "wrong number of outputs"),
        (huge, "raises"),
    ],
)
def test_nothing_a_kernel_does_escapes(kernel, kind):
    report = op(gelu, (A,), kernel=kernel, first=True, **QUICK)
    assert report.verdict == "wrong", report
    assert report.wrong[0].kind in kind.split("|"), report


@pytest.mark.parametrize(("kernel", "kind"), [(ends, "ends the process"), (sleeps, "hangs")])
def test_in_a_process_of_its_own_it_may_end_or_hang(kernel, kind):
    began = time.perf_counter()
    report = op(gelu, (A,), kernel=kernel, limit=3, **QUICK)
    assert report.wrong[0].kind == kind, report
    assert time.perf_counter() - began < 30
    assert op(gelu, (A,), kernel=RIGHT["gelu"].kernel, limit=60, **QUICK)


def test_the_same_seed_makes_the_same_cases():
    one, other = (op(silu_mul, (A, B), kernel=RIGHT["silu"].kernel, seed=3, **QUICK) for _ in range(2))
    assert [(row.case, row.compared.error) for row in one.results] == [
        (r.case, r.compared.error) for r in other.results
    ]


def test_what_time_did_not_allow_is_said():
    report = op(silu_mul, (A, B), kernel=RIGHT["silu"].kernel, seconds=0.05)
    assert sum(report.left.values()) > 20
    assert "no time for" in str(report)


# The command


def test_the_command(tmp_path):
    kernel = f"{ROOT}/tests/own_triton.py:Careless:definition"
    page = tmp_path / "page.html"
    done = run([sys.executable, "-m", "tapeless", "check", kernel, "--json", "--seconds", "4", "--html", str(page)])
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert said["verdict"] == "wrong"
    assert "dy" in said["wrong"][0]["class"]
    assert said["wrong"][0]["script"].startswith("import torch")
    assert "<svg" in page.read_text()
    done = run([sys.executable, "-m", "tapeless", "check", "nowhere.py:Kernel"])
    assert done.returncode != 0
    assert "there is no file nowhere.py" in done.stdout + done.stderr
