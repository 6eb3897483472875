"""Soft embeddings out of the few ids that hold a row's mass, by MLX operations.

Ids more than REACH nats below a row's top are left out. A row that would lose more than LOSS of its mass, or keeps more
than WIDTH ids, takes the full product. MLX has no operation that lists the true elements of a mask, so the host does.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from dgemma_mlx.quant import Embedding

REACH = 14.0
WIDTH = 1024
LOSS = 2.0**-12


def too_wide(counts: mx.array, kept: mx.array) -> mx.array:
    """Which rows the full product must serve, given how many ids they keep [S] and what those weigh [S]."""
    return (counts > WIDTH) | (kept < 1 - LOSS)


def sparse_mixture(embedding: Embedding, signal: mx.array, dtype: mx.Dtype) -> mx.array:
    """The unscaled soft embeddings [S, H] of rounded scores [S, V]."""
    signal = signal.astype(mx.float32)
    shares = mx.softmax(signal, axis=-1)
    chosen = signal >= signal.max(axis=-1, keepdims=True) - REACH
    wide = np.array(too_wide(chosen.sum(axis=-1), (shares * chosen).sum(axis=-1)))
    rows, ids = np.nonzero(np.array(chosen) & ~wide[:, None])
    owners, tokens = mx.array(rows.astype(np.int32)), mx.array(ids.astype(np.int32))
    parts = embedding.rows(tokens).astype(mx.float32) * shares[owners, tokens][:, None]
    out = mx.zeros((len(signal), parts.shape[1])).at[owners].add(parts).astype(dtype)
    if wide.any():
        dense = mx.array(np.flatnonzero(wide).astype(np.int32))
        out[dense] = embedding.mix(shares[dense].astype(dtype)).astype(dtype)
    return out
