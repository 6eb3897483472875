"""Attention over the cache: causal for encoded rows, all-to-all for a canvas; each sequence over its own keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgemma.config import LayerShape, Rope
from dgemma_cuda.inputs import Ragged, context
from dgemma_cuda.quant import Linear

if TYPE_CHECKING:
    from dgemma_cuda.kernels import Kernels


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
    q_norm: Tensor
    k_norm: Tensor


def frequencies(rope: Rope, head_dim: int) -> list[float]:
    """Angle per position of each rotated pair (j, j + head_dim / 2), [head_dim / 2]; 0 leaves a pair unrotated."""
    half = head_dim // 2
    rotated = int(rope.partial_rotary_factor * half)
    return [rope.theta ** (-2 * j / head_dim) / rope.factor if j < rotated else 0.0 for j in range(half)]


def rotations(shape: LayerShape, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, head_dim / 2] at `positions` [N]: angles in float32, then `dtype`."""
    turns = positions[:, None].float() * _angles(shape.rope, shape.head_dim, positions.device)
    return turns.cos().to(dtype)[:, None], turns.sin().to(dtype)[:, None]


@cache
def _angles(rope: Rope, head_dim: int, device: torch.device) -> Tensor:
    """`frequencies` on the device, copied there once: a recorded pass must copy nothing from the host."""
    return torch.tensor(frequencies(rope, head_dim), device=device)


def attention(
    layer: Attention, x: Tensor, rotation: tuple[Tensor, Tensor], sequences: Ragged, kernels: Kernels
) -> Tensor:
    """Normed rows x [N, H] -> [N, H]; writes keys and values of every row behind their sequence's cache."""
    queries, keys, values = _project(layer, x, rotation, kernels)
    kernels.store(keys, values, sequences)
    return layer.o_proj(kernels.attend(queries, sequences).flatten(1))


def store(keys: Tensor, values: Tensor, sequences: Ragged) -> None:
    """Put keys and values [kv heads, N, D] into the caches by torch operations."""
    for segment in sequences.segments:
        span = segment.span
        context(segment).write(sequences.layer, segment.position, keys[:, span], values[:, span])


def one_by_one(attend: Callable[..., Tensor]) -> Callable[[Tensor, Ragged], Tensor]:
    """Attention of all sequences, queries [heads, N, D] -> [N, heads, D], from that of one."""

    def attend_all(queries: Tensor, sequences: Ragged) -> Tensor:
        heads, rows, width = queries.shape
        out = queries.new_empty(rows, heads, width)
        for segment in sequences.segments:
            held, index, position = context(segment), sequences.layer, segment.position
            slots = held.slots(index, (held.first_visible(index, position), segment.end, position))
            mine = queries[:, segment.span]
            out[segment.span] = attend(mine, *held.buffers(index), slots, not segment.canvas, sequences.window)
        return out

    return attend_all


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, span: tuple[int, int, int], causal: bool, window: int | None
) -> Tensor:
    """Attention by torch operations; see `kernels.naive`."""
    first, end, place = span
    mask = None
    if causal and queries.shape[1] > 1:
        slots = torch.arange(first, end, device=keys.device)
        rows = torch.arange(place, place + queries.shape[1], device=keys.device)[:, None]
        mask = slots <= rows
        mask = mask if window is None else mask & (slots > rows - window)
    seen = (keys[None, :, first:end], values[None, :, first:end])
    out = torch.nn.functional.scaled_dot_product_attention(
        queries[None], *seen, attn_mask=mask, scale=1.0, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def _project(
    layer: Attention, x: Tensor, rotation: tuple[Tensor, Tensor], kernels: Kernels
) -> tuple[Tensor, Tensor, Tensor]:
    shape = layer.shape
    queries = layer.q_proj(x).view(-1, layer.heads, shape.head_dim)
    raw = layer.k_proj(x).view(-1, shape.kv_heads, shape.head_dim)
    raw_values = raw if layer.v_proj is None else layer.v_proj(x).view_as(raw)
    queries = kernels.norm_rotate(queries, layer.q_norm, rotation, layer.eps)
    keys = kernels.norm_rotate(raw, layer.k_norm, rotation, layer.eps)
    return queries, keys, kernels.rms_norm(raw_values, None, layer.eps).transpose(0, 1)
