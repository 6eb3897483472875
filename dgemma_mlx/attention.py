"""Attention over the cache: causal for encoded rows, all-to-all for a canvas; each sequence over its own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from dgemma.batch import Segment
from dgemma.config import LayerShape, Rope
from dgemma_mlx.cache import Context
from dgemma_mlx.quant import Linear

if TYPE_CHECKING:
    from dgemma_mlx.kernels import Kernels


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


def project(
    layer: Attention, x: mx.array, rotation: tuple[mx.array, mx.array], kernels: Kernels
) -> tuple[mx.array, mx.array, mx.array]:
    """Normed rows x [N, H] -> queries, keys and values [heads, N, D], normed and rotated."""
    shape = layer.shape
    queries = layer.q_proj(x).reshape(-1, layer.heads, shape.head_dim)
    raw = layer.k_proj(x).reshape(-1, shape.kv_heads, shape.head_dim)
    raw_values = raw if layer.v_proj is None else layer.v_proj(x).reshape(raw.shape)
    queries = kernels.norm_rotate(queries, layer.q_norm, rotation, layer.eps)
    keys = kernels.norm_rotate(raw, layer.k_norm, rotation, layer.eps)
    return queries, keys, kernels.rms_norm(raw_values, None, layer.eps).swapaxes(0, 1)


def attention(
    index: int,
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    segments: Sequence[Segment],
    kernels: Kernels,
) -> mx.array:
    """Projected rows -> [N, heads * D]; writes keys and values of every row behind their sequence's cache."""
    out = []
    for segment in segments:
        context = segment.context
        assert isinstance(context, Context)
        context.write(index, segment.position, keys[:, segment.span], values[:, segment.span])
        seen = (context.first_visible(index, segment.position), segment.end, segment.position)
        attended = kernels.attend(
            queries[:, segment.span],
            *context.buffers(index),
            context.slots(index, seen),
            not segment.canvas,
            context.window(index),
        )
        out.append(attended)
    return mx.concatenate(out).flatten(1)


def attend(
    queries: mx.array, keys: mx.array, values: mx.array, span: tuple[int, int, int], causal: bool, window: int | None
) -> mx.array:
    """Attention by MLX operations; see `kernels.naive`."""
    first, end, place = span
    mask = None
    if causal and queries.shape[1] > 1:
        slots = mx.arange(first, end)
        rows = mx.arange(place, place + queries.shape[1])[:, None]
        mask = slots <= rows
        mask = mask if window is None else mask & (slots > rows - window)
    seen = (keys[None, :, first:end], values[None, :, first:end])
    return mx.fast.scaled_dot_product_attention(queries[None], *seen, scale=1.0, mask=mask)[0].swapaxes(0, 1)
