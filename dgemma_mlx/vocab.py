"""The vocabulary side of a pass: head, softcap, temperature, inverse-CDF sample, argmax, entropy, self-conditioning.

The vocabulary is taken a chunk at a time, small enough to stay in a cache between the head's product and the mixture of
the same embedding rows; running maxima rescale what came before. Raw logits are kept in the weight dtype for one look
back, into the block that holds the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from dgemma_mlx.quant import Embedding
from dgemma_mlx.self_conditioning import sparse_mixture

CHUNK = 4096
BLOCK = 512
_ROWS = 32
_NEVER = -1e30
TINY = 1e-37


@dataclass(frozen=True, slots=True)
class Draws:
    """Per predicted row [R]: temperature, uniform number, and whether the sample is the argmax."""

    temperatures: mx.array
    uniforms: mx.array
    greedy: mx.array


@dataclass(frozen=True, slots=True)
class Picks:
    """Per predicted row [R]: sampled and argmax ids (int32), entropy in nats and relative top-2 margin (float32)."""

    sampled: mx.array
    argmax: mx.array
    entropy: mx.array
    margin: mx.array


def softcap(logits: mx.array, cap: float) -> mx.array:
    """cap * tanh(logits / cap) in float32."""
    return mx.tanh(logits.astype(mx.float32) / cap) * cap


def margin(first: mx.array, second: mx.array) -> mx.array:
    """How far two scores lie apart, over the larger magnitude of the two."""
    return (first - second) / mx.maximum(mx.maximum(mx.abs(first), mx.abs(second)), TINY)


def head(
    embedding: Embedding, x: mx.array, cap: float, draws: Draws, signal_from: int, signal_dtype: mx.Dtype, sparse: bool
) -> tuple[Picks, mx.array]:
    """Predict from final-normed rows x [R, H]; also the unscaled soft embedding of the rows from `signal_from`.

    The signal is a softmax of its own over the processed logits rounded to `signal_dtype`; `sparse` gathers it.
    """
    scale = (cap / draws.temperatures)[:, None]
    logits = []
    scan = Scan(len(x))
    mixture = _Mixture(len(x) - signal_from, signal_dtype, x)
    for start in range(0, len(embedding), CHUNK):
        part = embedding.part(start, start + CHUNK)
        raw = part.logits(x)
        scores = _scores(raw, cap, scale)
        signal = scores[signal_from:].astype(signal_dtype).astype(mx.float32) if mixture.apart and not sparse else None
        mass, shrink = scan.add(scores)
        if not sparse:
            mixture.add(part, signal, mass[signal_from:], shrink[signal_from:])
        logits.append(raw)
        mx.eval(raw, mixture.state, scan.state)
    picks = scan.picks(logits, cap, scale, draws)
    if not sparse:
        return picks, mixture.result(scan.total[signal_from:])
    rows = [slice(start, min(start + _ROWS, len(x))) for start in range(signal_from, len(x), _ROWS)]
    soft = [sparse_mixture(embedding, _signal(logits, each, cap, scale, signal_dtype), x.dtype) for each in rows]
    return picks, mx.concatenate(soft) if soft else x[:0]


def _signal(logits: list[mx.array], rows: slice, cap: float, scale: mx.array, dtype: mx.Dtype) -> mx.array:
    raw = mx.concatenate([part[rows] for part in logits], axis=-1)
    return (mx.tanh(raw.astype(mx.float32) * (1 / cap)) * scale[rows]).astype(dtype)


class Scan:
    """Running statistics of the rows of a [R, V] matrix of scores that comes in chunks of whole blocks."""

    def __init__(self, rows: int) -> None:
        self.total = mx.zeros(rows)
        self._top = mx.full((rows,), _NEVER)
        self._weighted = mx.zeros(rows)
        self._tops: list[mx.array] = []
        self._sums: list[mx.array] = []
        self._bases: list[mx.array] = []

    @property
    def state(self) -> list[mx.array]:
        """Everything that later chunks depend on."""
        return [self.total, self._weighted, *self._tops[-1:], *self._sums[-1:]]

    def add(self, scores: mx.array) -> tuple[mx.array, mx.array]:
        """Consume `scores` [R, C]; exp(scores - running top) [R, C], and what exp of the old top shrank by [R]."""
        tops = scores.reshape(len(scores), -1, BLOCK).max(axis=-1)
        top = mx.maximum(self._top, tops.max(axis=-1))
        shrink, fall = mx.exp(self._top - top), self._top - top
        scores = scores - top[:, None]
        mass = mx.exp(scores)
        sums = mass.reshape(len(scores), -1, BLOCK).sum(axis=-1)
        # Sum of mass * (score - top): the old part moves with the top.
        self._weighted = shrink * (self._weighted + fall * self.total) + (mass * scores).sum(axis=-1)
        self.total = self.total * shrink + sums.sum(axis=-1)
        self._top = top
        self._tops.append(tops)
        self._sums.append(sums)
        self._bases.append(mx.broadcast_to(top[:, None], sums.shape))
        return mass, shrink

    def picks(self, logits: list[mx.array], cap: float, scale: mx.array, draws: Draws) -> Picks:
        """Entropy, argmax, margin and sample, looking back into `logits`, [R, C] a chunk."""
        entropy = mx.log(self.total) - self._weighted / self.total
        tops = mx.concatenate(self._tops, axis=-1)
        best = tops.argmax(axis=-1)
        inside = _block(logits, best, cap, scale)
        argmax = best * BLOCK + inside.argmax(axis=-1)
        # The largest score stands in both parts.
        second, _, first = mx.split(mx.sort(mx.topk(mx.concatenate([tops, inside], axis=-1), 3)), 3, axis=-1)
        apart = margin(first[:, 0], second[:, 0])
        sums = mx.concatenate(self._sums, axis=-1)
        sums = sums * mx.exp(mx.concatenate(self._bases, axis=-1) - self._top[:, None])
        sampled = self._sample(sums, logits, cap, scale, draws.uniforms)
        return Picks(mx.where(draws.greedy, argmax, sampled).astype(mx.int32), argmax.astype(mx.int32), entropy, apart)

    def _sample(
        self, sums: mx.array, logits: list[mx.array], cap: float, scale: mx.array, uniforms: mx.array
    ) -> mx.array:
        """The smallest id whose cumulated mass exceeds uniform * total, clamped to ids with mass."""
        running = sums.cumsum(axis=-1)
        target = (uniforms * running[:, -1])[:, None]
        filled = running < running[:, -1:]
        block = mx.minimum((running <= target).sum(axis=-1), filled.sum(axis=-1))
        inside = mx.exp(_block(logits, block, cap, scale) - self._top[:, None])
        before = mx.take_along_axis(mx.pad(running, [(0, 0), (1, 0)]), block[:, None], axis=1)
        place = (inside.cumsum(axis=-1) + before <= target).sum(axis=-1)
        last = (mx.arange(BLOCK) * (inside > 0)).max(axis=-1)
        return block * BLOCK + mx.minimum(place, last)


class _Mixture:
    """A running sum of embedding rows weighted by exp(signal), float32 [S, H].

    Where the signal is not rounded (`apart` is false) the mass of the scan serves as it is.
    """

    def __init__(self, rows: int, signal_dtype: mx.Dtype, like: mx.array) -> None:
        self.apart = signal_dtype != mx.float32
        self._sum = mx.zeros((rows, like.shape[1]))
        self._scan = Scan(rows)
        self._dtype = like.dtype

    @property
    def state(self) -> list[mx.array]:
        """Everything that later chunks depend on."""
        return [self._sum, *self._scan.state]

    def add(self, part: Embedding, signal: mx.array | None, mass: mx.array, shrink: mx.array) -> None:
        if not len(self._sum):
            return
        if signal is not None:
            mass, shrink = self._scan.add(signal)
        self._sum = self._sum * shrink[:, None] + part.mix(mass[:, : len(part)].astype(self._dtype))

    def result(self, total: mx.array) -> mx.array:
        return (self._sum / (self._scan.total if self.apart else total)[:, None]).astype(self._dtype)


def _scores(raw: mx.array, cap: float, scale: mx.array) -> mx.array:
    """Softcapped logits over temperature, padded to whole blocks with what has no mass."""
    scores = mx.tanh(raw.astype(mx.float32) * (1 / cap)) * scale
    missing = -raw.shape[1] % BLOCK
    return mx.pad(scores, [(0, 0), (0, missing)], constant_values=_NEVER) if missing else scores


def _block(logits: list[mx.array], block: mx.array, cap: float, scale: mx.array) -> mx.array:
    """The scores of one block a row, [R, BLOCK]."""
    ids = block.astype(mx.int32)[:, None] * BLOCK + mx.arange(BLOCK)
    raw = mx.zeros(ids.shape, logits[0].dtype)
    for chunk, part in enumerate(logits):
        local = ids - chunk * CHUNK
        found = mx.take_along_axis(part, mx.clip(local, 0, part.shape[1] - 1), axis=1)
        raw = mx.where((local >= 0) & (local < CHUNK), found, raw)
    vocab = sum(part.shape[1] for part in logits)
    return mx.where(ids < vocab, _scores(raw, cap, scale), _NEVER)
