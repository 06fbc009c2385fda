"""Signals for the tests, and the transform in its plainest form."""

import numpy as np

from tapeless.labelling.signal import Recording
from tapeless.ops.contract import Array


def noise(length: int, seed: int = 0, complex_values: bool = False) -> Array:
    rng = np.random.default_rng(seed)
    values: Array = rng.normal(size=length)
    return values + 1j * rng.normal(size=length) if complex_values else values


def plain_features(signal: Array, scales) -> Array:
    """Equation (2) as it stands: every pair of positions, nothing but the formula."""
    apart = np.arange(len(signal))[:, None] - np.arange(len(signal))[None, :]  # j − k, by j and k
    columns = []
    for scale in scales:
        t = apart / scale
        wavelet = np.exp(-(t**2) / 2) * (np.cos(2 * np.pi * t) + 1j * np.sin(2 * np.pi * t)) / np.sqrt(2 * np.pi)
        wavelet[np.abs(apart) > 8 * scale] = 0
        values = np.asarray(signal) @ np.conj(wavelet) / np.sqrt(scale)
        columns += [values.real, values.imag]
    return np.stack(columns, axis=1)


class Endless:
    """A signal that is never held as a whole: it has a length, and slices are made when they are asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.longest = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Array:
        start, stop, _ = part.indices(self.length)
        self.longest = max(self.longest, stop - start)
        values: Array = np.sin(np.arange(start, stop) ** 1.5)
        return values


def bursts(length: int, seed: int) -> Recording:
    """Noise with stretches of period 3, and labels that say where they are."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(0, 2, length // 40 + 1), 40)[:length]
    tone = 2 * np.cos(2 * np.pi * np.arange(length) / 3)
    return Recording(0.5 * rng.normal(size=length) + tone * labels, labels)
