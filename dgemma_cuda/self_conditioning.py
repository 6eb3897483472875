"""Soft embeddings out of the few ids that hold a row's mass, by torch operations.

Ids more than REACH nats below a row's top are left out. A row that would lose more than LOSS of its mass, or keeps more
than WIDTH ids, takes the full product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dgemma_cuda.quant import Embedding

REACH = 14.0
WIDTH = 1024
LOSS = 2.0**-12


@dataclass(frozen=True, slots=True)
class Soft:
    """Unscaled soft embeddings [S, H]; where the device marks rows as `wide` [S], `full` of them must replace them."""

    mixture: Tensor
    wide: Tensor
    full: Callable[[Tensor], Tensor]

    def finished(self) -> Tensor:
        """The soft embeddings after one look at the device."""
        rows = self.wide.nonzero()[:, 0]
        if len(rows):
            self.mixture[rows] = self.full(rows)
        return self.mixture


def too_wide(counts: Tensor, kept: Tensor) -> Tensor:
    """Which rows the full product must serve, given how many ids they keep [S] and what those weigh [S]."""
    return (counts > WIDTH) | (kept < 1 - LOSS)


def sparse_mixture(embedding: Embedding, signal: Tensor, dtype: torch.dtype) -> Tensor:
    """The unscaled soft embeddings [S, H] of rounded scores [S, V]."""
    shares = signal.float().softmax(-1)
    chosen = signal >= signal.amax(-1, keepdim=True) - REACH
    wide = too_wide(chosen.sum(-1), (shares * chosen).sum(-1))
    rows, ids = (chosen & ~wide[:, None]).nonzero(as_tuple=True)
    parts = embedding.rows(ids).float() * shares[rows, ids, None]
    out = torch.zeros(len(signal), parts.shape[1], device=signal.device).index_add_(0, rows, parts).to(dtype)
    if wide.any():
        out[wide] = embedding.mix(shares[wide].to(dtype)).to(dtype)
    return out
