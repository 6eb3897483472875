"""What every kernel must compute, in float32 and without regard for speed: specification, fallback and test oracle."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from dgemma_mlx.quant import Embedding, Experts
from dgemma_mlx.vocab import Draws, Picks, margin, softcap


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in the dtype of x."""
    wide = x.astype(mx.float32)
    normed = wide * mx.rsqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)
    return (normed if weight is None else normed * weight).astype(x.dtype)


def add_norm(residual: mx.array, x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """residual + rms_norm(x)."""
    return residual + rms_norm(x, weight, eps)


def norm_rotate(x: mx.array, weight: mx.array, rotation: tuple[mx.array, mx.array], eps: float) -> mx.array:
    """Norm each head of x [N, heads, D], rotate its half-split pairs; [heads, N, D]."""
    first, second = mx.split(rms_norm(x, weight, eps), 2, axis=-1)
    cos, sin = rotation
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).swapaxes(0, 1)


def attend(
    queries: mx.array, keys: mx.array, values: mx.array, span: tuple[int, int, int], causal: bool, window: int | None
) -> mx.array:
    """queries [heads, N, D] over slots span[0]..span[1] of keys and values [kv heads, S, D]; [N, heads, D].

    Scale 1. Causal rows stand at slots span[2].. and see themselves and what is before, `window` slots in all.
    """
    first, end, place = span
    group = len(queries) // len(keys)
    k = mx.repeat(keys[:, first:end].astype(mx.float32), group, axis=0)
    v = mx.repeat(values[:, first:end].astype(mx.float32), group, axis=0)
    scores = queries.astype(mx.float32) @ k.swapaxes(1, 2)
    if causal:
        slots = mx.arange(first, end)
        rows = mx.arange(place, place + queries.shape[1])[:, None]
        seen = (slots <= rows) & (slots > rows - (window or end + 1))
        scores = mx.where(seen, scores, -mx.inf)
    return (mx.softmax(scores, axis=-1) @ v).swapaxes(0, 1).astype(queries.dtype)


def experts(x: mx.array, ids: mx.array, routing: mx.array, gate_up: Experts, down: Experts) -> mx.array:
    """Of x [N, H], the sum over chosen ids [N, k] of routing * expert(x), one expert after the other."""
    out = mx.zeros(x.shape)
    host = np.array(ids)
    for expert in np.unique(host).tolist():
        rows, slots = (mx.array(each.astype(np.int32)) for each in np.nonzero(host == expert))
        owner = mx.full((len(rows),), expert, mx.uint32)
        gate, up = mx.split(gate_up(x[rows], owner).astype(mx.float32), 2, axis=-1)
        gelu = 0.5 * gate * (1 + mx.tanh(0.7978845608028654 * (gate + 0.044715 * gate**3)))
        part = down((gelu * up).astype(x.dtype), owner).astype(mx.float32)
        out = out.at[rows].add(routing[rows, slots][:, None] * part)
    return out.astype(x.dtype)


def head(
    embedding: Embedding, x: mx.array, cap: float, draws: Draws, signal_from: int, signal_dtype: mx.Dtype, sparse: bool
) -> tuple[Picks, mx.array]:
    """Predictions from all logits at once, and the soft embedding by a full softmax and product."""
    del sparse
    scores = softcap(embedding.logits(x), cap) / draws.temperatures[:, None]
    probabilities = mx.softmax(scores, axis=-1)
    entropy = -(probabilities * mx.log(mx.maximum(probabilities, 1e-37))).sum(axis=-1)
    argmax = scores.argmax(axis=-1)
    cumulated = probabilities.cumsum(axis=-1)
    place = (cumulated <= draws.uniforms[:, None] * cumulated[:, -1:]).sum(axis=-1)
    last = (mx.arange(scores.shape[1]) * (probabilities > 0)).max(axis=-1)
    sampled = mx.where(draws.greedy, argmax, mx.minimum(place, last))
    signal = mx.softmax(scores[signal_from:].astype(signal_dtype).astype(mx.float32), axis=-1)
    second, first = mx.split(mx.sort(mx.topk(scores, 2)), 2, axis=-1)
    picks = Picks(sampled.astype(mx.int32), argmax.astype(mx.int32), entropy, margin(first[:, 0], second[:, 0]))
    return picks, embedding.mix(signal.astype(x.dtype))
