"""Soft embeddings out of the few ids that hold a row's mass, as Metal kernels: list them, then gather their rows.

The gather reads the embedding as it is stored, plain or packed. What the ids left out weigh is measured, so that the
caller can take the full product for a row that loses too much or whose list overflows.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from dgemma_mlx.kernels.operand import Operand
from dgemma_mlx.kernels.packed import DECODE, TENSORS
from dgemma_mlx.kernels.vocab import HEADER, THREADS, Signal, kernel, template
from dgemma_mlx.self_conditioning import REACH, WIDTH

CANDIDATES = """
    uint row = threadgroup_position_in_grid.x, thread = thread_position_in_threadgroup.x;
    uint lane = thread_index_in_simdgroup, group = simdgroup_index_in_threadgroup;
    threadgroup uint hits[THREADS / 32];
    threadgroup float masses[THREADS / 32];
    float top = signal[row * 2], total = signal[row * 2 + 1], temperature = temperatures[row], mass = 0;
    uint count = 0;
    for (uint start = 0; start < uint(V); start += THREADS) {
        uint id = start + thread;
        float value = -1e30f;
        if (id < uint(V))
            value = signal_of<SIGNAL>(score_of(float(logits[size_t(row) * V + id]), cap[0], temperature));
        uint chosen = value >= top - reach[0] ? 1 : 0;
        uint before = simd_prefix_exclusive_sum(chosen), all = simd_sum(chosen);
        if (lane == 0) hits[group] = all;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint place = count + before;
        for (uint other = 0; other < THREADS / 32; ++other) {
            place += other < group ? hits[other] : 0;
            count += hits[other];
        }
        float share = chosen ? metal::exp(value - top) / total : 0;
        mass += share;
        if (chosen && place < WIDTH) {
            ids[size_t(row) * WIDTH + place] = int(id);
            weights[size_t(row) * WIDTH + place] = share;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    mass = simd_sum(mass);
    if (lane == 0) masses[group] = mass;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread == 0) {
        mass = 0;
        for (uint other = 0; other < THREADS / 32; ++other) mass += masses[other];
        counts[row] = int(count);
        kept[row] = mass;
    }
"""

GATHER = """
    uint column = thread_position_in_grid.x, row = thread_position_in_grid.y;
    if (column < uint(H)) {
        uint count = metal::min(uint(counts[row]), uint(WIDTH));
        float acc = 0;
        for (uint at = 0; at < count; ++at) {
            size_t id = size_t(ids[size_t(row) * WIDTH + at]);
            float value = 0;
            if (FORMAT == 0) {
                value = float(weight[id * H + column]);
            } else {
                size_t group_at = id * (H / GROUP) + column / GROUP;
                uint word = uint(weight[id * (H / PER) + column / PER]);
                uint code = (word >> (column % PER * BITS)) & ((1u << BITS) - 1);
                float bias = FORMAT == 1 ? float(biases[group_at]) : 0;
                value = weight_of<FORMAT>(code, scale_of<FORMAT>(float(scales[group_at])), bias);
                if (SCALED) value *= float(multipliers[id]);
            }
            acc += shares[size_t(row) * WIDTH + at] * value;
        }
        out[size_t(row) * H + column] = T(acc);
    }
"""

CANDIDATES_INPUTS = ["logits", "temperatures", "cap", "signal", "reach"]
CANDIDATES_OUTPUTS = ["ids", "weights", "counts", "kept"]
GATHER_INPUTS = ["ids", "shares", "counts", *TENSORS]
GATHER_OUTPUTS = ["out"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Of each row: ids and shares [S, WIDTH] of which `counts` [S] are used, and the mass that all of them have."""

    ids: mx.array
    weights: mx.array
    counts: mx.array
    kept: mx.array


def candidates(signal: Signal) -> Candidates:
    """The ids within REACH of each row's top."""
    rows = len(signal.logits)
    made = kernel("signal_candidates", CANDIDATES_INPUTS, CANDIDATES_OUTPUTS, CANDIDATES)(
        inputs=[signal.logits, signal.temperatures, signal.cap, signal.stats, mx.array([REACH], mx.float32)],
        template=[*template(signal.logits, signal.kind), ("WIDTH", WIDTH)],
        grid=(rows * THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows, WIDTH), (rows, WIDTH), (rows,), (rows,)],
        output_dtypes=[mx.int32, mx.float32, mx.int32, mx.float32],
    )
    return Candidates(*made)


def gather(chosen: Candidates, table: Operand, width: int, dtype: mx.Dtype) -> mx.array:
    """The unscaled soft embeddings [S, width]."""
    rows = len(chosen.ids)
    [out] = kernel("signal_gather", GATHER_INPUTS, GATHER_OUTPUTS, GATHER, HEADER + DECODE)(
        inputs=[chosen.ids, chosen.weights, chosen.counts, *table.tensors],
        template=[("T", dtype), ("H", width), ("WIDTH", WIDTH), *table.constants],
        grid=(-(-width // THREADS) * THREADS, rows, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows, width)],
        output_dtypes=[dtype],
    )
    result: mx.array = out
    return result
