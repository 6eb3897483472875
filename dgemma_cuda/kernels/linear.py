"""Linear maps of a canvas of rows with weights in their stored format."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dgemma_cuda.kernels.numerics import narrow
from dgemma_cuda.kernels.operand import Operand
from dgemma_cuda.kernels.packed import add_product

BM = 64
BN = 64


@triton.jit
def linear_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    biases: tl.tensor,
    multipliers: tl.tensor,
    out: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """out [M, N] = x [M, K] @ weight [N, K]^T; neighbouring programs share a weight tile."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    present, inside = rows < M, columns < N
    w_rows = columns.to(tl.int64)
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(0, K, BK):
        acc = add_product(acc, x, rows, present, weight, scales, biases, w_rows, inside, k, K, FORMAT, GROUP, BN, BK)
    if SCALED:
        acc = acc * tl.load(multipliers + w_rows, mask=inside, other=0.0)[:, None]
    places = out + rows.to(tl.int64)[None, :] * N + columns[:, None]
    tl.store(places, narrow(acc, out.dtype.element_ty), mask=inside[:, None] & present[None, :])


def linear(x: Tensor, weight: Operand) -> Tensor:
    """x [..., in] -> [..., out]."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    out = flat.new_empty(len(flat), weight.rows)
    grid = (triton.cdiv(len(flat), BM), triton.cdiv(weight.rows, BN))
    sizes = (len(flat), weight.rows, flat.shape[1])
    linear_kernel[grid](
        flat, *weight.pointers, out, *sizes, **weight.constants, BM=BM, BN=BN, num_warps=4, num_stages=3
    )
    return out.view(*x.shape[:-1], weight.rows)
