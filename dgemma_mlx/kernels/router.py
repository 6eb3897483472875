"""The router as one Metal kernel: norm, scale, scores of all experts, the best of them, their softmax, its scales.

A threadgroup takes eight rows, the side of a matrix fragment; each of its simdgroups computes fragments of scores and
then picks for one row.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from dgemma_mlx.kernels import packed
from dgemma_mlx.kernels.operand import Operand
from dgemma_mlx.kernels.packed import BK, FRAGMENT, HEADER, LD
from dgemma_mlx.kernels.vocab import kernel

ROWS = FRAGMENT
THREADS = 32 * ROWS
MOST_EXPERTS = 128

ROUTE = f"""
    uint first = threadgroup_position_in_grid.x * ROWS, thread = thread_position_in_threadgroup.x;
    uint lane = thread_index_in_simdgroup, group = simdgroup_index_in_threadgroup, row = first + group;
    threadgroup float tile[E_PADDED * LD], rows_tile[ROWS * LD], factors[ROWS], scores[ROWS * E_PADDED];
    float square = 0;
    if (row < count[0]) {{
        for (uint at = lane; at < uint(K); at += 32) {{
            float value = float(x[size_t(row) * K + at]);
            square += value * value;
        }}
    }}
    square = simd_sum(square);
    if (lane == 0) factors[group] = metal::precise::rsqrt(square / K + numbers[0]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 sums[E_PADDED / 64], left, right;
    for (uint f = 0; f < E_PADDED / 64; ++f) sums[f] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < uint(K); k += BK) {{
        {packed.stage("E_PADDED", "line < uint(E)", "line")}
        for (uint at = thread; at < ROWS * BK; at += THREADS) {{
            uint line = at / BK, column = k + at % BK;
            bool present = first + line < count[0] && column < uint(K);
            float value = present ? float(x[size_t(first + line) * K + column]) * factors[line] : 0;
            value = present ? value * (float(scale[column]) * numbers[1]) : 0;
            rows_tile[line * LD + at % BK] = float(T(value));
        }}
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint step = 0; step < BK; step += 8) {{
            simdgroup_load(left, rows_tile + step, LD);
            for (uint f = 0; f < E_PADDED / 64; ++f) {{
                simdgroup_load(right, tile + (f * 64 + group * 8) * LD + step, LD, 0, true);
                simdgroup_multiply_accumulate(sums[f], left, right, sums[f]);
            }}
        }}
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }}
    for (uint f = 0; f < E_PADDED / 64; ++f)
        simdgroup_store(sums[f], scores + f * 64 + group * 8, E_PADDED);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (row < count[0]) {{
        float mine[E_PADDED / 32], best[TOP_K], total = 0;
        uint chosen[TOP_K];
        for (uint slot = 0; slot < E_PADDED / 32; ++slot) {{
            uint expert = slot * 32 + lane;
            mine[slot] = expert < uint(E) ? scores[group * E_PADDED + expert] : -INFINITY;
            if (SCALED && expert < uint(E)) mine[slot] *= float(multipliers[expert]);
        }}
        for (uint place = 0; place < TOP_K; ++place) {{
            float top = -INFINITY;
            uint owner = E_PADDED;
            for (uint slot = 0; slot < E_PADDED / 32; ++slot) {{
                owner = mine[slot] > top ? slot * 32 + lane : owner;
                top = metal::max(top, mine[slot]);
            }}
            float highest = simd_max(top);
            uint winner = metal::min(simd_min(top == highest ? owner : uint(E_PADDED)), uint(E) - 1);
            best[place] = highest;
            chosen[place] = winner;
            for (uint slot = 0; slot < E_PADDED / 32; ++slot)
                mine[slot] = slot * 32 + lane == winner ? -INFINITY : mine[slot];
            total += metal::exp(highest - best[0]);
        }}
        if (lane == 0) {{
            for (uint place = 0; place < TOP_K; ++place) {{
                ids[size_t(row) * TOP_K + place] = chosen[place];
                float share = metal::exp(best[place] - best[0]) / total;
                routing[size_t(row) * TOP_K + place] = share * float(per_expert_scale[chosen[place]]);
            }}
        }}
    }}
"""

INPUTS = ["x", "scale", "per_expert_scale", "numbers", "count", *packed.TENSORS]
OUTPUTS = ["ids", "routing"]


def fits(experts: int) -> bool:
    """Whether the weights of a step find room in threadgroup memory."""
    return experts <= MOST_EXPERTS


def route(
    x: mx.array, scale: mx.array, per_expert_scale: mx.array, top_k: int, eps: float, proj: Operand
) -> tuple[mx.array, mx.array]:
    """Of x [N, H]: ids and float32 weights [N, k] of the experts of each row, best first."""
    rows, width = x.shape
    constants: list[tuple[str, Any]] = [("T", x.dtype), ("K", width), ("E", proj.rows), ("TOP_K", top_k)]
    constants += [("E_PADDED", -(-proj.rows // 64) * 64), ("ROWS", ROWS), ("THREADS", THREADS), ("BK", BK), ("LD", LD)]
    ids, routing = kernel("route", INPUTS, OUTPUTS, ROUTE, HEADER)(
        inputs=[
            x,
            scale,
            per_expert_scale,
            mx.array([eps, width**-0.5]),
            mx.array([rows], mx.uint32),
            *proj.tensors,
        ],
        template=[*constants, *proj.constants],
        grid=(-(-rows // ROWS) * THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows, top_k), (rows, top_k)],
        output_dtypes=[mx.uint32, mx.float32],
    )
    return ids, routing
