"""Experts over rows sorted by expert, each expert padded to whole tiles of 8 or 16 rows, as Metal kernels.

A threadgroup multiplies one tile by LINES matrix rows: half of them gate and half up, or all of them down. No capacity
limit, no look at the device.
"""

from __future__ import annotations

import mlx.core as mx

from dgemma_mlx.kernels import packed
from dgemma_mlx.kernels.operand import Operand
from dgemma_mlx.kernels.packed import BK, FRAGMENT, HEADER, LD
from dgemma_mlx.kernels.vocab import kernel

LINES = 64
THREADS = 32 * LINES // (2 * FRAGMENT)
_COMBINED = 256

GELU = """
inline float gelu(float x) {
    return 0.5f * x * (1 + metal::precise::tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}
"""

# Simdgroup g owns fragments g and g + LINES / 16 of the columns, so that gate and up of a column meet in one of them.
_PRODUCT = """
    uint tile_at = threadgroup_position_in_grid.y, thread = thread_position_in_threadgroup.x;
    uint group = simdgroup_index_in_threadgroup;
    threadgroup float tile[LINES * LD], rows_tile[BM * LD], sums[BM * LINES];
    int owner = tiles[2 * tile_at];
    if (owner >= 0) {
        uint expert = uint(owner), first = uint(tiles[2 * tile_at + 1]), end = uint(starts[expert + 1]);
        uint block = threadgroup_position_in_grid.x * COLUMNS;
        simdgroup_float8x8 acc[2][BM / 8], left, right;
        for (uint side = 0; side < 2; ++side)
            for (uint part = 0; part < BM / 8; ++part)
                acc[side][part] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        for (uint k = 0; k < uint(K); k += BK) {
            STAGE
            for (uint at = thread; at < BM * BK; at += THREADS) {
                uint row = first + at / BK, column = k + at % BK;
                float value = 0;
                if (row < end && column < uint(K)) value = float(x[size_t(SOURCE) * K + column]);
                rows_tile[at / BK * LD + at % BK] = value;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint step = 0; step < BK; step += 8) {
                for (uint side = 0; side < 2; ++side) {
                    uint line = side * LINES / 2 + group * 8;
                    simdgroup_load(right, tile + line * LD + step, LD, 0, true);
                    for (uint part = 0; part < BM / 8; ++part) {
                        simdgroup_load(left, rows_tile + part * 8 * LD + step, LD);
                        simdgroup_multiply_accumulate(acc[side][part], left, right, acc[side][part]);
                    }
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        for (uint side = 0; side < 2; ++side)
            for (uint part = 0; part < BM / 8; ++part)
                simdgroup_store(acc[side][part], sums + part * 8 * LINES + side * LINES / 2 + group * 8, LINES);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint at = thread; at < BM * COLUMNS; at += THREADS) {
            uint row = first + at / COLUMNS, column = block + at % COLUMNS;
            if (row < end && column < uint(N)) {
                float value = sums[at / COLUMNS * LINES + at % COLUMNS];
                FINISH
            }
        }
    }
"""

_GATE_UP_STAGE = packed.stage(
    "LINES",
    "block + line % COLUMNS < uint(N)",
    "expert * 2 * N + line / COLUMNS * N + block + line % COLUMNS",
)
_GATE_UP_FINISH = """
                float up = sums[at / COLUMNS * LINES + LINES / 2 + at % COLUMNS];
                if (SCALED) value *= float(multipliers[size_t(expert) * 2 * N + column]);
                if (SCALED) up *= float(multipliers[size_t(expert) * 2 * N + N + column]);
                out[size_t(row) * N + column] = T(gelu(value) * up);
"""
_DOWN_STAGE = packed.stage("LINES", "block + line < uint(N)", "expert * N + block + line")
_DOWN_FINISH = """
                if (SCALED) value *= float(multipliers[size_t(expert) * N + column]);
                uint target = uint(order[row]);
                out[size_t(target) * N + column] = T(value * routing[target]);
"""
GATE_UP = (
    _PRODUCT.replace("STAGE", _GATE_UP_STAGE).replace("FINISH", _GATE_UP_FINISH).replace("SOURCE", "order[row] / TOP_K")
)
DOWN = _PRODUCT.replace("STAGE", _DOWN_STAGE).replace("FINISH", _DOWN_FINISH).replace("SOURCE", "row")
COMBINE = """
    uint column = thread_position_in_grid.x, token = thread_position_in_grid.y;
    if (column < uint(N)) {
        float total = 0;
        for (uint slot = 0; slot < TOP_K; ++slot) total += float(parts[(size_t(token) * TOP_K + slot) * N + column]);
        out[size_t(token) * N + column] = T(total);
    }
"""

