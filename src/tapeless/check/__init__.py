"""Proof: of our own gradients and kernels, and of yours (`op`, `kernel`)."""

from tapeless.check.own.gradient import InputReport
from tapeless.check.own.kernel import KernelReport, kernel
from tapeless.check.own.op import Report, op
from tapeless.check.own.walk import Speed, torch_kernel

__all__ = ["InputReport", "KernelReport", "Report", "Speed", "kernel", "op", "torch_kernel"]
