"""Statistics of logit rows in one pass over the vocabulary: argmax, entropy, inverse-CDF sample, signal softmax.

A program reads one block of one row and leaves seven numbers; a second, small kernel combines a row's blocks and looks
once more into the block that holds the sample. No float32 copy of the logits exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from dgemma_cuda.kernels.numerics import narrow, tanh, to_bfloat16_grid
from dgemma_cuda.vocab import TINY, Draws, Picks

BLOCK = 4096
SIGNALS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@triton.jit
def scores_of(raw: tl.tensor, cap: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """Softcapped logits over temperature, float32."""
    return tanh(raw.to(tl.float32) / cap) * (cap / temperature)


@triton.jit
def signal_of(scores: tl.tensor, SIGNAL: tl.constexpr) -> tl.tensor:
    """Scores rounded to the signal's dtype, as float32."""
    if SIGNAL == 1:
        return to_bfloat16_grid(scores)
    elif SIGNAL == 2:
        return scores.to(tl.float16).to(tl.float32)
    else:
        return scores


@triton.jit
def scan_kernel(
    logits: tl.tensor,
    temperatures: tl.tensor,
    partials: tl.tensor,
    places: tl.tensor,
    V: tl.tensor,
    blocks: tl.tensor,
    cap: tl.tensor,
    SIGNAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Of one block of one row: top, sum of exp, of exp * score (from the top), the signal's top and sum, second."""
    block = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < V
    raw = tl.load(logits + row * V + ids, mask=inside, other=0.0)
    scores = scores_of(raw, cap, tl.load(temperatures + row))
    scores = tl.where(inside, scores, -1e30)
    top, place = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
    mass = tl.exp(scores - top)
    signal = tl.where(inside, signal_of(scores, SIGNAL), -1e30)
    signal_top = tl.max(signal, 0)
    target = partials + row * blocks + block
    stride = tl.num_programs(1).to(tl.int64) * blocks
    tl.store(target, top)
    tl.store(target + stride, tl.sum(mass, 0))
    tl.store(target + 2 * stride, tl.sum(mass * tl.where(inside, scores - top, 0.0), 0))
    tl.store(target + 3 * stride, signal_top)
    tl.store(target + 4 * stride, tl.sum(tl.exp(signal - signal_top), 0))
    tl.store(target + 5 * stride, tl.max(tl.where(ids == block * BLOCK + place, -1e30, scores), 0))
    tl.store(places + row * blocks + block, block * BLOCK + place)


@triton.jit
def pick_kernel(
    logits: tl.tensor,
    temperatures: tl.tensor,
    uniforms: tl.tensor,
    greedy: tl.tensor,
    partials: tl.tensor,
    places: tl.tensor,
    sampled: tl.tensor,
    argmax: tl.tensor,
    entropy: tl.tensor,
    margin: tl.tensor,
    signal_top: tl.tensor,
    signal_sum: tl.tensor,
    V: tl.tensor,
    blocks: tl.tensor,
    cap: tl.tensor,
    TINY: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row: combine its blocks, then find the smallest id whose cumulated mass exceeds uniform * total."""
    row = tl.program_id(0).to(tl.int64)
    stride = tl.num_programs(0).to(tl.int64) * blocks
    at = tl.arange(0, BLOCKS)
    known = at < blocks
    source = partials + row * blocks + at
    tops = tl.load(source, mask=known, other=-1e30)
    top, best = tl.max(tops, 0, return_indices=True, return_indices_tie_break_left=True)
    weights = tl.exp(tops - top)
    sums = tl.where(known, tl.load(source + stride, mask=known, other=0.0) * weights, 0.0)
    total = tl.sum(sums, 0)
    lifted = tl.load(source + 2 * stride, mask=known, other=0.0) * weights + tl.where(known, tops - top, 0.0) * sums
    tl.store(entropy + row, tl.log(total) - tl.sum(lifted, 0) / total)
    signal_tops = tl.load(source + 3 * stride, mask=known, other=-1e30)
    highest = tl.max(signal_tops, 0)
    shares = tl.load(source + 4 * stride, mask=known, other=0.0) * tl.exp(signal_tops - highest)
    tl.store(signal_top + row, highest)
    tl.store(signal_sum + row, tl.sum(shares, 0))
    others = tl.where(at == best, tl.load(source + 5 * stride, mask=known, other=-1e30), tops)
    second = tl.max(others, 0)
    widest = tl.maximum(tl.maximum(tl.abs(top), tl.abs(second)), TINY)
    tl.store(margin + row, (top - second) / widest)
    winner = tl.load(places + row * blocks + best)
    tl.store(argmax + row, winner)
    running = tl.cumsum(sums, 0)
    all_mass = tl.max(running, 0)
    goal = tl.load(uniforms + row) * all_mass
    past = tl.sum((known & (running <= goal)).to(tl.int32), 0)
    filled = tl.sum((known & (running < all_mass)).to(tl.int32), 0)
    block = tl.minimum(past, filled)
    before = tl.sum(tl.where(at < block, sums, 0.0), 0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < V
    raw = tl.load(logits + row * V + ids, mask=inside, other=0.0)
    mass = tl.where(inside, tl.exp(scores_of(raw, cap, tl.load(temperatures + row)) - top), 0.0)
    place = tl.sum((tl.cumsum(mass, 0) + before <= goal).to(tl.int32), 0)
    last = tl.max(tl.where(mass > 0, tl.arange(0, BLOCK), 0), 0)
    drawn = block * BLOCK + tl.minimum(place, last)
    tl.store(sampled + row, tl.where(tl.load(greedy + row) != 0, winner, drawn))


@triton.jit
def weights_kernel(
    logits: tl.tensor,
    temperatures: tl.tensor,
    signal_top: tl.tensor,
    signal_sum: tl.tensor,
    out: tl.tensor,
    V: tl.tensor,
    cap: tl.tensor,
    SIGNAL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out [S, V] = the signal's probabilities; `out` may be `logits`."""
    row = tl.program_id(1).to(tl.int64)
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < V
    raw = tl.load(logits + row * V + ids, mask=inside, other=0.0)
    signal = signal_of(scores_of(raw, cap, tl.load(temperatures + row)), SIGNAL)
    share = tl.exp(signal - tl.load(signal_top + row)) / tl.load(signal_sum + row)
    tl.store(out + row * V + ids, narrow(share, out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Signal:
    """What self-conditioning needs of a pass: raw logits [S, V], and top, sum and block tops of the rounded scores."""

    logits: Tensor
    temperatures: Tensor
    top: Tensor
    sum: Tensor
    block_tops: Tensor
    cap: float
    kind: int

    def rows(self, chosen: Tensor) -> Signal:
        """A copy of some rows."""
        names = ("logits", "temperatures", "top", "sum", "block_tops")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


def pick(logits: Tensor, cap: float, draws: Draws, signal_from: int, signal_dtype: torch.dtype) -> tuple[Picks, Signal]:
    """Predict from raw logits [R, V]; the signal is that of the rows from `signal_from`."""
    rows, vocab = logits.shape
    blocks, kind = triton.cdiv(vocab, BLOCK), SIGNALS[signal_dtype]
    partials = torch.empty(6, rows, blocks, device=logits.device)
    places = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    sampled, argmax = torch.empty(2, rows, dtype=torch.int32, device=logits.device)
    entropy, margin, top, total = torch.empty(4, rows, device=logits.device)
    scan_kernel[(blocks, rows)](
        logits, draws.temperatures, partials, places, vocab, blocks, cap, SIGNAL=kind, BLOCK=BLOCK, num_warps=8
    )
    pick_kernel[(rows,)](
        logits,
        draws.temperatures,
        draws.uniforms,
        draws.greedy.to(torch.int32),
        partials,
        places,
        sampled,
        argmax,
        entropy,
        margin,
        top,
        total,
        vocab,
        blocks,
        cap,
        TINY=TINY,
        BLOCKS=triton.next_power_of_2(blocks),
        BLOCK=BLOCK,
        num_warps=8,
    )
    kept = slice(signal_from, rows)
    tail = (draws.temperatures[kept], top[kept], total[kept], partials[3, kept])
    return Picks(sampled, argmax, entropy, margin), Signal(logits[kept], *tail, cap, kind)


def probabilities(signal: Signal) -> Tensor:
    """The signal's softmax in the dtype of its logits, whose place it takes."""
    rows, vocab = signal.logits.shape
    weights_kernel[(triton.cdiv(vocab, BLOCK), rows)](
        signal.logits,
        signal.temperatures,
        signal.top,
        signal.sum,
        signal.logits,
        vocab,
        signal.cap,
        SIGNAL=signal.kind,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return signal.logits
