"""The vocabulary side of a pass: head, softcap, temperature, inverse-CDF sample, argmax, entropy, self-conditioning.

The vocabulary is taken a chunk at a time, small enough to stay in a cache between the head's product and the mixture of
the same embedding rows; running maxima rescale what came before. Raw logits are kept in the weight dtype for one look
back, into the block that holds the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgemma_cuda.quant import Embedding
from dgemma_cuda.self_conditioning import sparse_mixture

CHUNK = 4096
BLOCK = 512
_ROWS = 32
_NEVER = -1e30
TINY = 1e-37


@dataclass(frozen=True, slots=True)
class Draws:
    """Per predicted row [R]: temperature, uniform number, and whether the sample is the argmax."""

    temperatures: Tensor
    uniforms: Tensor
    greedy: Tensor


@dataclass(frozen=True, slots=True)
class Picks:
    """Per predicted row [R]: sampled and argmax ids (int32), entropy in nats and relative top-2 margin (float32)."""

    sampled: Tensor
    argmax: Tensor
    entropy: Tensor
    margin: Tensor


def softcap(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap) in float32, always a fresh tensor."""
    return (logits.float() / cap).tanh_().mul_(cap)


def margin(first: Tensor, second: Tensor) -> Tensor:
    """How far two scores lie apart, over the larger magnitude of the two."""
    return (first - second) / torch.maximum(first.abs(), second.abs()).clamp(min=TINY)


def head(
    embedding: Embedding, x: Tensor, cap: float, draws: Draws, signal_from: int, signal_dtype: torch.dtype, sparse: bool
) -> tuple[Picks, Tensor]:
    """Predict from final-normed rows x [R, H]; also the unscaled soft embedding of the rows from `signal_from`.

    The signal is a softmax of its own over the processed logits rounded to `signal_dtype`; `sparse` gathers it.
    """
    scale = (cap / draws.temperatures)[:, None]
    logits = x.new_empty(len(x), len(embedding))
    scan = Scan(len(x), x.device)
    mixture = _Mixture(len(x) - signal_from, signal_dtype, x)
    for start in range(0, len(embedding), CHUNK):
        part = embedding.part(start, start + CHUNK)
        logits[:, start : start + CHUNK] = raw = part.logits(x)
        scores = _scores(raw, cap, scale)
        signal = scores[signal_from:].to(signal_dtype).float() if mixture.apart and not sparse else None
        mass, shrink = scan.add(scores)
        if not sparse:
            mixture.add(part, signal, mass[signal_from:], shrink[signal_from:])
    picks = scan.picks(logits, cap, scale, draws)
    if not sparse:
        return picks, mixture.result(scan.total[signal_from:])
    rows = [slice(start, min(start + _ROWS, len(x))) for start in range(signal_from, len(x), _ROWS)]
    soft = [sparse_mixture(embedding, _signal(logits[each], cap, scale[each], signal_dtype), x.dtype) for each in rows]
    return picks, torch.cat(soft) if soft else x[:0]


