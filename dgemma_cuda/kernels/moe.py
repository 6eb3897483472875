"""Experts over rows sorted by expert, each expert padded to whole tiles; no capacity limit, no host synchronisation.

Weights stream past a few rows each, so their rows are the tall side of every product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dgemma_cuda.kernels.numerics import gelu, narrow
from dgemma_cuda.kernels.operand import Operand
from dgemma_cuda.kernels.packed import add_product

BM = 16
BN = 64


@triton.jit
def tile_rows(tiles: tl.tensor, starts: tl.tensor, tile: tl.tensor, BM: tl.constexpr) -> tl.tensor:
    """Expert of a tile, its sorted rows [BM], and which of them exist; expert -1 behind the last tile."""
    expert = tl.load(tiles + 2 * tile)
    first = tl.load(tiles + 2 * tile + 1)
    rows = first + tl.arange(0, BM)
    end = tl.load(starts + tl.maximum(expert, 0) + 1)
    return expert, rows, rows < end


@triton.jit
def gate_up_kernel(
    x: tl.tensor,
    order: tl.tensor,
    tiles: tl.tensor,
    starts: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    biases: tl.tensor,
    multipliers: tl.tensor,
    out: tl.tensor,
    I: tl.tensor,  # noqa: E741
    K: tl.tensor,
    TOP_K: tl.constexpr,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """out [M, I] = gelu(gate) * up of the sorted rows: row m reads token order[m] // TOP_K."""
    tile = tl.program_id(1)
    expert, rows, present = tile_rows(tiles, starts, tile, BM)
    if expert < 0:
        return
    tokens = tl.load(order + rows, mask=present, other=0) // TOP_K
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = columns < I
    gate_rows = (expert * 2 * I + columns).to(tl.int64)
    up_rows = gate_rows + I
    gate = tl.zeros((BN, BM), tl.float32)
    up = tl.zeros((BN, BM), tl.float32)
    for k in range(0, K, BK):
        gate = add_product(
            gate, x, tokens, present, weight, scales, biases, gate_rows, inside, k, K, FORMAT, GROUP, BN, BK
        )
        up = add_product(up, x, tokens, present, weight, scales, biases, up_rows, inside, k, K, FORMAT, GROUP, BN, BK)
    if SCALED:
        gate = gate * tl.load(multipliers + gate_rows, mask=inside, other=0.0)[:, None]
        up = up * tl.load(multipliers + up_rows, mask=inside, other=0.0)[:, None]
    places = out + rows[None, :] * I + columns[:, None]
    tl.store(places, narrow(gelu(gate) * up, out.dtype.element_ty), mask=inside[:, None] & present[None, :])


@triton.jit
def down_kernel(
    x: tl.tensor,
    order: tl.tensor,
    tiles: tl.tensor,
    starts: tl.tensor,
    routing: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    biases: tl.tensor,
    multipliers: tl.tensor,
    out: tl.tensor,
    H: tl.tensor,
    K: tl.tensor,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """out [M, H]: sorted rows times their expert, weighted, put back at their place order[m] in token order."""
    tile = tl.program_id(1)
    expert, rows, present = tile_rows(tiles, starts, tile, BM)
    if expert < 0:
        return
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = columns < H
    w_rows = (expert * H + columns).to(tl.int64)
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(0, K, BK):
        acc = add_product(acc, x, rows, present, weight, scales, biases, w_rows, inside, k, K, FORMAT, GROUP, BN, BK)
    if SCALED:
        acc = acc * tl.load(multipliers + w_rows, mask=inside, other=0.0)[:, None]
    targets = tl.load(order + rows, mask=present, other=0)
    acc = acc * tl.load(routing + targets, mask=present, other=0.0)[None, :]
    places = out + targets[None, :] * H + columns[:, None]
    tl.store(places, narrow(acc, out.dtype.element_ty), mask=inside[:, None] & present[None, :])


@triton.jit
def combine_kernel(parts: tl.tensor, out: tl.tensor, H: tl.tensor, TOP_K: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """out [N, H] = the sum of parts [N, TOP_K, H] over the experts, in slot order."""
    token = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < H
    acc = tl.zeros((BLOCK,), tl.float32)
    for slot in range(TOP_K):
        acc += tl.load(parts + (token * TOP_K + slot) * H + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * H + columns, narrow(acc, out.dtype.element_ty), mask=inside)


def plan(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of expert ids [N, k]: the sorting order [M], (expert, first row) a tile [T, 2], first rows an expert [E + 1].

    T is the most tiles there can be; those behind the last have expert -1.
    """
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = (flat[:, None] == torch.arange(experts, device=ids.device)).sum(0)
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    last_tiles = ((counts + BM - 1) // BM).cumsum(0)
    tile = torch.arange(flat.numel() // BM + min(experts, flat.numel()), device=ids.device)
    expert = torch.searchsorted(last_tiles, tile, right=True)
    known = expert.clamp(max=experts - 1)
    before = last_tiles - (counts + BM - 1) // BM
    first = starts[known] + (tile - before[known]) * BM
    tiles = torch.stack([torch.where(expert < experts, expert, -1), first], dim=1)
    return order.int(), tiles.int(), starts.int()


def experts(x: Tensor, ids: Tensor, routing: Tensor, gate_up: Operand, down: Operand) -> Tensor:
    """Weighted sum over the chosen experts: x [N, H], ids and float32 routing [N, k] -> [N, H].

    `gate_up` and `down` are `Operand`s of stacked matrices.
    """
    tokens, top_k = ids.shape
    order, tiles, starts = plan(ids, gate_up.stack)
    inner, hidden = gate_up.rows // 2, x.shape[1]
    middle = x.new_empty(tokens * top_k, inner)
    parts = x.new_empty(tokens * top_k, hidden)
    out = torch.empty_like(x)
    tiling = {"BM": BM, "BN": BN, "num_warps": 4, "num_stages": 3}
    gate_up_kernel[(triton.cdiv(inner, BN), len(tiles))](
        x, order, tiles, starts, *gate_up.pointers, middle, inner, hidden, TOP_K=top_k, **gate_up.constants, **tiling
    )
    down_kernel[(triton.cdiv(hidden, BN), len(tiles))](
        middle, order, tiles, starts, routing, *down.pointers, parts, hidden, inner, **down.constants, **tiling
    )
    combine_kernel[(tokens, triton.cdiv(hidden, 1024))](parts, out, hidden, TOP_K=top_k, BLOCK=1024, num_warps=4)
    return out
