"""Norms of one canvas, against mlx-vlm's: MLX's norm in the rows' dtype, and MLX's rotation behind it."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from benchmarks.ops.case import Case
from benchmarks.ops.mlx.measure import dtype, show
from benchmarks.ops.mlx.sizes import plain, sizes
from dgemma_mlx.kernels import choose, naive


def cases() -> Iterator[Case]:
    """Onto a residual, and of query heads with their rotation."""
    size = sizes()
    kernels = choose(mx.default_device(), "auto")
    x, residual, weight = plain(size.rows, size.hidden), plain(size.rows, size.hidden), mx.ones(size.hidden)
    narrow = weight.astype(dtype())
    variants = {
        "ours": lambda: kernels.add_norm(residual, x, weight, 1e-6),
        "twin": lambda: naive.add_norm(residual, x, weight, 1e-6),
        "as mlx-vlm": lambda: residual + mx.fast.rms_norm(x, narrow, 1e-6),
    }
    yield Case("norm onto residual", variants, 3.0 * x.size * dtype().size, 0.0)
    heads, scale = plain(size.rows, size.heads, 256), mx.ones(256)
    turn = mx.ones((size.rows, 1, 128), dtype())
    variants = {
        "ours": lambda: kernels.norm_rotate(heads, scale, (turn, turn), 1e-6),
        "twin": lambda: naive.norm_rotate(heads, scale, (turn, turn), 1e-6),
        "as mlx-vlm": lambda: _mlx_vlm(heads, scale.astype(dtype())),
    }
    yield Case("norm and rotation", variants, 2.0 * heads.size * dtype().size, 0.0)


def _mlx_vlm(heads: mx.array, scale: mx.array) -> mx.array:
    normed = mx.fast.rms_norm(heads[None], scale, 1e-6).transpose(0, 2, 1, 3)
    return mx.fast.rope(normed, 256, traditional=False, base=1e4, scale=1.0, offset=0)


if __name__ == "__main__":
    show(cases)
