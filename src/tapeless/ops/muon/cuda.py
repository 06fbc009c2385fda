"""Muon on the GPU: not yet."""

from __future__ import annotations

from tapeless.errors import NotYetError
from tapeless.kernels.native import Native


def forward(*arguments) -> list[Native]:
    raise NotYetError("the cuda backend has no Muon yet: take optimizer='adamw', or backend='cpu'.")
