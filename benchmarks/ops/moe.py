"""Experts of one canvas in every format, against torch's grouped product and against one expert after the other."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.ops.case import Case
from benchmarks.ops.measure import device, show
from benchmarks.ops.shapes import FORMATS
from benchmarks.ops.sizes import experts, plain, sizes, stored_bytes
from dgemma_cuda import moe
from dgemma_cuda.kernels import choose, naive


def cases() -> Iterator[Case]:
    """Every expert is used: 2 * 3 products of all rows."""
    size = sizes()
    x = plain(size.rows, size.hidden) * size.hidden**0.5
    scores = torch.rand(size.rows, size.experts, device=device())
    routing, ids = scores.topk(size.top_k)
    kernels = choose(device(), "auto")
    for name, spec in FORMATS.items():
        shapes = ((size.experts, 2 * size.inner, size.hidden), (size.experts, size.hidden, size.inner))
        pair = [experts(spec, *shape) for shape in shapes]
        variants = {
            "ours": lambda pair=pair: kernels.experts(x, ids, routing, *pair),
            "torch grouped": lambda pair=pair: moe.experts(x, ids, routing, *pair),
            "as transformers": lambda pair=pair: naive.experts(x, ids, routing, *pair),
        }
        moved = sum(stored_bytes(spec, *shape) for shape in shapes)
        flops = 6.0 * size.rows * size.top_k * size.hidden * size.inner
        yield Case(f"moe {name}", variants, moved, flops)


if __name__ == "__main__":
    show(cases)
