"""A canvas over its cache, on sliding and on full layers, against mlx-vlm's way: cache and canvas joined, a mask."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from benchmarks.ops.case import Case
from benchmarks.ops.mlx.measure import dtype, show
from benchmarks.ops.mlx.sizes import sizes
from dgemma_mlx.kernels import choose, naive


def cases() -> Iterator[Case]:
    """Head size 256 with 8 heads of keys, 512 with 2; half of both in the small form."""
    size = sizes()
    kernels = choose(mx.default_device(), "auto")
    for head_dim, kv_heads in ((256, size.heads // 2), (512, max(size.heads // 8, 1))):
        keys = size.context + size.rows
        queries = (mx.random.normal((size.heads, size.rows, head_dim)) * head_dim**-0.5).astype(dtype())
        cache = mx.random.normal((2, kv_heads, keys, head_dim)).astype(dtype())
        arguments = (queries, cache[0], cache[1], (0, keys, size.context), False, None)
        variants = {
            "ours": lambda arguments=arguments: kernels.attend(*arguments),
            "twin": lambda arguments=arguments: naive.attend(*arguments),
            "as mlx-vlm": lambda queries=queries, cache=cache: _mlx_vlm(queries, cache, size.context),
        }
        moved = float(cache.size * dtype().size)
        yield Case(f"attention {head_dim}", variants, moved, 4.0 * size.heads * size.rows * keys * head_dim)


def _mlx_vlm(queries: mx.array, cache: mx.array, context: int) -> mx.array:
    from mlx_vlm.models.base import scaled_dot_product_attention

    keys, values = (mx.concatenate([each[None, :, :context], each[None, :, context:]], axis=2) for each in cache)
    mask = mx.ones((1, 1, queries.shape[1], keys.shape[2]), mx.bool_)
    return scaled_dot_product_attention(queries[None], keys, values, cache=None, scale=1.0, mask=mask)


if __name__ == "__main__":
    show(cases)
