"""Attention of one sequence over its own cache: a canvas sees every key of its span, encoded rows are causal.

No mask tensor; the span and the first query's place are read on the device, so that one captured launch serves every
cache length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dgemma_cuda.kernels.numerics import dot, narrow


@triton.jit
def attention_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    span: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    query_stride: tl.tensor,
    key_stride: tl.tensor,
    out_stride: tl.tensor,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
) -> None:
    """A block of rows of one head; out [rows, heads, D], keys and values [kv heads, capacity, D].

    `span` holds the first and the end slot of the keys seen and the slot of query 0. WINDOW 0: unlimited.
    """
    head = tl.program_id(1)
    first = tl.load(span)
    end = tl.load(span + 1)
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    places = tl.load(span + 2) + at
    columns = tl.arange(0, D)
    present = (at < rows)[:, None]
    q = tl.load(queries + head * query_stride + at[:, None] * D + columns[None, :], mask=present, other=0.0)
    base = (head // GROUP).to(tl.int64) * key_stride
    top = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    if CAUSAL:
        end = tl.minimum(end, tl.load(span + 2) + (tl.program_id(0) + 1) * BM)
        if WINDOW > 0:
            first = tl.maximum(first, tl.load(span + 2) + tl.program_id(0) * BM - WINDOW + 1)
    for start in range(first, end, BN):
        slots = start + tl.arange(0, BN)
        offsets = base + slots.to(tl.int64)[:, None] * D + columns[None, :]
        k = tl.load(keys + offsets, mask=(slots < end)[:, None], other=0.0)
        scores = dot(q, tl.trans(k), tl.zeros((BM, BN), tl.float32))
        seen = (slots < end)[None, :]
        if CAUSAL:
            seen = seen & (slots[None, :] <= places[:, None])
            if WINDOW > 0:
                seen = seen & (slots[None, :] > places[:, None] - WINDOW)
        scores = tl.where(seen, scores, -1e30)
        new_top = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - new_top)
        mass = tl.where(seen, tl.exp(scores - new_top[:, None]), 0.0)
        total = total * shrink + tl.sum(mass, 1)
        v = tl.load(values + offsets, mask=(slots < end)[:, None], other=0.0)
        acc = dot(narrow(mass, v.dtype), v, acc * shrink[:, None])
        top = new_top
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    target = out + at[:, None] * out_stride + head * D + columns[None, :]
    tl.store(target, narrow(acc, out.dtype.element_ty), mask=present)


def tiling(head_dim: int) -> dict[str, int]:
    """Tile sizes that keep two tiles of keys and values and one of queries in 99 KB of shared memory."""
    if head_dim >= 512:
        return {"BM": 32, "BN": 32, "num_warps": 8, "num_stages": 1}
    return {"BM": 64, "BN": 32, "num_warps": 8, "num_stages": 2}


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, span: tuple[int, int, int], causal: bool, window: int | None
) -> Tensor:
    """See the twin: `keys` and `values` are whole buffers, `span` the slots seen and that of query 0."""
    heads, rows, width = queries.shape
    device_span = torch.tensor(span, dtype=torch.int32).to(queries.device, non_blocking=True)
    out = queries.new_empty(rows, heads, width)
    sizes = tiling(width)
    attention_kernel[(triton.cdiv(rows, sizes["BM"]), heads)](
        queries,
        keys,
        values,
        device_span,
        out,
        rows,
        queries.stride(0),
        keys.stride(0),
        out.stride(0),
        GROUP=heads // len(keys),
        CAUSAL=causal,
        WINDOW=(window or 0) if causal else 0,
        D=width,
        **sizes,
    )
    return out
