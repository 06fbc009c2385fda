"""Proof: of our own gradients and kernels, and of yours (`op`, `kernel`)."""

from tapeless.check.own_gradient import InputReport
from tapeless.check.own_kernel import KernelReport, kernel
from tapeless.check.own_op import Report, op
from tapeless.check.own_walk import Speed, torch_kernel

__all__ = ["InputReport", "KernelReport", "Report", "Speed", "kernel", "op", "torch_kernel"]
