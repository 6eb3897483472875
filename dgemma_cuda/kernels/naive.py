"""What every kernel must compute, in float32 and without regard for speed: specification, fallback and test oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from dgemma_cuda.quant import Embedding, Experts
from dgemma_cuda.vocab import Draws, Picks, margin, softcap


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in the dtype of x."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight).to(x.dtype)


def add_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual + rms_norm(x)."""
    return residual + rms_norm(x, weight, eps)


def norm_rotate(x: Tensor, weight: Tensor, rotation: tuple[Tensor, Tensor], eps: float) -> Tensor:
    """Norm each head of x [N, heads, D], rotate its half-split pairs; [heads, N, D]."""
    first, second = rms_norm(x, weight, eps).chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).transpose(0, 1)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, span: tuple[int, int, int], causal: bool, window: int | None
) -> Tensor:
    """queries [heads, N, D] over slots span[0]..span[1] of keys and values [kv heads, S, D]; [N, heads, D].

    Scale 1. Causal rows stand at slots span[2].. and see themselves and what is before, `window` slots in all.
    """
    first, end, place = span
    group = len(queries) // len(keys)
    k = keys[:, first:end].float().repeat_interleave(group, dim=0)
    v = values[:, first:end].float().repeat_interleave(group, dim=0)
    scores = queries.float() @ k.transpose(1, 2)
    if causal:
        slots = torch.arange(first, end, device=keys.device)
        rows = torch.arange(place, place + queries.shape[1], device=keys.device)[:, None]
        seen = (slots <= rows) & (slots > rows - (window or end + 1))
        scores = scores.masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1).to(queries.dtype)


def experts(x: Tensor, ids: Tensor, routing: Tensor, gate_up: Experts, down: Experts) -> Tensor:
    """Of x [N, H], the sum over chosen ids [N, k] of routing * expert(x), one expert after the other."""
    out = torch.zeros(x.shape, device=x.device)
    for expert in sorted(set(ids.flatten().tolist())):
        rows, slots = (ids == expert).nonzero(as_tuple=True)
        ends = torch.full((int(ids.max()) + 1,), len(rows), device=x.device, dtype=torch.int32)
        ends[:expert] = 0
        ends = torch.nn.functional.pad(ends, (0, gate_up.count - len(ends)), value=len(rows))
        gate, up = gate_up(x[rows], ends).float().chunk(2, dim=-1)
        hidden = (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(x.dtype)
        out.index_add_(0, rows, routing[rows, slots, None] * down(hidden, ends).float())
    return out.to(x.dtype)


def head(
    embedding: Embedding, x: Tensor, cap: float, draws: Draws, signal_from: int, signal_dtype: torch.dtype, sparse: bool
) -> tuple[Picks, Tensor]:
    """Predictions from all logits at once, and the soft embedding by a full softmax and product."""
    del sparse
    scores = softcap(embedding.logits(x), cap) / draws.temperatures[:, None]
    probabilities = scores.double().softmax(-1)
    entropy = -(probabilities * probabilities.clamp(min=1e-300).log()).sum(-1)
    argmax = scores.argmax(-1)
    cumulated = probabilities.cumsum(-1)
    place = (cumulated <= draws.uniforms[:, None] * cumulated[:, -1:]).sum(-1)
    last = scores.shape[1] - 1 - (probabilities > 0).flip(-1).to(torch.uint8).argmax(-1)
    sampled = torch.where(draws.greedy, argmax, place.minimum(last))
    signal = scores[signal_from:].to(signal_dtype).float().softmax(-1)
    picks = Picks(sampled.int(), argmax.int(), entropy.float(), margin(*scores.topk(2).values.unbind(-1)))
    return picks, embedding.mix(signal.to(x.dtype))
