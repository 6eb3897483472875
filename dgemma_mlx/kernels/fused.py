"""The Metal kernels behind the signatures of the naive twins; MLX operations for what no kernel reads."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from dgemma_mlx.kernels import self_conditioning, vocab
from dgemma_mlx.quant import Embedding
from dgemma_mlx.self_conditioning import too_wide
from dgemma_mlx.vocab import Draws, Picks

PARTS = ("vocab", "self_conditioning")


def head(
    embedding: Embedding, x: mx.array, cap: float, draws: Draws, signal_from: int, signal_dtype: mx.Dtype, sparse: bool
) -> tuple[Picks, mx.array]:
    """See the twin. The one look at the device decides which rows of a sparse signal take the full product."""
    picks, signal = vocab.pick(embedding.logits(x), cap, draws, signal_from, signal_dtype)
    if not len(signal.logits):
        return picks, x[:0]
    if not sparse or not self_conditioning.gathers(embedding):
        return picks, embedding.mix(vocab.probabilities(signal))
    chosen = self_conditioning.candidates(signal)
    soft = self_conditioning.gather(chosen, embedding, x.shape[1], x.dtype)
    wide = np.flatnonzero(np.array(too_wide(chosen.counts, chosen.kept)))
    if len(wide):
        rows = mx.array(wide.astype(np.int32))
        parts = (signal.logits[rows], signal.temperatures[rows], signal.cap, signal.stats[rows], signal.kind)
        soft[rows] = embedding.mix(vocab.probabilities(vocab.Signal(*parts)))
    return picks, soft
