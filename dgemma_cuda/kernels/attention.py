"""Attention of all sequences of a pass in one launch, each over its own cache; and the launch that fills the caches.

A canvas sees every key of its span, encoded rows are causal. No mask tensor; addresses, spans and places are read on
the device, so that one recorded launch serves every sequence at every cache length.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from dgemma_cuda.inputs import COLUMNS, Ragged
from dgemma_cuda.kernels.numerics import dot, narrow

ENTRY: Any = tl.constexpr(COLUMNS)


@triton.jit
def attention_kernel(
    queries: tl.tensor,
    table: tl.tensor,
    pointers: tl.tensor,
    out: tl.tensor,
    query_stride: tl.tensor,
    out_stride: tl.tensor,
    GROUP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
) -> None:
    """A block of rows of one head of one sequence; queries [heads, N, D], out [N, heads, D].

    Keys and values are [kv heads, capacity, D]. CAUSAL says that some sequence is. WINDOW 0: unlimited.
    """
    head = tl.program_id(1)
    entry = table + tl.program_id(2) * ENTRY
    rows = tl.load(entry + 1)
    block = tl.program_id(0) * BM
    if block >= rows:
        return
    pair = pointers + tl.program_id(2) * 2
    kind: tl.constexpr = tl.pointer_type(queries.dtype.element_ty)
    keys = tl.multiple_of(tl.load(pair).to(kind), 16)
    values = tl.multiple_of(tl.load(pair + 1).to(kind), 16)
    first = tl.load(entry + 2)
    end = tl.load(entry + 3)
    place = tl.load(entry + 4)
    base = (head // GROUP).to(tl.int64) * tl.load(entry + 5) * D
    at = block + tl.arange(0, BM)
    present = (at < rows)[:, None]
    x_rows = (tl.load(entry) + at)[:, None]
    columns = tl.arange(0, D)
    q = tl.load(queries + head * query_stride + x_rows * D + columns[None, :], mask=present, other=0.0)
    top = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    if CAUSAL:
        causal = tl.load(entry + 6) != 0
        last = tl.where(causal, place + at, end - 1)
        end = tl.where(causal, tl.minimum(end, place + block + BM), end)
        if WINDOW > 0:
            lowest = tl.where(causal, place + at - WINDOW + 1, first)
            first = tl.where(causal, tl.maximum(first, place + block - WINDOW + 1), first)
    for start in range(first, end, BN):
        slots = start + tl.arange(0, BN)
        offsets = base + slots.to(tl.int64)[:, None] * D + columns[None, :]
        k = tl.load(keys + offsets, mask=(slots < end)[:, None], other=0.0)
        scores = dot(q, tl.trans(k), tl.zeros((BM, BN), tl.float32))
        seen = (slots < end)[None, :]
        if CAUSAL:
            seen = seen & (slots[None, :] <= last[:, None])
            if WINDOW > 0:
                seen = seen & (slots[None, :] >= lowest[:, None])
        scores = tl.where(seen, scores, -1e30)
        new_top = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp(top - new_top)
        mass = tl.where(seen, tl.exp(scores - new_top[:, None]), 0.0)
        total = total * shrink + tl.sum(mass, 1)
        v = tl.load(values + offsets, mask=(slots < end)[:, None], other=0.0)
        acc = dot(narrow(mass, v.dtype), v, acc * shrink[:, None])
        top = new_top
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    target = out + x_rows * out_stride + head * D + columns[None, :]
    tl.store(target, narrow(acc, out.dtype.element_ty), mask=present)


@triton.jit
def store_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    pointers: tl.tensor,
    owners: tl.tensor,
    key_head: tl.tensor,
    key_row: tl.tensor,
    value_head: tl.tensor,
    value_row: tl.tensor,
    D: tl.constexpr,
) -> None:
    """Key and value of one head of one row, into the cache of the row's sequence; strides are in elements."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    owner = tl.load(owners + row)
    entry = table + owner * ENTRY
    slot = tl.load(entry + 4) + row - tl.load(entry)
    kind: tl.constexpr = tl.pointer_type(keys.dtype.element_ty)
    at = tl.arange(0, D)
    target = (head.to(tl.int64) * tl.load(entry + 5) + slot) * D + at
    key = tl.load(keys + head * key_head + row * key_row + at)
    value = tl.load(values + head * value_head + row * value_row + at)
    tl.store(tl.multiple_of(tl.load(pointers + owner * 2).to(kind), 16) + target, key)
    tl.store(tl.multiple_of(tl.load(pointers + owner * 2 + 1).to(kind), 16) + target, value)


def tiling(head_dim: int) -> dict[str, int]:
    """Tile sizes that keep two tiles of keys and values and one of queries in 99 KB of shared memory."""
    if head_dim >= 512:
        return {"BM": 32, "BN": 32, "num_warps": 8, "num_stages": 1}
    return {"BM": 64, "BN": 32, "num_warps": 8, "num_stages": 2}


def store(keys: Tensor, values: Tensor, sequences: Ragged) -> None:
    """See the twin."""
    heads, rows, width = keys.shape
    strides = (keys.stride(0), keys.stride(1), values.stride(0), values.stride(1))
    tables = (sequences.table, sequences.pointers, sequences.owners)
    store_kernel[(rows, heads)](keys, values, *tables, *strides, D=width, num_warps=1)


def attend(queries: Tensor, sequences: Ragged) -> Tensor:
    """See the twin."""
    heads, rows, width = queries.shape
    out = queries.new_empty(rows, heads, width)
    sizes = tiling(width)
    attention_kernel[(triton.cdiv(sequences.longest, sizes["BM"]), heads, len(sequences.table))](
        queries,
        sequences.table,
        sequences.pointers,
        out,
        queries.stride(0),
        out.stride(0),
        GROUP=heads // sequences.kv_heads,
        CAUSAL=sequences.causal,
        WINDOW=(sequences.window or 0) if sequences.causal else 0,
        D=width,
        **sizes,
    )
    return out
