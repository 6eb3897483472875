"""A canvas over its cache, on sliding and on full layers, against torch's attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.ops.case import Case
from benchmarks.ops.measure import device, dtype, show
from benchmarks.ops.sizes import sizes
from dgemma_cuda import attention
from dgemma_cuda.kernels import choose, naive


def cases() -> Iterator[Case]:
    """Head size 256 with 8 heads of keys, 512 with 2; half of both in the small form."""
    size = sizes()
    kernels = choose(device(), "auto")
    for head_dim, kv_heads in ((256, size.heads // 2), (512, max(size.heads // 8, 1))):
        keys = size.context + size.rows
        queries = torch.randn(size.heads, size.rows, head_dim, device=device(), dtype=dtype()) * head_dim**-0.5
        cache = torch.randn(2, kv_heads, keys, head_dim, device=device(), dtype=dtype())
        arguments = (queries, cache[0], cache[1], (0, keys, size.context), False, None)
        variants = {
            "ours": lambda arguments=arguments: kernels.attend(*arguments),
            "torch": lambda arguments=arguments: attention.attend(*arguments),
            "twin": lambda arguments=arguments: naive.attend(*arguments),
        }
        moved = float(cache.numel() * cache.element_size())
        yield Case(f"attention {head_dim}", variants, moved, 4.0 * size.heads * size.rows * keys * head_dim)


if __name__ == "__main__":
    show(cases)
