"""Norms of one canvas, against torch's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.ops.case import Case
from benchmarks.ops.measure import device, dtype, show
from benchmarks.ops.sizes import plain, sizes
from dgemma_cuda import norm
from dgemma_cuda.kernels import choose


def cases() -> Iterator[Case]:
    """Onto a residual, and of query heads with their rotation."""
    size = sizes()
    kernels = choose(device(), "auto")
    x, residual = plain(size.rows, size.hidden), plain(size.rows, size.hidden)
    weight = torch.ones(size.hidden, device=device())
    variants = {
        "ours": lambda: kernels.add_norm(residual, x, weight, 1e-6),
        "torch": lambda: norm.add_norm(residual, x, weight, 1e-6),
    }
    yield Case("norm onto residual", variants, 3.0 * x.numel() * dtype().itemsize, 0.0)
    heads = plain(size.rows, size.heads, 256)
    turn = torch.ones(size.rows, 1, 128, device=device(), dtype=dtype())
    scale = torch.ones(256, device=device())
    variants = {
        "ours": lambda: kernels.norm_rotate(heads, scale, (turn, turn), 1e-6),
        "torch": lambda: norm.norm_rotate(heads, scale, (turn, turn), 1e-6),
    }
    yield Case("norm and rotation", variants, 2.0 * heads.numel() * dtype().itemsize, 0.0)


if __name__ == "__main__":
    show(cases)
