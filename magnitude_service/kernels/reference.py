"""What the kernels compute, in NumPy: slow, plain, and the oracle of their tests.

Sums are float64, so that what remains between a kernel and this file is the kernel's own rounding. Letters of shapes:
M rows (tokens), K inputs, N outputs, R query rows, P positions, D head size, E embedding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

BLOCK = 32
"""Inputs that share one activation scale: `kBlock` in csrc/ops.h."""

ACTIVATION_MAX = np.float32(32512)
"""The integer that an activation block's largest magnitude becomes: `kActivationMax` in csrc/blocks.h."""


def quantize(x: Float32) -> tuple[NDArray[np.int32], Float32]:
    """Rows to 16-bit integers with one scale per 32 inputs.

    Shapes: x [M, K] → q i32 [M, K], scale f32 [M, K/32]. Bit for bit what every table computes. A block that holds a
    NaN or an infinity has scale NaN and zeros.
    """
    blocks = x.reshape(x.shape[0], -1, BLOCK)
    largest = np.abs(blocks).max(axis=2)
    finite = np.isfinite(largest)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = ACTIVATION_MAX / largest
        visible = finite & np.isfinite(inverse)
        inverse = np.where(visible, inverse, np.float32(0))
        q = np.rint(np.where(visible[..., None], blocks, 0) * inverse[..., None])
        scale = np.where(finite, largest / ACTIVATION_MAX, np.float32(np.nan))
    return q.astype(np.int32).reshape(x.shape), scale.astype(np.float32)


def matmul(x: Float32, w: Float32, bias: Float32 | None = None) -> Float64:
    """x · wᵀ (+ bias). Shapes: x [M, K], w [N, K], bias [N] → [M, N]."""
    y = x.astype(np.float64) @ w.astype(np.float64).T
    return y if bias is None else y + bias


def rms_norm(x: Float32, w: Float32, epsilon: float) -> Float64:
    """x / sqrt(mean(x²) + epsilon) · w. Shapes: [E]."""
    x64 = x.astype(np.float64)
    normed: Float64 = x64 / np.sqrt(np.mean(x64**2) + epsilon) * w
    return normed


def silu_multiply(gate: Float32, up: Float32) -> Float64:
    """gate / (1 + exp(-gate)) · up."""
    g = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        product: Float64 = g / (1 + np.exp(-g)) * up
    return product


def rope(head: Float32, angles: Float32, *, halves: bool) -> Float64:
    """Rotates the first elements of a head; `angles` interleaves cosine and sine, one pair for each rotation.

    Pairs are (2i, 2i+1), or with `halves` (i, i + n) for n rotations.
    """
    rotated = head.astype(np.float64)
    n = len(angles) // 2
    first, second = (slice(0, n), slice(n, 2 * n)) if halves else (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
    cosine, sine = angles[0::2].astype(np.float64), angles[1::2].astype(np.float64)
    a, b = rotated[first].copy(), rotated[second].copy()
    rotated[first] = a * cosine - b * sine
    rotated[second] = a * sine + b * cosine
    return rotated


def attention(
    q: Float32,
    keys: Float32,
    values: Float32,
    limit: NDArray[np.int32],
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float32 | None = None,
) -> Float64:
    """Softmax attention of rows over the positions that each may see.

    Shapes: q [R, D]; keys, values [P, D]; sinks [R]; limit [R]: row r sees the last `window` of positions
    0 … limit[r]-1 → [R, D].
    """
    outputs = np.zeros(q.shape, np.float64)
    for row, end in enumerate(limit):
        visible = slice(0 if window is None else max(0, end - window), end)
        scores = keys[visible].astype(np.float64) @ q[row].astype(np.float64) * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        sink = -np.inf if sinks is None else float(sinks[row])
        largest = max(scores.max(), sink)
        weights = np.exp(scores - largest)
        outputs[row] = weights @ values[visible] / (weights.sum() + np.exp(sink - largest))
    return outputs


def softmax_statistics(x: Float32) -> tuple[float, float]:
    """The largest of x and the sum of exp(x - max)."""
    largest = float(x.max())
    return largest, float(np.exp(x.astype(np.float64) - largest).sum())
