"""Grouped-query attention whose queries of one group share a single matrix product."""

import torch
from fused import head, rms
from shape import Shape
from torch import Tensor, nn
from torch.nn import functional as F

Cache = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """One attention block; full layers take their values from the raw keys."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.full, self.head = shape.is_full(layer), shape.head(layer)
        self.heads, self.kv_heads = shape.heads, shape.kv_heads(layer)
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        self.q_proj = nn.Linear(shape.hidden, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden, keys, bias=False)
        if not self.full:
            self.v_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden, bias=False)
        self.q_norm = nn.Parameter(torch.full((self.head,), self.head**-0.25))
        self.k_norm = nn.Parameter(torch.full((self.head,), self.head**-0.25))

    def project(self, h: Tensor, norm: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, time, heads, head] of normalised h; `norm` is folded in."""
        weights = [self.q_proj.weight, self.k_proj.weight]
        weights += [] if self.full else [self.v_proj.weight]
        parts = F.linear(h, torch.cat(weights) * norm).split([len(w) for w in weights], dim=-1)
        q, k, *v = (part.unflatten(-1, (-1, self.head)) for part in parts)
        return head(q, self.q_norm, cos, sin), head(k, self.k_norm, cos, sin), rms(v[0] if v else k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attention of q over k and v; the additive mask is [batch or 1, 1, time or 1, keys]."""
        batch, time = q.shape[:2]
        groups = self.heads // self.kv_heads
        q = q.reshape(batch, time, self.kv_heads, groups * self.head).transpose(1, 2)
        q = q.reshape(batch, self.kv_heads, time * groups, self.head)
        if mask.shape[2] > 1:
            mask = mask.repeat_interleave(groups, dim=2)
        scores = q @ k.permute(0, 2, 3, 1) + mask
        out = scores.softmax(-1) @ v.transpose(1, 2)
        out = out.reshape(batch, self.kv_heads, time, groups * self.head).transpose(1, 2)
        return self.o_proj(out.reshape(batch, time, -1))
