"""The reference sampler in plain torch: entropy bound, stop rule, argmax commit."""

from dataclasses import dataclass

import torch
from attention import Cache
from model import Model
from torch import Tensor

STOPS = (1, 106, 50)
STEPS, T_MIN, T_MAX, BOUND, CONFIDENCE = 48, 0.4, 0.8, 0.1, 0.005


@dataclass(slots=True)
class Generation:
    """The tokens of one answer up to and including its stop token, and what they cost."""

    ids: list[int]
    canvases: int = 0
    steps: int = 0


def accept(entropy: Tensor, bound: float = BOUND) -> Tensor:
    """The most certain positions, while the entropy before each stays within the bound."""
    ordered, order = entropy.sort(dim=-1)
    within = ordered.cumsum(-1) - ordered <= bound
    return torch.zeros_like(within).scatter_(-1, order, within)


@torch.no_grad()
def denoise(model: Model, starts: Tensor, cache: list[Cache], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The committed canvases of a batch, and each one's number of steps."""
    vocab, length = model.shape.vocab, model.shape.canvas
    rows = torch.arange(len(starts))
    committed, steps = torch.zeros(len(starts), length, dtype=torch.long), torch.zeros_like(starts)
    canvas, signal = torch.randint(vocab, committed.shape, generator=generator), None
    previous = torch.full_like(committed, -1)
    for n in range(STEPS, 0, -1):
        logits = model.denoise(canvas, starts, cache, signal)[0] / (T_MIN + (T_MAX - T_MIN) * n / STEPS)
        log_p = logits.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        best = logits.argmax(-1)
        committed[rows], steps[rows] = best, steps[rows] + 1
        done = (best == previous).all(-1) & (entropy.mean(-1) < CONFIDENCE)
        sample = torch.multinomial(log_p.exp().flatten(0, 1), 1, generator=generator).view(best.shape)
        noise = torch.randint(vocab, best.shape, generator=generator)
        canvas = torch.where(accept(entropy), sample, noise)
        keep = ~done
        if not keep.any():
            break
        rows, starts, canvas, previous, signal = (x[keep] for x in (rows, starts, canvas, best, logits))
        cache = [(k[keep], v[keep]) for k, v in cache]
    return committed, steps


def generate(model: Model, prompts: list[list[int]], canvases: int, generator: torch.Generator) -> list[Generation]:
    """Answers to a batch of prompts, canvas by canvas until each meets a stop token."""
    results = [Generation([]) for _ in prompts]
    open_rows = list(range(len(prompts)))
    for _ in range(canvases):
        committed, steps = denoise(model, *_prefix(model, [prompts[i] + results[i].ids for i in open_rows]), generator)
        for i, ids, count in zip(open_rows, committed.tolist(), steps.tolist(), strict=True):
            results[i].ids += _until_stop(ids)
            results[i].canvases += 1
            results[i].steps += count
        open_rows = [i for i in open_rows if results[i].ids[-1] not in STOPS]
        if not open_rows:
            break
    return results


@torch.no_grad()
def _prefix(model: Model, sequences: list[list[int]]) -> tuple[Tensor, list[Cache]]:
    ids = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    return torch.tensor([len(s) for s in sequences]), model.encode(ids)[1]


def _until_stop(ids: list[int]) -> list[int]:
    stops = [i for i, token in enumerate(ids) if token in STOPS]
    return ids[: stops[0] + 1] if stops else ids
