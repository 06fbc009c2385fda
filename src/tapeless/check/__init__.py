"""Proof: of our own gradients and kernels, and of yours (`op`, `kernel`)."""

from tapeless.check.own.float32 import Float32Report, Wrong
from tapeless.check.own.gradient import InputReport, Report
from tapeless.check.own.kernel import KernelReport, Speed, kernel, torch_kernel
from tapeless.check.own.op import op

__all__ = ["Float32Report", "InputReport", "KernelReport", "Report", "Speed", "Wrong", "kernel", "op", "torch_kernel"]
