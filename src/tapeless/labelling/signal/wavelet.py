"""Continuous-wavelet features: how much of each period there is around each sample, and at which phase.

The complex Morlet wavelet, with a centre frequency of one cycle per scale (ω₀ = 2π), so that a scale is a period in
samples:

    ψ(t) = (2π)^(−1/2) · exp(−t²/2) · exp(2πi·t)                                                           (1)
    W[s, k] = s^(−1/2) · Σ_j x[j] · conj ψ((j − k)/s)        over |j − k| ≤ 8·s                            (2)

x is zero beyond its ends. (1) is what PyWavelets calls cmor2.0-1.0, with its support [−8, 8] and its normalisation
(white noise has the same variance at every scale); PyWavelets takes differences of a tabulated integral of ψ, while
here ψ itself is evaluated at every sample. At the cut, |ψ| is 1.3e-14 of its peak; its mean, which ought to vanish,
is 2.7e-9. Periods below 2 are beyond what samples can tell apart: scales below 2 are allowed, and alias.

As ψ(−t) = conj ψ(t), (2) is a convolution with ψ(t/s). It is done block by block through the FFT (overlap-save), in
double precision: the memory is that of a block, whatever the signal's length, and the time grows linearly. Rounding
is some 1e-15 of the largest sample in a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tapeless.errors import TapelessError, unknown
from tapeless.labelling.signal.checks import checked_scales, checked_signal
from tapeless.models.config import check_size
from tapeless.ops.contract import Array

SCALES = (3.0, 4.0, 5.0, 10.0, 27.0, 81.0, 100.0)
SUPPORT = 8.0
SMALLEST_TRANSFORM = 1 << 15
LONGEST_REACH = 1 << 20  # samples to each side: a kernel is held whole, and this bounds it
ODD_FACTORS = (1, 3, 5, 9, 15)


def features(signal: Any, scales: Sequence[float] = SCALES, *, dtype: Any = np.float32) -> Array:
    """(n, 2·scales): for each scale in turn the real part of (2), then its imaginary part.

    `signal`: real or complex, in one dimension; an array, a memory map, or anything with a length and slices.
    """
    blocks = feature_blocks(signal, scales, dtype=dtype)
    found = np.empty((len(signal), 2 * len(scales)), dtype)
    for start, block in blocks:
        found[start : start + len(block)] = block
    return found


def feature_blocks(
    signal: Any, scales: Sequence[float] = SCALES, block: int | None = None, *, dtype: Any = np.float32
) -> Iterator[tuple[int, Array]]:
    """The same from left to right, as (first position, features of up to `block` positions).

    The whole signal is checked before the first block.
    """
    scales, dtype = checked_scales(scales), _checked_dtype(dtype)
    if block is not None:
        check_size("block", block)
    signal = checked_signal(signal)
    reach = _reach(max(scales), len(signal))
    if block is None:
        block = fast_size(max(SMALLEST_TRANSFORM, 4 * reach)) - 2 * reach
    return _feature_blocks(signal, scales, min(int(block), len(signal)), dtype)


def _feature_blocks(signal: Any, scales: tuple[float, ...], block: int, dtype: Any) -> Iterator[tuple[int, Array]]:
    reach = _reach(max(scales), len(signal))
    size = fast_size(block + 2 * reach)
    spectra = [np.fft.fft(_centred(kernel(scale, len(signal)), size)) for scale in scales]
    for start in range(0, len(signal), block):
        stop = min(start + block, len(signal))
        found = np.empty((stop - start, 2 * len(scales)), dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # seen to below
            spectrum = np.fft.fft(_around(signal, start - reach, stop + reach, size))
            for column, response in enumerate(spectra):
                values = np.fft.ifft(spectrum * response)[reach : reach + stop - start]
                found[:, 2 * column] = values.real
                found[:, 2 * column + 1] = values.imag
        _check_finite(found, start)
        yield start, found


def kernel(scale: float, length: int) -> Array:
    """ψ(t/s)/√s at t = −reach … reach; nothing beyond a signal's length can meet a sample."""
    reach = _reach(scale, length)
    t = np.arange(-reach, reach + 1) / scale
    values: Array = np.exp(-t * t / 2 + 2j * np.pi * t) / np.sqrt(2 * np.pi * scale)  # (1)
    return values


def fast_size(least: int) -> int:
    """The smallest power of two, times a small odd number, that is not less: transforms of such sizes are fast."""
    return min(odd << max(0, (-(-least // odd) - 1).bit_length()) for odd in ODD_FACTORS)


def _reach(scale: float, length: int) -> int:
    """How many samples to each side a kernel sees."""
    reach = int(min(SUPPORT * scale, length - 1))
    if reach > LONGEST_REACH:
        raise TapelessError(
            f"scale {scale:g} sees {reach:,} samples to each side, and {LONGEST_REACH:,} is the most: "
            f"use scales up to {LONGEST_REACH / SUPPORT:g}, or thin the signal out first."
        )
    return reach


def _centred(values: Array, size: int) -> Array:
    """With its middle at 0, as a circular convolution counts."""
    reach = len(values) // 2
    found = np.zeros(size, np.complex128)
    found[: reach + 1] = values[reach:]
    found[size - reach :] = values[:reach]
    return found


def _around(signal: Any, first: int, last: int, size: int) -> Array:
    """The samples from `first` up to `last`, zero beyond the signal's ends, then zeros up to `size`."""
    found = np.zeros(size, np.complex128)
    begin, end = max(0, first), min(last, len(signal))
    found[begin - first : end - first] = signal[begin:end]
    return found


def _check_finite(found: Array, start: int) -> None:
    finite = np.isfinite(found).all(axis=1)
    if not finite.all():
        where = start + int(np.argmin(finite))
        raise TapelessError(f"the features at position {where} are too large for {found.dtype}: scale the signal.")


def _checked_dtype(dtype: Any) -> Any:
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in ("float32", "float64"):
        raise unknown("dtype", name, ("float32", "float64"))
    return np.dtype(name)
