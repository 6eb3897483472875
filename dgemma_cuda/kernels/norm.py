"""RMS norms in one pass: plain, onto a residual, and of query and key heads together with their rotation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dgemma_cuda.kernels.numerics import narrow


@triton.jit
def rms_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    WEIGHTED: tl.constexpr,
    ADDED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row: out = rms(x) * weight, rounded as its own result before a residual is added."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    values = values / tl.sqrt(tl.sum(values * values, 0) / width + eps)
    if WEIGHTED:
        values = values * tl.load(weight + columns, mask=inside, other=0.0)
    if ADDED:
        values = narrow(values, out.dtype.element_ty).to(tl.float32)
        values += tl.load(residual + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, narrow(values, out.dtype.element_ty), mask=inside)


@triton.jit
def norm_rotate_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    heads: tl.tensor,
    eps: tl.tensor,
    HALF: tl.constexpr,
) -> None:
    """One head of one row: rms norm, then the rotation of pairs (j, j + HALF); `out` is [heads, rows, 2 HALF]."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, HALF)
    source = x + (row * heads + head) * 2 * HALF
    first = tl.load(source + at).to(tl.float32)
    second = tl.load(source + HALF + at).to(tl.float32)
    scale = 1 / tl.sqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF) + eps)
    kind: tl.constexpr = out.dtype.element_ty
    first = narrow(first * scale * tl.load(weight + at), kind).to(tl.float32)
    second = narrow(second * scale * tl.load(weight + HALF + at), kind).to(tl.float32)
    c = tl.load(cos + row * HALF + at).to(tl.float32)
    s = tl.load(sin + row * HALF + at).to(tl.float32)
    target = out + (head * rows + row) * 2 * HALF
    tl.store(target + at, narrow(first * c - second * s, kind))
    tl.store(target + HALF + at, narrow(second * c + first * s, kind))


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """See the twin."""
    return _normed(x, weight, None, eps)


def add_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the twin."""
    return _normed(x, weight, residual, eps)


def norm_rotate(x: Tensor, weight: Tensor, rotation: tuple[Tensor, Tensor], eps: float) -> Tensor:
    """See the twin."""
    rows, heads, width = x.shape
    out = x.new_empty(heads, rows, width)
    cos, sin = (each.contiguous() for each in rotation)
    norm_rotate_kernel[(rows, heads)](
        x.contiguous(), weight, cos, sin, out, rows, heads, eps, HALF=width // 2, num_warps=1
    )
    return out


def _normed(x: Tensor, weight: Tensor | None, residual: Tensor | None, eps: float) -> Tensor:
    x, width = x.contiguous(), x.shape[-1]
    out = torch.empty_like(x)
    unused = x if weight is None else weight
    rms_norm_kernel[(x.numel() // width,)](
        x,
        unused,
        x if residual is None else residual.contiguous(),
        out,
        width,
        eps,
        WEIGHTED=weight is not None,
        ADDED=residual is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4 if width > 1024 else 1,
    )
    return out
