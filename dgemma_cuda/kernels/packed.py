"""Weight tiles out of their stored format, dequantized in registers, and the products taken with them.

Packed rows are read as bytes: MLX packs the first of two 4-bit values into the low half. Values at even and at odd
places then form two products over half the width, so that no shuffle puts them in order.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from dgemma_cuda.kernels.numerics import dot, narrow

PLAIN: Any = tl.constexpr(0)
AFFINE4: Any = tl.constexpr(1)
AFFINE8: Any = tl.constexpr(2)
MXFP4: Any = tl.constexpr(3)
NVFP4: Any = tl.constexpr(4)
MXFP8: Any = tl.constexpr(5)


@triton.jit
def e2m1(code: tl.tensor) -> tl.tensor:
    """4-bit floats 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign, divided by 2^14: a shift into float16's fields."""
    return (((code & 7) << 9) | ((code & 8) << 12)).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def e4m3(code: tl.tensor) -> tl.tensor:
    """8-bit floats divided by 2^8: a shift into float16's fields."""
    return (((code & 127) << 7) | ((code & 128) << 8)).to(tl.uint16).to(tl.float16, bitcast=True)


@triton.jit
def scale_values(raw: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Stored scales as float32, with the factor that the codes' decoding leaves out."""
    if FORMAT == MXFP4:
        return (raw.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 16384.0
    elif FORMAT == MXFP8:
        return (raw.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 256.0
    elif FORMAT == NVFP4:
        return e4m3(raw.to(tl.int32)).to(tl.float32) * (256.0 * 16384.0)
    else:
        return raw.to(tl.float32)


@triton.jit
def spread(x: tl.tensor, ROWS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr) -> tl.tensor:
    """[ROWS, GROUPS] -> [ROWS, GROUPS * WIDTH], each value WIDTH times."""
    if GROUPS == 1:
        return tl.broadcast_to(x, (ROWS, WIDTH))
    else:
        return tl.reshape(tl.broadcast_to(x[:, :, None], (ROWS, GROUPS, WIDTH)), (ROWS, GROUPS * WIDTH))


@triton.jit
def decoded(code: tl.tensor, scale: tl.tensor, bias: tl.tensor, FORMAT: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """Codes to weights in `dtype`."""
    if FORMAT == AFFINE4 or FORMAT == AFFINE8:
        return narrow(code.to(tl.float32) * scale + bias, dtype)
    elif FORMAT == MXFP8:
        return narrow(e4m3(code).to(tl.float32) * scale, dtype)
    else:
        return narrow(e2m1(code).to(tl.float32) * scale, dtype)


@triton.jit
def add_product(
    acc: tl.tensor,
    x: tl.tensor,
    x_rows: tl.tensor,
    x_mask: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    biases: tl.tensor,
    w_rows: tl.tensor,
    w_mask: tl.tensor,
    k: tl.tensor,
    K: tl.tensor,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> tl.tensor:
    """acc [BN, BM] += weights [BN, k..k+BK] @ x [BM, k..k+BK]^T.

    `x_rows` [BM] and `w_rows` [BN] are row numbers; K is the row length of both and a multiple of the group.
    """
    if FORMAT == PLAIN:
        acc = _add_plain(acc, x, x_rows, x_mask, weight, w_rows, w_mask, k, K, BK)
    else:
        groups: tl.constexpr = BK // GROUP
        group = k // GROUP + tl.arange(0, groups)
        places = w_rows[:, None] * (K // GROUP) + group[None, :]
        present = w_mask[:, None] & (group < K // GROUP)[None, :]
        scale = scale_values(tl.load(scales + places, mask=present, other=0), FORMAT)
        bias = scale
        if FORMAT == AFFINE4 or FORMAT == AFFINE8:
            bias = tl.load(biases + places, mask=present, other=0.0).to(tl.float32)
        if FORMAT == AFFINE8 or FORMAT == MXFP8:
            scale, bias = spread(scale, BN, groups, GROUP), spread(bias, BN, groups, GROUP)
            acc = _add_bytes(acc, x, x_rows, x_mask, weight, w_rows, w_mask, scale, bias, k, K, FORMAT, BK)
        else:
            scale, bias = spread(scale, BN, groups, GROUP // 2), spread(bias, BN, groups, GROUP // 2)
            acc = _add_halves(acc, x, x_rows, x_mask, weight, w_rows, w_mask, scale, bias, k, K, FORMAT, BK)
    return acc


@triton.jit
def _add_plain(
    acc: tl.tensor,
    x: tl.tensor,
    x_rows: tl.tensor,
    x_mask: tl.tensor,
    weight: tl.tensor,
    w_rows: tl.tensor,
    w_mask: tl.tensor,
    k: tl.tensor,
    K: tl.tensor,
    BK: tl.constexpr,
) -> tl.tensor:
    at = k + tl.arange(0, BK)
    w = tl.load(weight + w_rows[:, None] * K + at[None, :], mask=w_mask[:, None] & (at < K)[None, :], other=0.0)
    values = tl.load(x + x_rows[None, :] * K + at[:, None], mask=x_mask[None, :] & (at < K)[:, None], other=0.0)
    return dot(w, values, acc)


@triton.jit
def _add_bytes(
    acc: tl.tensor,
    x: tl.tensor,
    x_rows: tl.tensor,
    x_mask: tl.tensor,
    weight: tl.tensor,
    w_rows: tl.tensor,
    w_mask: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    k: tl.tensor,
    K: tl.tensor,
    FORMAT: tl.constexpr,
    BK: tl.constexpr,
) -> tl.tensor:
    at = k + tl.arange(0, BK)
    code = tl.load(weight + w_rows[:, None] * K + at[None, :], mask=w_mask[:, None] & (at < K)[None, :], other=0)
    values = tl.load(x + x_rows[None, :] * K + at[:, None], mask=x_mask[None, :] & (at < K)[:, None], other=0.0)
    return dot(decoded(code.to(tl.int32), scale, bias, FORMAT, values.dtype), values, acc)


@triton.jit
def _add_halves(
    acc: tl.tensor,
    x: tl.tensor,
    x_rows: tl.tensor,
    x_mask: tl.tensor,
    weight: tl.tensor,
    w_rows: tl.tensor,
    w_mask: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    k: tl.tensor,
    K: tl.tensor,
    FORMAT: tl.constexpr,
    BK: tl.constexpr,
) -> tl.tensor:
    half = k // 2 + tl.arange(0, BK // 2)
    inside = half < K // 2
    code = tl.load(weight + w_rows[:, None] * (K // 2) + half[None, :], mask=w_mask[:, None] & inside[None, :], other=0)
    code = code.to(tl.int32)
    mask = x_mask[None, :] & inside[:, None]
    even = tl.load(x + x_rows[None, :] * K + 2 * half[:, None], mask=mask, other=0.0)
    odd = tl.load(x + x_rows[None, :] * K + 2 * half[:, None] + 1, mask=mask, other=0.0)
    acc = dot(decoded(code & 15, scale, bias, FORMAT, even.dtype), even, acc)
    return dot(decoded(code >> 4, scale, bias, FORMAT, odd.dtype), odd, acc)