INPUTS = ["x", "order", "tiles", "starts", *packed.TENSORS]


def plan(ids: mx.array, experts: int, size: int) -> tuple[mx.array, mx.array, mx.array]:
    """Of expert ids [N, k]: the sorting order [M], (expert, first row) a tile [T, 2], first rows an expert [E + 1].

    T is the most tiles of `size` rows there can be; those behind the last have expert -1.
    """
    flat = ids.flatten()
    counts = (flat[:, None] == mx.arange(experts, dtype=flat.dtype)).sum(axis=0).astype(mx.int32)
    starts = mx.pad(counts.cumsum(), (1, 0))
    each = (counts + size - 1) // size
    last = each.cumsum()
    tile = mx.arange(flat.size // size + min(experts, flat.size))
    expert = (tile[:, None] >= last).sum(axis=1).astype(mx.int32)
    known = mx.minimum(expert, experts - 1)
    first = starts[known] + (tile - (last - each)[known]) * size
    tiles = mx.stack([mx.where(expert < experts, expert, -1), first], axis=1)
    return mx.argsort(flat), tiles.astype(mx.int32), starts.astype(mx.int32)


def experts(x: mx.array, ids: mx.array, routing: mx.array, gate_up: Operand, down: Operand, size: int) -> mx.array:
    """See the twin; `size` is the number of rows a tile, 8 or 16."""
    (tokens, top_k), hidden = ids.shape, x.shape[1]
    order, tiles, starts = plan(ids, gate_up.stack, size)
    inner = gate_up.rows // 2
    rows = [order, tiles, starts]
    middle = _product("moe_gate_up", [x, *rows], gate_up, (tokens * top_k, inner), GATE_UP, LINES // 2, size, top_k)
    parts = _product("moe_down", [middle, *rows, routing], down, (tokens * top_k, hidden), DOWN, LINES, size, top_k)
    [out] = kernel("moe_combine", ["parts"], ["out"], COMBINE, "")(
        inputs=[parts],
        template=[("T", x.dtype), ("N", hidden), ("TOP_K", top_k)],
        grid=(-(-hidden // _COMBINED) * _COMBINED, tokens, 1),
        threadgroup=(_COMBINED, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
    )
    result: mx.array = out
    return result


def _product(
    name: str,
    inputs: list[mx.array],
    matrix: Operand,
    shape: tuple[int, int],
    body: str,
    columns: int,
    size: int,
    top_k: int,
) -> mx.array:
    x, tiles = inputs[0], inputs[2]
    names = [*INPUTS[:4], *(["routing"] if len(inputs) > 4 else []), *packed.TENSORS]
    sizes = {"K": x.shape[1], "N": shape[1], "TOP_K": top_k, "BM": size, "BK": BK, "LD": LD}
    sizes |= {"LINES": LINES, "COLUMNS": columns, "THREADS": THREADS}
    [out] = kernel(name, names, ["out"], body, HEADER + GELU)(
        inputs=[*inputs, *matrix.tensors],
        template=[("T", x.dtype), *sizes.items(), *matrix.constants],
        grid=(-(-shape[1] // columns) * THREADS, len(tiles), 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[shape],
        output_dtypes=[x.dtype],
    )
    result: mx.array = out
    return result
