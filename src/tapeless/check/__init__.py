"""Proof: of our own gradients and kernels, and of yours (`op`, `kernel`)."""

from tapeless.check.own.gradient import InputReport, Report
from tapeless.check.own.kernel import KernelReport, Speed, kernel, torch_kernel
from tapeless.check.own.op import op
from tapeless.check.own.report import Mistake, Verdict

__all__ = ["InputReport", "KernelReport", "Mistake", "Report", "Speed", "Verdict", "kernel", "op", "torch_kernel"]
