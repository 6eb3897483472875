"""The vocabulary side of a pass: softcap, temperature, inverse-CDF sample, argmax, entropy, self-conditioning weights.

Rows are taken a few at a time, so that no float32 copy of all logits exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ROWS = 32
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Draws:
    """Per predicted row [R]: temperature, uniform number, and whether the sample is the argmax."""

    temperatures: Tensor
    uniforms: Tensor
    greedy: Tensor


@dataclass(frozen=True, slots=True)
class Picks:
    """Per predicted row [R]: sampled and argmax ids (int32), entropy in nats (float32)."""

    sampled: Tensor
    argmax: Tensor
    entropy: Tensor


def softcap(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap) in float32, always a fresh tensor."""
    return (logits.float() / cap).tanh_().mul_(cap)


def predict(
    logits: Tensor, cap: float, draws: Draws, signal_from: int, signal_dtype: torch.dtype
) -> tuple[Picks, Tensor]:
    """Predict every row of raw `logits` [R, V].

    Also the self-conditioning probabilities of the rows from `signal_from`, in the dtype of `logits`: a softmax of its
    own over the processed logits rounded to `signal_dtype`. They take the place of the logits.
    """
    picks = []
    for start in range(0, len(logits), _ROWS):
        rows = slice(start, min(start + _ROWS, len(logits)))
        scores = softcap(logits[rows], cap).div_(draws.temperatures[rows, None])
        if (kept := max(start, signal_from)) < rows.stop:
            signal = scores[kept - start :].to(signal_dtype)
            logits[kept : rows.stop] = torch.softmax(signal, dim=-1, dtype=torch.float32).to(logits.dtype)
        picks.append(_pick(scores, draws.uniforms[rows], draws.greedy[rows]))
    joined = Picks(*(torch.cat(parts) for parts in zip(*picks, strict=True)))
    return joined, logits[signal_from:]


def _pick(scores: Tensor, uniforms: Tensor, greedy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`scores` [r, V] is consumed."""
    top, argmax = scores.max(dim=-1)
    scores.sub_(top[:, None])
    width = -(-scores.shape[1] // _BLOCK) * _BLOCK
    mass = scores.new_zeros(len(scores), width)
    torch.exp(scores, out=mass[:, : scores.shape[1]])
    sums = mass.view(len(scores), -1, _BLOCK).sum(-1).cumsum(-1)
    total = sums[:, -1]
    entropy = total.log() - torch.linalg.vecdot(mass[:, : scores.shape[1]], scores) / total
    sampled = torch.where(greedy, argmax, inverse_cdf(mass, sums, uniforms))
    return sampled.int(), argmax.int(), entropy


def inverse_cdf(mass: Tensor, sums: Tensor, uniforms: Tensor) -> Tensor:
    """The smallest id whose cumulated `mass` exceeds uniform * total, clamped to ids with mass, [r].

    `mass` [r, blocks * _BLOCK] is unnormalised, `sums` [r, blocks] its running block sums.
    """
    target = (uniforms * sums[:, -1])[:, None]
    filled = sums < sums[:, -1:]
    block = (sums <= target).sum(-1).minimum(filled.sum(-1))
    rows = torch.arange(len(mass), device=mass.device)
    inside = mass.view(len(mass), -1, _BLOCK)[rows, block]
    before = torch.where(block > 0, sums[rows, (block - 1).clamp(min=0)], 0.0)
    place = (inside.cumsum(-1) + before[:, None] <= target).sum(-1)
    last = _BLOCK - 1 - (inside > 0).flip(-1).to(torch.uint8).argmax(-1)
    return block * _BLOCK + place.minimum(last)
