"""Soft embeddings out of the few ids that hold a row's mass, gathered from the stored embedding.

What the ids left out weigh is measured, so that the caller can take the full product for a row that loses too much or
whose list overflows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dgemma_cuda.kernels.numerics import narrow
from dgemma_cuda.kernels.operand import Operand
from dgemma_cuda.kernels.packed import AFFINE4, AFFINE8, MXFP8, PLAIN, e2m1, e4m3, scale_values
from dgemma_cuda.kernels.vocab import BLOCK, Signal, scores_of, signal_of
from dgemma_cuda.self_conditioning import REACH, WIDTH


@triton.jit
def candidates_kernel(
    logits: tl.tensor,
    temperatures: tl.tensor,
    signal_top: tl.tensor,
    signal_sum: tl.tensor,
    block_tops: tl.tensor,
    ids_out: tl.tensor,
    weights_out: tl.tensor,
    counts: tl.tensor,
    kept: tl.tensor,
    V: tl.tensor,
    blocks: tl.tensor,
    block_stride: tl.tensor,
    cap: tl.tensor,
    reach: tl.tensor,
    WIDTH: tl.constexpr,
    SIGNAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row: ids within `reach` of its top with their probabilities in order of id, how many, and their mass."""
    row = tl.program_id(0).to(tl.int64)
    top = tl.load(signal_top + row)
    total = tl.load(signal_sum + row)
    temperature = tl.load(temperatures + row)
    count = tl.zeros((), tl.int32)
    mass = tl.zeros((), tl.float32)
    for block in range(blocks):
        if tl.load(block_tops + row * block_stride + block) >= top - reach:
            ids = block * BLOCK + tl.arange(0, BLOCK)
            inside = ids < V
            raw = tl.load(logits + row * V + ids, mask=inside, other=0.0)
            signal = signal_of(scores_of(raw, cap, temperature), SIGNAL)
            chosen = inside & (signal >= top - reach)
            share = tl.where(chosen, tl.exp(signal - top) / total, 0.0)
            places = count + tl.cumsum(chosen.to(tl.int32), 0) - 1
            fits = chosen & (places < WIDTH)
            tl.store(ids_out + row * WIDTH + places, ids, mask=fits)
            tl.store(weights_out + row * WIDTH + places, share, mask=fits)
            count += tl.sum(chosen.to(tl.int32), 0)
            mass += tl.sum(share, 0)
    tl.store(counts + row, count)
    tl.store(kept + row, mass)


@triton.jit
def gather_kernel(
    ids: tl.tensor,
    weights: tl.tensor,
    counts: tl.tensor,
    table: tl.tensor,
    scales: tl.tensor,
    biases: tl.tensor,
    multipliers: tl.tensor,
    out: tl.tensor,
    H: tl.tensor,
    WIDTH: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A stretch of one row: the weighted sum of its embedding rows, BATCH at a time, in float32."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (columns < H)[None, :]
    count = tl.minimum(tl.load(counts + row), WIDTH)
    acc = tl.zeros((BATCH, BLOCK), tl.float32)
    for start in range(0, count, BATCH):
        at = start + tl.arange(0, BATCH)
        known = at < count
        share = tl.load(weights + row * WIDTH + at, mask=known, other=0.0)
        tokens = tl.load(ids + row * WIDTH + at, mask=known, other=0).to(tl.int64)[:, None]
        mask = known[:, None] & inside
        if FORMAT == PLAIN:
            values = tl.load(table + tokens * H + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        else:
            groups = tokens * (H // GROUP) + (columns // GROUP)[None, :]
            scale = scale_values(tl.load(scales + groups, mask=mask, other=0), FORMAT)
            if FORMAT == AFFINE8 or FORMAT == MXFP8:
                code = tl.load(table + tokens * H + columns[None, :], mask=mask, other=0).to(tl.int32)
            else:
                code = tl.load(table + tokens * (H // 2) + (columns // 2)[None, :], mask=mask, other=0).to(tl.int32)
                code = (code >> ((columns % 2) * 4)[None, :]) & 15
            if FORMAT == AFFINE4 or FORMAT == AFFINE8:
                bias = tl.load(biases + groups, mask=mask, other=0.0).to(tl.float32)
                values = code.to(tl.float32) * scale + bias
            elif FORMAT == MXFP8:
                values = e4m3(code).to(tl.float32) * scale
            else:
                values = e2m1(code).to(tl.float32) * scale
        if SCALED:
            share = share * tl.load(multipliers + tokens, mask=known[:, None], other=0.0).reshape(BATCH)
        acc += tl.where(mask, values, 0.0) * share[:, None]
    tl.store(out + row * H + columns, narrow(tl.sum(acc, 0), out.dtype.element_ty), mask=columns < H)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Of each row: ids and shares [S, WIDTH] of which `counts` [S] are used, and the mass that all of them have."""

    ids: Tensor
    weights: Tensor
    counts: Tensor
    kept: Tensor


def candidates(signal: Signal) -> Candidates:
    """The ids within REACH of each row's top."""
    rows, vocab = signal.logits.shape
    device = signal.logits.device
    ids = torch.empty(rows, WIDTH, dtype=torch.int32, device=device)
    weights = torch.empty(rows, WIDTH, device=device)
    counts = torch.empty(rows, dtype=torch.int32, device=device)
    kept = torch.empty(rows, device=device)
    candidates_kernel[(rows,)](
        signal.logits,
        signal.temperatures,
        signal.top,
        signal.sum,
        signal.block_tops,
        ids,
        weights,
        counts,
        kept,
        vocab,
        triton.cdiv(vocab, BLOCK),
        signal.block_tops.stride(0),
        signal.cap,
        REACH,
        WIDTH=WIDTH,
        SIGNAL=signal.kind,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return Candidates(ids, weights, counts, kept)


def gather(chosen: Candidates, table: Operand, width: int, dtype: torch.dtype) -> Tensor:
    """The unscaled soft embeddings [S, width]."""
    rows = len(chosen.ids)
    out = torch.empty(rows, width, dtype=dtype, device=chosen.ids.device)
    constants = {"FORMAT": table.format, "GROUP": table.group, "SCALED": table.scaled}
    gather_kernel[(rows, triton.cdiv(width, 256))](
        chosen.ids,
        chosen.weights,
        chosen.counts,
        *table.pointers,
        out,
        width,
        WIDTH=WIDTH,
        BATCH=8,
        BLOCK=256,
        num_warps=4,
        **constants,
    )
    return out
