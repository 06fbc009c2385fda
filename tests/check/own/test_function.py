"""`check.op` on `torch.autograd.Function`s as they are, and what `torch.autograd.gradcheck` does not see of them."""

from __future__ import annotations

import pytest
import torch

from tapeless import TapelessError
from tapeless.check import op

torch.manual_seed(5)
A, B = torch.randn(4, 6), torch.randn(4, 6)


class SwiGLU(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * torch.sigmoid(a) * b

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        return dy * b * s * (1 + a * (1 - s)), dy * a * s


class OverwritesDy(SwiGLU):
    """As kernels do that save a buffer: the gradient takes the place of dy."""

    @staticmethod
    def backward(ctx, dy):
        da, db = SwiGLU.backward(ctx, dy)
        return dy.copy_(da), db


class TakesDyForContiguous(SwiGLU):
    """As a kernel does that is handed a pointer."""

    @staticmethod
    def backward(ctx, dy):
        held = dy.untyped_storage().nbytes() // dy.element_size()
        flat = dy.as_strided((min(held, dy.numel()),), (1,))
        return SwiGLU.backward(ctx, torch.nn.functional.pad(flat, (0, dy.numel() - len(flat))).reshape(dy.shape))


class AsksForTheWrongInput(SwiGLU):
    @staticmethod
    def backward(ctx, dy):
        da, db = SwiGLU.backward(ctx, dy)
        return da if ctx.needs_input_grad[0] else None, db if ctx.needs_input_grad[0] else None


class RoughInFloat32(SwiGLU):
    """Right in float64, where gradcheck looks; in float32 it goes through half precision."""

    @staticmethod
    def backward(ctx, dy):
        da, db = SwiGLU.backward(ctx, dy)
        return (da.half().float() if da.dtype == torch.float32 else da), db


class OverflowsInFloat32(SwiGLU):
    """The sigmoid as it should not be written: right wherever float64 is tried."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        e = torch.exp(a)
        return a * e / (1 + e) * b


class ForgetsATerm(SwiGLU):
    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        return dy * b * s, dy * a * s


class NoGradientOfB(SwiGLU):
    @staticmethod
    def backward(ctx, dy):
        return SwiGLU.backward(ctx, dy)[0], None


class OnlyFloat32(SwiGLU):
    @staticmethod
    def forward(ctx, a, b):
        return SwiGLU.forward(ctx, a.float(), b.float())


class Several(torch.autograd.Function):  # type: ignore[misc]
    """Two outputs, a third that is an index; an integer, a tensor of integers and a default among the inputs."""

    @staticmethod
    def forward(ctx, x, power, rows, weight, bias=None):
        ctx.save_for_backward(x, rows, weight)
        ctx.power = power
        return x**power, (x * weight)[rows], torch.argmax(x)

    @staticmethod
    def backward(ctx, dy, dz, _):
        x, rows, weight = ctx.saved_tensors
        picked = torch.zeros_like(x).index_add_(0, rows, dz)
        return dy * ctx.power * x ** (ctx.power - 1) + picked * weight, None, None, (picked * x).sum(0), None


class ForgetsTheSecondOutput(Several):
    @staticmethod
    def forward(ctx, x, power, rows, weight, bias=None):
        ctx.set_materialize_grads(False)
        return Several.forward(ctx, x, power, rows, weight)


class WithoutContext(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(x, scale):
        return x * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.scale, None


SEVERAL = (A, 3, torch.tensor([0, 2, 2]), torch.randn(6))


@pytest.mark.parametrize(
    ("function", "inputs"), [(SwiGLU, (A, B)), (Several, SEVERAL), (WithoutContext, (A, 0.5))], ids=range(3)
)
def test_a_right_function_is_accepted_as_it_is(function, inputs):
    report = op(function, inputs, largest=65)
    assert report, report
    assert not any(each.requires_grad for each in inputs if isinstance(each, torch.Tensor))


def gradcheck(function):
    given = [each.double().requires_grad_() for each in (A, B)]
    return torch.autograd.gradcheck(function.apply, given, raise_exception=False)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (OverwritesDy, "refused: the backward changes dy"),
        (TakesDyForContiguous, r"where dy is y.sum\(\)'s, one number seen everywhere"),
        (AsksForTheWrongInput, r"db is 0.0 at .* where only b asks for a gradient"),
        (RoughInFloat32, "sizes: da is "),
        (OverflowsInFloat32, "range: y is nan at"),
    ],
)
def test_what_gradcheck_does_not_see(function, sentence):
    assert gradcheck(function)
    with pytest.raises(TapelessError, match=sentence):
        op(function, (A, B), largest=65).raise_if_wrong()


@pytest.mark.parametrize(("function", "wrong"), [(ForgetsATerm, "da"), (NoGradientOfB, "db")])
def test_what_gradcheck_sees_too(function, wrong):
    assert not gradcheck(function)
    report = op(function, (A, B))
    assert report.verdict == "wrong"
    assert f"{wrong}: wrong" in str(report)


def test_one_that_takes_float32_alone_is_held_to_a_definition():
    assert "returns torch.float32 for float64" in op(OnlyFloat32, (A, B)).reason
    assert "op(forward, inputs, kernel=OnlyFloat32)" in op(OnlyFloat32, (A, B)).reason

    def definition(a, b):
        return torch.nn.functional.silu(a) * b

    report = op(definition, (A, B), kernel=OnlyFloat32, largest=65)
    assert report, report
    assert "by torch's autograd in float64" in str(report)
    wrong = op(definition, (A, B), kernel=NoGradientOfB, largest=5)
    assert {each.sentence.split()[0] for each in wrong.wrong if each.check == "sizes"} == {"db"}
    assert any("one tensor is both a and b" in each.sentence for each in wrong.wrong)


def test_an_output_that_is_not_used():
    report = op(ForgetsTheSecondOutput, SEVERAL, largest=5)
    assert {each.check for each in report.wrong} == {"autograd"}
    assert "where only output 0 is used" in str(report)


def test_slips_get_one_sentence():
    with pytest.raises(TapelessError, match="SwiGLU is torch's: its inputs must be tensors"):
        op(SwiGLU, (A.numpy(), B.numpy()))
    with pytest.raises(TapelessError, match="has its own backward"):
        op(SwiGLU, lambda dy: dy, (A, B))
    with pytest.raises(TapelessError, match="must be tensors"):
        op(lambda a, b: a * b, (A.numpy(), B.numpy()), kernel=SwiGLU)

    class Forgetful(SwiGLU):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)

    with pytest.raises(TapelessError, match="the forward of Forgetful returned None: is there a `return`"):
        op(Forgetful, (A, B))