def _signal(raw: Tensor, cap: float, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return _scores(raw, cap, scale)[:, : raw.shape[1]].to(dtype).float()


class Scan:
    """Running statistics of the rows of a [R, V] matrix of scores that comes in chunks of whole blocks."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.total = torch.zeros(rows, device=device)
        self._top = torch.full((rows,), _NEVER, device=device)
        self._weighted = torch.zeros(rows, device=device)
        self._tops: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._bases: list[Tensor] = []

    def add(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Consume `scores` [R, C]; exp(scores - running top) [R, C], and what exp of the old top shrank by [R]."""
        blocks = scores.view(len(scores), -1, BLOCK)
        tops = blocks.amax(-1)
        top = torch.maximum(self._top, tops.amax(-1))
        shrink, fall = torch.exp(self._top - top), self._top - top
        mass = torch.exp(scores.sub_(top[:, None]))
        sums = mass.view_as(blocks).sum(-1)
        # Sum of mass * (score - top): the old part moves with the top.
        self._weighted = shrink * (self._weighted + fall * self.total) + torch.linalg.vecdot(mass, scores)
        self.total = self.total * shrink + sums.sum(-1)
        self._top = top
        self._tops.append(tops)
        self._sums.append(sums)
        self._bases.append(top[:, None].expand_as(sums))
        return mass, shrink

    def picks(self, logits: Tensor, cap: float, scale: Tensor, draws: Draws) -> Picks:
        """Entropy, argmax, margin and sample, looking back into `logits` [R, V]."""
        entropy = self.total.log() - self._weighted / self.total
        tops = torch.cat(self._tops, -1)
        best = tops.argmax(-1)
        inside = _block(logits, best, cap, scale)
        argmax = best * BLOCK + inside.argmax(-1)
        # The largest score stands in both parts.
        first, _, second = torch.cat([tops, inside], -1).topk(3).values.unbind(-1)
        apart = margin(first, second)
        sums = torch.cat(self._sums, -1) * torch.exp(torch.cat(self._bases, -1) - self._top[:, None])
        sampled = self._sample(sums, logits, cap, scale, draws.uniforms)
        return Picks(torch.where(draws.greedy, argmax, sampled).int(), argmax.int(), entropy, apart)

    def _sample(self, sums: Tensor, logits: Tensor, cap: float, scale: Tensor, uniforms: Tensor) -> Tensor:
        """The smallest id whose cumulated mass exceeds uniform * total, clamped to ids with mass."""
        running = sums.cumsum(-1)
        target = (uniforms * running[:, -1])[:, None]
        filled = running < running[:, -1:]
        block = (running <= target).sum(-1).minimum(filled.sum(-1))
        inside = torch.exp(_block(logits, block, cap, scale) - self._top[:, None])
        before = running.gather(1, (block[:, None] - 1).clamp(min=0)).where(block[:, None] > 0, 0.0)
        place = (inside.cumsum(-1) + before <= target).sum(-1)
        last = BLOCK - 1 - (inside > 0).flip(-1).to(torch.uint8).argmax(-1)
        return block * BLOCK + place.minimum(last)


class _Mixture:
    """A running sum of embedding rows weighted by exp(signal), float32 [S, H].

    Where the signal is not rounded (`apart` is false) the mass of the scan serves as it is.
    """

    def __init__(self, rows: int, signal_dtype: torch.dtype, like: Tensor) -> None:
        self.apart = signal_dtype != torch.float32
        self._sum = torch.zeros(rows, like.shape[1], device=like.device)
        self._scan = Scan(rows, like.device)
        self._dtype = like.dtype

    def add(self, part: Embedding, signal: Tensor | None, mass: Tensor, shrink: Tensor) -> None:
        if not len(self._sum):
            return
        if signal is not None:
            mass, shrink = self._scan.add(signal)
        product = part.mix(mass[:, : len(part)].to(self._dtype))
        self._sum.mul_(shrink[:, None]).add_(product)

    def result(self, total: Tensor) -> Tensor:
        return (self._sum / (self._scan.total if self.apart else total)[:, None]).to(self._dtype)


def _scores(raw: Tensor, cap: float, scale: Tensor) -> Tensor:
    """Softcapped logits over temperature, padded to whole blocks with what has no mass; always a fresh tensor."""
    scores = raw.float().mul(1 / cap).tanh_().mul_(scale)
    return torch.nn.functional.pad(scores, (0, -raw.shape[1] % BLOCK), value=_NEVER) if raw.shape[1] % BLOCK else scores


def _block(logits: Tensor, block: Tensor, cap: float, scale: Tensor) -> Tensor:
    """The scores of one block a row, [R, BLOCK]."""
    ids = block[:, None] * BLOCK + torch.arange(BLOCK, device=block.device)
    raw = logits.gather(1, ids.clamp(max=logits.shape[1] - 1))
    return _scores(raw, cap, scale).masked_fill_(ids >= logits.shape[1], _NEVER)
