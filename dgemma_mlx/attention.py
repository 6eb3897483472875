"""Attention over the cache: causal for encoded rows, all-to-all for a canvas; each sequence over its own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from dgemma.batch import Segment
from dgemma.config import LayerShape, Rope
from dgemma_mlx.cache import Context
from dgemma_mlx.norm import rms_norm
from dgemma_mlx.quant import Linear


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections of one layer; `v_proj` is None on full layers, whose values are the raw keys."""

    shape: LayerShape
    heads: int
    eps: float
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear | None
    o_proj: Linear
    q_norm: mx.array
    k_norm: mx.array


def frequencies(rope: Rope, head_dim: int) -> list[float]:
    """Angle per position of each rotated pair (j, j + head_dim / 2), [head_dim / 2]; 0 leaves a pair unrotated."""
    half = head_dim // 2
    rotated = int(rope.partial_rotary_factor * half)
    return [rope.theta ** (-2 * j / head_dim) / rope.factor if j < rotated else 0.0 for j in range(half)]


def rotations(shape: LayerShape, positions: mx.array, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Cosines and sines [N, 1, head_dim / 2] at `positions` [N]: angles in float32, then `dtype`."""
    angles = mx.array(frequencies(shape.rope, shape.head_dim), mx.float32)
    turns = positions[:, None].astype(mx.float32) * angles
    return mx.cos(turns).astype(dtype)[:, None], mx.sin(turns).astype(dtype)[:, None]


def rotate(x: mx.array, rotation: tuple[mx.array, mx.array]) -> mx.array:
    """Rotate x [N, heads, head_dim] in half-split pairs."""
    cos, sin = rotation
    first, second = mx.split(x, 2, axis=-1)
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def causal_mask(segment: Segment, first: int, window: int | None) -> mx.array | None:
    """Which keys at first..end each row sees, [T, S]; None where all are seen. A sliding row sees `window` tokens."""
    if segment.canvas or segment.rows == 1:
        return None
    keys = mx.arange(first, segment.end)
    queries = mx.arange(segment.position, segment.end)[:, None]
    mask = keys <= queries
    return mask if window is None else mask & (keys > queries - window)


def attention(
    layer: Attention,
    index: int,
    x: mx.array,
    rotation: tuple[mx.array, mx.array],
    segments: Sequence[Segment],
    masks: Sequence[mx.array | None],
) -> mx.array:
    """Normed rows x [N, H] -> [N, H]; writes keys and values of every row behind their sequence's cache."""
    queries, keys, values = _project(layer, x, rotation)
    out = []
    for segment, mask in zip(segments, masks, strict=True):
        context = segment.context
        assert isinstance(context, Context)
        context.write(index, segment.position, keys[:, segment.span], values[:, segment.span])
        seen = context.view(index, context.first_visible(index, segment.position), segment.end)
        out.append(_attend(queries[:, segment.span], *seen, mask))
    return layer.o_proj(mx.concatenate(out, axis=1).swapaxes(0, 1).flatten(1))


def _project(layer: Attention, x: mx.array, rotation: tuple[mx.array, mx.array]) -> tuple[mx.array, mx.array, mx.array]:
    shape = layer.shape
    queries = layer.q_proj(x).reshape(-1, layer.heads, shape.head_dim)
    raw = layer.k_proj(x).reshape(-1, shape.kv_heads, shape.head_dim)
    raw_values = raw if layer.v_proj is None else layer.v_proj(x).reshape(raw.shape)
    queries = rotate(rms_norm(queries, layer.q_norm, layer.eps), rotation)
    keys = rotate(rms_norm(raw, layer.k_norm, layer.eps), rotation)
    values = rms_norm(raw_values, None, layer.eps)
    return queries.swapaxes(0, 1), keys.swapaxes(0, 1), values.swapaxes(0, 1)


def _attend(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
    return mx.fast.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=1.0, mask=mask)[0]
