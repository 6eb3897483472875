"""The training loss of one batch."""

from dataclasses import dataclass

import torch
from batches import CANVASES, Batch, corrupt
from model import Model
from torch import Tensor
from torch.nn import functional as F

CAUSAL_WEIGHT, BALANCE_WEIGHT, CONDITIONED_SHARE = 0.5, 0.01, 0.5


@dataclass(frozen=True, slots=True)
class Loss:
    """The total to minimise, its two parts, and which noisy canvases came out right."""

    total: Tensor
    canvas: float
    causal: float
    noise: Tensor
    correct: Tensor


def compute(model: Model, batch: Batch, generator: torch.Generator) -> Loss:
    """Canvas cross-entropy, plus next-token cross-entropy on the answer, plus expert balance."""
    hidden, cache, balance = model.encode(batch.ids)
    answered = batch.targets >= 0
    causal = _mean(model.logits(hidden[answered]), batch.targets[answered], batch.target_weights[answered])
    noise = _noise_levels(len(batch.canvases), generator)
    noisy = corrupt(batch.canvases, noise, generator)
    cache = [(k.repeat_interleave(CANVASES, 0), v.repeat_interleave(CANVASES, 0)) for k, v in cache]
    signal = _signal(model, batch, noisy, cache, generator)
    logits, canvas_balance = model.denoise(noisy, batch.starts, cache, signal)
    canvas = _mean(logits.flatten(0, 1), batch.canvases.flatten(), batch.weights.flatten())
    total = canvas + CAUSAL_WEIGHT * causal + BALANCE_WEIGHT * (balance + canvas_balance)
    correct = (logits.detach().argmax(-1) == batch.canvases).all(-1)
    return Loss(total, canvas.item(), causal.item(), noise, correct)


def _mean(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()


def _noise_levels(count: int, generator: torch.Generator) -> Tensor:
    """Uniform for even rows, tilted towards pure noise for odd ones."""
    levels = torch.rand(count, generator=generator)
    levels[1::2] = levels[1::2].sqrt()
    return levels


@torch.no_grad()
def _signal(
    model: Model, batch: Batch, noisy: Tensor, cache: list[tuple[Tensor, Tensor]], generator: torch.Generator
) -> Tensor | None:
    """A self-conditioning signal such as sampling gives: from a noisier canvas, at a sampling temperature."""
    if torch.rand((), generator=generator) >= CONDITIONED_SHARE:
        return None
    extra = torch.rand(len(noisy), generator=generator) * 0.5
    earlier = corrupt(noisy, extra, generator)
    temperature = 0.4 + 0.4 * torch.rand(len(noisy), 1, 1, generator=generator)
    return model.denoise(earlier, batch.starts, cache, None)[0] / temperature
