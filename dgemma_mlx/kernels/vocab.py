"""Statistics of logit rows in one pass over the vocabulary, as Metal kernels: argmax, entropy, sample, signal softmax.

A threadgroup reads one block of one row and leaves seven numbers; a second kernel combines a row's blocks and looks
once more into the block that holds the sample. The bodies use no more of Metal than a small C++ shim can stand in for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx

from dgemma_mlx.vocab import Draws, Picks

BLOCK = 4096
THREADS = 256
_NAMES = {mx.float32: 0, mx.bfloat16: 1, mx.float16: 2}

HEADER = """
inline float score_of(float raw, float cap, float temperature) {
    return metal::precise::tanh(raw / cap) * (cap / temperature);
}

template <int SIGNAL>
inline float signal_of(float score) {
    if (SIGNAL == 1) return float(bfloat16_t(score));
    if (SIGNAL == 2) return float(half(score));
    return score;
}
"""

SCAN = """
    uint block = threadgroup_position_in_grid.x, row = threadgroup_position_in_grid.y;
    uint thread = thread_position_in_threadgroup.x;
    uint lane = thread_index_in_simdgroup, group = simdgroup_index_in_threadgroup;
    uint blocks = (V + BLOCK - 1) / BLOCK, end = metal::min(uint(V), (block + 1) * BLOCK);
    threadgroup float tops[THREADS / 32], seconds[THREADS / 32], signal_tops[THREADS / 32], sums[3][THREADS / 32];
    threadgroup uint firsts[THREADS / 32];
    float temperature = temperatures[row], top = -1e30f, second = -1e30f, signal_top = -1e30f;
    uint first = V;
    for (uint id = block * BLOCK + thread; id < end; id += THREADS) {
        float score = score_of(float(logits[size_t(row) * V + id]), cap[0], temperature);
        second = metal::max(second, metal::min(score, top));
        if (score > top) { top = score; first = id; }
        signal_top = metal::max(signal_top, signal_of<SIGNAL>(score));
    }
    float highest = simd_max(top);
    uint lowest = simd_min(top == highest ? first : uint(V));
    second = simd_max(first == lowest ? second : top);
    signal_top = simd_max(signal_top);
    if (lane == 0) {
        tops[group] = highest; seconds[group] = second; firsts[group] = lowest; signal_tops[group] = signal_top;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = tops[0]; second = seconds[0]; signal_top = signal_tops[0]; first = firsts[0];
    for (uint other = 1; other < THREADS / 32; ++other) {
        bool better = tops[other] > top || (tops[other] == top && firsts[other] < first);
        second = metal::max(metal::max(second, seconds[other]), metal::min(top, tops[other]));
        first = better ? firsts[other] : first;
        top = metal::max(top, tops[other]);
        signal_top = metal::max(signal_top, signal_tops[other]);
    }
    float mass = 0, lifted = 0, signal_mass = 0;
    for (uint id = block * BLOCK + thread; id < end; id += THREADS) {
        float score = score_of(float(logits[size_t(row) * V + id]), cap[0], temperature);
        float share = metal::exp(score - top);
        mass += share;
        lifted += share * (score - top);
        signal_mass += metal::exp(signal_of<SIGNAL>(score) - signal_top);
    }
    mass = simd_sum(mass); lifted = simd_sum(lifted); signal_mass = simd_sum(signal_mass);
    if (lane == 0) { sums[0][group] = mass; sums[1][group] = lifted; sums[2][group] = signal_mass; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread == 0) {
        mass = lifted = signal_mass = 0;
        for (uint other = 0; other < THREADS / 32; ++other) {
            mass += sums[0][other]; lifted += sums[1][other]; signal_mass += sums[2][other];
        }
        size_t at = (size_t(row) * blocks + block) * 6;
        partials[at] = top; partials[at + 1] = mass; partials[at + 2] = lifted;
        partials[at + 3] = signal_top; partials[at + 4] = signal_mass; partials[at + 5] = second;
        places[size_t(row) * blocks + block] = first;
    }
"""

PICK = """
    uint row = threadgroup_position_in_grid.x, thread = thread_position_in_threadgroup.x;
    uint blocks = (V + BLOCK - 1) / BLOCK;
    threadgroup float before, goal, runs[THREADS];
    threadgroup uint chosen, winner, found[THREADS], last[THREADS];
    const device float* mine = partials + size_t(row) * blocks * 6;
    float top = -1e30f;
    for (uint block = 0; block < blocks; ++block) top = metal::max(top, mine[block * 6]);
    if (thread == 0) {
        float total = 0, lifted = 0, signal_top = -1e30f, signal_sum = 0;
        uint best = 0;
        for (uint block = 0; block < blocks; ++block) {
            float weight = metal::exp(mine[block * 6] - top), sum = mine[block * 6 + 1] * weight;
            total += sum;
            lifted += mine[block * 6 + 2] * weight + (mine[block * 6] - top) * sum;
            best = mine[block * 6] > mine[best * 6] ? block : best;
            signal_top = metal::max(signal_top, mine[block * 6 + 3]);
        }
        for (uint block = 0; block < blocks; ++block)
            signal_sum += mine[block * 6 + 4] * metal::exp(mine[block * 6 + 3] - signal_top);
        winner = places[size_t(row) * blocks + best];
        argmax[row] = int(winner);
        float second = mine[best * 6 + 5];
        for (uint block = 0; block < blocks; ++block)
            second = block == best ? second : metal::max(second, mine[block * 6]);
        margin[row] = (top - second) / metal::max(metal::max(metal::fabs(top), metal::fabs(second)), 1e-37f);
        entropy[row] = metal::log(total) - lifted / total;
        signal[row * 2] = signal_top;
        signal[row * 2 + 1] = signal_sum;
        goal = uniforms[row] * total;
        float running = 0;
        before = 0;
        chosen = 0;
        bool past = true;
        for (uint block = 0; block < blocks && past; ++block) {
            float sum = mine[block * 6 + 1] * metal::exp(mine[block * 6] - top);
            if (sum > 0) { chosen = block; before = running; }
            running += sum;
            past = running <= goal;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint each = BLOCK / THREADS, start = chosen * BLOCK + thread * each;
    float temperature = temperatures[row], run = 0;
    for (uint id = start; id < metal::min(start + each, uint(V)); ++id)
        run += metal::exp(score_of(float(logits[size_t(row) * V + id]), cap[0], temperature) - top);
    runs[thread] = run;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float running = before;
    for (uint other = 0; other < thread; ++other) running += runs[other];
    uint hit = V, filled = 0;
    for (uint id = start; id < metal::min(start + each, uint(V)); ++id) {
        float share = metal::exp(score_of(float(logits[size_t(row) * V + id]), cap[0], temperature) - top);
        running += share;
        hit = hit == uint(V) && running > goal ? id : hit;
        filled = share > 0 ? id : filled;
    }
    found[thread] = hit;
    last[thread] = filled;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread == 0) {
        uint id = V, end = 0;
        for (uint other = 0; other < THREADS; ++other) {
            id = metal::min(id, found[other]);
            end = metal::max(end, last[other]);
        }
        sampled[row] = int(greedy[row] ? winner : metal::min(id, end));
    }
"""

WEIGHTS = """
    uint id = thread_position_in_grid.x, row = thread_position_in_grid.y;
    if (id < uint(V)) {
        float score = score_of(float(logits[size_t(row) * V + id]), cap[0], temperatures[row]);
        out[size_t(row) * V + id] = T(metal::exp(signal_of<SIGNAL>(score) - signal[row * 2]) / signal[row * 2 + 1]);
    }
"""

SCAN_INPUTS, SCAN_OUTPUTS = ["logits", "temperatures", "cap"], ["partials", "places"]
PICK_INPUTS = ["logits", "temperatures", "cap", "uniforms", "greedy", "partials", "places"]
PICK_OUTPUTS = ["sampled", "argmax", "entropy", "margin", "signal"]
WEIGHTS_INPUTS, WEIGHTS_OUTPUTS = ["logits", "temperatures", "cap", "signal"], ["out"]


@dataclass(frozen=True, slots=True)
class Signal:
    """What self-conditioning needs of a pass: raw logits [S, V], temperatures, top and sum of the rounded scores."""

    logits: mx.array
    temperatures: mx.array
    cap: mx.array
    stats: mx.array
    kind: int


def kernel(name: str, inputs: list[str], outputs: list[str], source: str, header: str = HEADER) -> Callable[..., Any]:
    """A Metal kernel; it is compiled when it is first called."""
    return cast(Callable[..., Any], mx.fast.metal_kernel(name, inputs, outputs, source, header))


def template(logits: mx.array, kind: int) -> list[tuple[str, Any]]:
    """The compile-time arguments of the vocabulary kernels."""
    return [("T", logits.dtype), ("V", logits.shape[1]), ("BLOCK", BLOCK), ("THREADS", THREADS), ("SIGNAL", kind)]


def pick(logits: mx.array, cap: float, draws: Draws, signal_from: int, signal_dtype: mx.Dtype) -> tuple[Picks, Signal]:
    """Predict from raw logits [R, V]; the signal is that of the rows from `signal_from`."""
    rows, vocab = logits.shape
    blocks, kind, limit = -(-vocab // BLOCK), _NAMES[signal_dtype], mx.array([cap], mx.float32)
    partials, places = kernel("vocab_scan", SCAN_INPUTS, SCAN_OUTPUTS, SCAN)(
        inputs=[logits, draws.temperatures, limit],
        template=template(logits, kind),
        grid=(blocks * THREADS, rows, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows, blocks, 6), (rows, blocks)],
        output_dtypes=[mx.float32, mx.uint32],
    )
    sampled, argmax, entropy, margin, stats = kernel("vocab_pick", PICK_INPUTS, PICK_OUTPUTS, PICK)(
        inputs=[logits, draws.temperatures, limit, draws.uniforms, draws.greedy, partials, places],
        template=template(logits, kind),
        grid=(rows * THREADS, 1, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows,), (rows,), (rows,), (rows,), (rows, 2)],
        output_dtypes=[mx.int32, mx.int32, mx.float32, mx.float32, mx.float32],
    )
    signal = Signal(logits[signal_from:], draws.temperatures[signal_from:], limit, stats[signal_from:], kind)
    return Picks(sampled, argmax, entropy, margin), signal


def probabilities(signal: Signal) -> mx.array:
    """The signal's softmax [S, V] in the dtype of its logits."""
    rows, vocab = signal.logits.shape
    [out] = kernel("vocab_weights", WEIGHTS_INPUTS, WEIGHTS_OUTPUTS, WEIGHTS)(
        inputs=[signal.logits, signal.temperatures, signal.cap, signal.stats],
        template=template(signal.logits, signal.kind),
        grid=(-(-vocab // THREADS) * THREADS, rows, 1),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(rows, vocab)],
        output_dtypes=[signal.logits.dtype],
    )
    result: mx.array = out
    return result
