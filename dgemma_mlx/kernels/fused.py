"""The Metal kernels behind the signatures of the naive twins; MLX operations for what no kernel reads."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from dgemma_mlx import moe as plain
from dgemma_mlx.kernels import moe, norm, operand, router, self_conditioning, vocab
from dgemma_mlx.moe import Router
from dgemma_mlx.quant import Embedding, Experts
from dgemma_mlx.self_conditioning import too_wide
from dgemma_mlx.vocab import Draws, Picks

rms_norm = norm.rms_norm
add_norm = norm.add_norm
norm_rotate = norm.norm_rotate


def route(layer: Router, x: mx.array) -> tuple[mx.array, mx.array]:
    """See the twin."""
    proj = operand.of(layer.proj)
    if proj is None or not router.fits(proj.rows):
        return plain.route(layer, x)
    return router.route(x, layer.scale, layer.per_expert_scale, layer.top_k, layer.eps, proj)


def experts(
    x: mx.array, ids: mx.array, routing: mx.array, gate_up: Experts, down: Experts, size: int, tokens: range
) -> mx.array:
    """See the twin: tiles of `size` rows where the number of tokens is one they were timed for."""
    first, second = operand.of(gate_up), operand.of(down)
    if first is None or second is None or len(x) not in tokens:
        return plain.experts(x, ids, routing, gate_up, down)
    return moe.experts(x, ids, routing, first, second, size)


def head(
    embedding: Embedding, x: mx.array, cap: float, draws: Draws, signal_from: int, signal_dtype: mx.Dtype, sparse: bool
) -> tuple[Picks, mx.array]:
    """See the twin. The one look at the device decides which rows of a sparse signal take the full product."""
    picks, signal = vocab.pick(embedding.logits(x), cap, draws, signal_from, signal_dtype)
    if not len(signal.logits):
        return picks, x[:0]
    table = operand.of(embedding)
    if not sparse or table is None:
        return picks, embedding.mix(vocab.probabilities(signal))
    chosen = self_conditioning.candidates(signal)
    soft = self_conditioning.gather(chosen, table, x.shape[1], x.dtype)
    wide = np.flatnonzero(np.array(too_wide(chosen.counts, chosen.kept)))
    if len(wide):
        rows = mx.array(wide.astype(np.int32))
        parts = (signal.logits[rows], signal.temperatures[rows], signal.cap, signal.stats[rows], signal.kind)
        soft[rows] = embedding.mix(vocab.probabilities(vocab.Signal(*parts)))
    return picks, soft
