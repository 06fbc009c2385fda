"""Attention over the cache on the GPU: attention's own kernel, with a cache for keys and values and a place to start
from that the device reads for itself."""

from __future__ import annotations

from tapeless.errors import NotYetError
from tapeless.kernels.native import Native
from tapeless.ops.attention.cuda import mixed


def forward(y, q, keys, values, position, window) -> list[Native]:
    if window or q.shape[2] != keys.shape[1] * keys.shape[3]:
        raise NotYetError("attention on a GPU has neither shared heads nor windows yet: take backend='cpu'.")
    strides = {"k_strides": keys.stride()[:3], "v_strides": values.stride()[:3]}
    return mixed(y, None, q, keys, values, keys.shape[3], keys.shape[2], True, position=position, **strides)
