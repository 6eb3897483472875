"""RMS norms in one pass, as Metal kernels: plain, onto a residual, and of query and key heads with their rotation."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from dgemma_mlx.kernels.vocab import kernel

SIMD = 32
_MOST = 256
_HEADS = 4

RMS_NORM = """
    uint row = threadgroup_position_in_grid.x, thread = thread_position_in_threadgroup.x;
    uint lane = thread_index_in_simdgroup, group = simdgroup_index_in_threadgroup;
    threadgroup float sums[THREADS / 32];
    size_t start = size_t(row) * W;
    float square = 0;
    for (uint at = thread; at < uint(W); at += THREADS) {
        float value = float(x[start + at]);
        square += value * value;
    }
    square = simd_sum(square);
    if (lane == 0) sums[group] = square;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    square = 0;
    for (uint other = 0; other < THREADS / 32; ++other) square += sums[other];
    float factor = metal::precise::rsqrt(square / W + eps[0]);
    for (uint at = thread; at < uint(W); at += THREADS) {
        float value = float(x[start + at]) * factor;
        if (WEIGHTED) value *= float(weight[at]);
        if (ADDED) value = float(residual[start + at]) + float(T(value));
        if (SCALED) value = float(T(value)) * float(scale[row]);
        out[start + at] = T(value);
    }
"""

NORM_ROTATE = """
    uint row = threadgroup_position_in_grid.y, lane = thread_index_in_simdgroup;
    uint head = threadgroup_position_in_grid.x * (THREADS / 32) + simdgroup_index_in_threadgroup;
    if (head < uint(HEADS)) {
        size_t source = (size_t(row) * HEADS + head) * 2 * HALF;
        size_t target = (size_t(head) * rows[0] + row) * 2 * HALF, turn = size_t(row) * HALF;
        float square = 0;
        for (uint at = lane; at < 2 * HALF; at += 32) {
            float value = float(x[source + at]);
            square += value * value;
        }
        float factor = metal::precise::rsqrt(simd_sum(square) / (2 * HALF) + eps[0]);
        for (uint at = lane; at < HALF; at += 32) {
            float first = float(T(float(x[source + at]) * factor * float(weight[at])));
            float second = float(T(float(x[source + HALF + at]) * factor * float(weight[HALF + at])));
            float c = float(cosines[turn + at]), s = float(sines[turn + at]);
            out[target + at] = T(first * c - second * s);
            out[target + HALF + at] = T(second * c + first * s);
        }
    }
"""

NORM_INPUTS, NORM_OUTPUTS = ["x", "weight", "residual", "scale", "eps"], ["out"]
ROTATE_INPUTS, ROTATE_OUTPUTS = ["x", "weight", "cosines", "sines", "eps", "rows"], ["out"]


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """See the twin."""
    return _normed(x, weight, None, None, eps)


def add_norm(residual: mx.array, x: mx.array, weight: mx.array, eps: float, scale: mx.array | None = None) -> mx.array:
    """See the twin."""
    return _normed(x, weight, residual, scale, eps)


def norm_rotate(x: mx.array, weight: mx.array, rotation: tuple[mx.array, mx.array], eps: float) -> mx.array:
    """See the twin."""
    rows, heads, width = x.shape
    threads = SIMD * min(_HEADS, heads)
    constants: list[tuple[str, Any]] = [("T", x.dtype), ("HALF", width // 2), ("HEADS", heads), ("THREADS", threads)]
    [out] = kernel("norm_rotate", ROTATE_INPUTS, ROTATE_OUTPUTS, NORM_ROTATE, "")(
        inputs=[x, weight, *rotation, mx.array([eps]), mx.array([rows], mx.uint32)],
        template=constants,
        grid=(-(-heads * SIMD // threads) * threads, rows, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(heads, rows, width)],
        output_dtypes=[x.dtype],
    )
    result: mx.array = out
    return result


def _normed(
    x: mx.array, weight: mx.array | None, residual: mx.array | None, scale: mx.array | None, eps: float
) -> mx.array:
    width = x.shape[-1]
    threads = min(_MOST, -(-width // SIMD) * SIMD)
    parts = {"WEIGHTED": weight, "ADDED": residual, "SCALED": scale}
    constants: list[tuple[str, Any]] = [("T", x.dtype), ("W", width), ("THREADS", threads)]
    [out] = kernel("rms_norm", NORM_INPUTS, NORM_OUTPUTS, RMS_NORM, "")(
        inputs=[x, *(x if each is None else each for each in parts.values()), mx.array([eps])],
        template=[*constants, *((name, each is not None) for name, each in parts.items())],
        grid=(x.size // width * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
    )
    result: mx.array = out
    return result
