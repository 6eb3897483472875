"""The vocabulary side of a pass: softcap, temperature, inverse-CDF sample, argmax, entropy, self-conditioning weights.

Rows are taken a few at a time, so that no float32 copy of all logits exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

_ROWS = 32
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Draws:
    """Per predicted row [R]: temperature, uniform number, and whether the sample is the argmax."""

    temperatures: mx.array
    uniforms: mx.array
    greedy: mx.array


@dataclass(frozen=True, slots=True)
class Picks:
    """Per predicted row [R]: sampled and argmax ids (int32), entropy in nats (float32)."""

    sampled: mx.array
    argmax: mx.array
    entropy: mx.array


def softcap(logits: mx.array, cap: float) -> mx.array:
    """cap * tanh(logits / cap) in float32."""
    return mx.tanh(logits.astype(mx.float32) / cap) * cap


def predict(
    logits: mx.array, cap: float, draws: Draws, signal_from: int, signal_dtype: mx.Dtype
) -> tuple[Picks, mx.array]:
    """Predict every row of raw `logits` [R, V].

    Also the self-conditioning probabilities of the rows from `signal_from`, in the dtype of `logits`: a softmax of its
    own over the processed logits rounded to `signal_dtype`.
    """
    picks, signals = [], []
    for start in range(0, len(logits), _ROWS):
        rows = slice(start, min(start + _ROWS, len(logits)))
        scores = softcap(logits[rows], cap) / draws.temperatures[rows, None]
        if (kept := max(start, signal_from)) < rows.stop:
            signal = scores[kept - start :].astype(signal_dtype).astype(mx.float32)
            signals.append(mx.softmax(signal, axis=-1).astype(logits.dtype))
        picks.append(_pick(scores, draws.uniforms[rows], draws.greedy[rows]))
    joined = Picks(*(mx.concatenate(list(parts)) for parts in zip(*picks, strict=True)))
    return joined, mx.concatenate(signals) if signals else logits[:0]


def _pick(scores: mx.array, uniforms: mx.array, greedy: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    argmax = mx.argmax(scores, axis=-1)
    scores = scores - scores.max(axis=-1, keepdims=True)
    mass = mx.exp(scores)
    weighted = (mass * scores).sum(axis=-1)
    mass = mx.pad(mass, [(0, 0), (0, -scores.shape[1] % _BLOCK)])
    sums = mass.reshape(len(scores), -1, _BLOCK).sum(axis=-1).cumsum(axis=-1)
    total = sums[:, -1]
    sampled = mx.where(greedy, argmax, inverse_cdf(mass, sums, uniforms))
    return sampled.astype(mx.int32), argmax.astype(mx.int32), mx.log(total) - weighted / total


def inverse_cdf(mass: mx.array, sums: mx.array, uniforms: mx.array) -> mx.array:
    """The smallest id whose cumulated `mass` exceeds uniform * total, clamped to ids with mass, [r].

    `mass` [r, blocks * _BLOCK] is unnormalised, `sums` [r, blocks] its running block sums.
    """
    target = (uniforms * sums[:, -1])[:, None]
    filled = sums < sums[:, -1:]
    block = mx.minimum((sums <= target).sum(axis=-1), filled.sum(axis=-1))
    inside = mx.take_along_axis(mass.reshape(len(mass), -1, _BLOCK), block[:, None, None], axis=1)[:, 0]
    before = mx.take_along_axis(mx.pad(sums, [(0, 0), (1, 0)]), block[:, None], axis=1)
    place = (inside.cumsum(axis=-1) + before <= target).sum(axis=-1)
    last = (mx.arange(_BLOCK) * (inside > 0)).max(axis=-1)
    return block * _BLOCK + mx.minimum(place, last)
