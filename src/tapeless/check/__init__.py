"""Proof: of our own gradients and kernels, and of yours (`op`, `kernel`)."""

from tapeless.check.own.gradient import InputReport
from tapeless.check.own.kernel import KernelReport, kernel
from tapeless.check.own.op import op
from tapeless.check.own.proof import Report
from tapeless.check.own.report import Float32Report, Wrong
from tapeless.check.own.walk import Speed, torch_kernel

__all__ = ["Float32Report", "InputReport", "KernelReport", "Report", "Speed", "Wrong", "kernel", "op", "torch_kernel"]
