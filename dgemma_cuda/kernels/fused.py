"""The Triton kernels behind the signatures of the naive twins; torch operations for what no kernel reads."""

from __future__ import annotations

import torch
from torch import Tensor

from dgemma_cuda import moe as plain
from dgemma_cuda.kernels import attention, moe, norm, operand, self_conditioning, vocab
from dgemma_cuda.kernels.linear import linear
from dgemma_cuda.quant import Embedding, Experts, PackedEmbedding
from dgemma_cuda.self_conditioning import Soft, too_wide
from dgemma_cuda.vocab import Draws, Picks

rms_norm = norm.rms_norm
add_norm = norm.add_norm
norm_rotate = norm.norm_rotate
store = attention.store
attend = attention.attend


def experts(x: Tensor, ids: Tensor, routing: Tensor, gate_up: Experts, down: Experts) -> Tensor:
    """See the twin."""
    first, second = operand.of(gate_up), operand.of(down)
    if first is None or second is None:
        return plain.experts(x, ids, routing, gate_up, down)
    return moe.experts(x.contiguous(), ids, routing, first, second)


def head(
    embedding: Embedding, x: Tensor, cap: float, draws: Draws, signal_from: int, signal_dtype: torch.dtype, sparse: bool
) -> tuple[Picks, Tensor]:
    """See the twin."""
    picks, soft = unfinished_head(embedding, x, cap, draws, signal_from, signal_dtype, sparse)
    return picks, soft.finished()


def unfinished_head(
    embedding: Embedding, x: Tensor, cap: float, draws: Draws, signal_from: int, signal_dtype: torch.dtype, sparse: bool
) -> tuple[Picks, Soft]:
    """`head` without its look at the device, which decides which rows of a sparse signal take the full product."""
    table = operand.of(embedding)
    packed = table is not None and isinstance(embedding, PackedEmbedding)
    logits = linear(x, table) if table is not None and packed else embedding.logits(x)
    picks, signal = vocab.pick(logits, cap, draws, signal_from, signal_dtype)
    rows = len(signal.logits)
    if not rows or not sparse or table is None:
        mixture = embedding.mix(vocab.probabilities(signal)) if rows else x[:0]
        return picks, Soft(
            mixture, torch.zeros(rows, dtype=torch.bool, device=x.device), lambda chosen: mixture[chosen]
        )
    chosen = self_conditioning.candidates(signal)
    mixture = self_conditioning.gather(chosen, table, x.shape[1], x.dtype)
    wide = too_wide(chosen.counts, chosen.kept)
    return picks, Soft(mixture, wide, lambda rows: embedding.mix(vocab.probabilities(signal.rows(rows))))
