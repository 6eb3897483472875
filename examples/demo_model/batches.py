"""Rounds of training batches: examples of similar length, canvases with noise."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import tasks
import torch
from conversation import Example, answer_ids, prompt_ids
from torch import Tensor
from vocabulary import TURN_END, VOCAB_SIZE

ROUND, BATCH, CANVASES = 2048, 16, 2
FILLING, STOP = 0.2, 3.0
VARIANT_SHARES = {"system": 0.04, "thinking": 0.08, "turns": 0.06, "": 0.82}


@dataclass(frozen=True, slots=True)
class Batch:
    """Clean sequences, the answer targets of the causal pass, and two canvases per sequence."""

    tasks: list[str]
    ids: Tensor
    targets: Tensor
    target_weights: Tensor
    canvases: Tensor
    weights: Tensor
    starts: Tensor


def draw_round(weights: dict[str, float], seed: str, length: int) -> Iterator[Batch]:
    """The batches of one round; equal arguments give equal batches."""
    rng = Random(seed)
    names = rng.choices(list(weights), list(weights.values()), k=ROUND)
    variants = rng.choices(list(VARIANT_SHARES), list(VARIANT_SHARES.values()), k=ROUND)
    examples = [tasks.make(n, rng, variant=v) for n, v in zip(names, variants, strict=True)]
    rows = [(e, prompt_ids(e), answer_ids(e)) for e in examples]
    rows.sort(key=lambda row: len(row[1]) + len(row[2]) + rng.random() * 4)
    groups = [rows[i : i + BATCH] for i in range(0, ROUND, BATCH)]
    rng.shuffle(groups)
    for group in groups:
        yield _collate(group, rng, length)


def _collate(rows: list[tuple[Example, list[int], list[int]]], rng: Random, length: int) -> Batch:
    width = max(len(prompt) + len(answer) for _, prompt, answer in rows) - 1
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    targets, target_weights = torch.full_like(ids, -1), torch.zeros(ids.shape)
    for i, (_, prompt, answer) in enumerate(rows):
        sequence = torch.tensor(prompt + answer)
        ids[i, : len(sequence) - 1] = sequence[:-1]
        targets[i, len(prompt) - 1 : len(sequence) - 1] = sequence[len(prompt) :]
        target_weights[i] = importance(len(answer))
        target_weights[i, len(sequence) - 2] *= STOP
    chosen = [(row, k) for row in rows for k in _pick_canvases(len(row[2]), rng, length)]
    canvases = torch.tensor([_canvas(row[2], k, length) for row, k in chosen])
    lengths = torch.tensor([[len(row[2]) - k * length] for row, k in chosen])
    weights = torch.where(torch.arange(length) < lengths, importance(lengths.clamp(max=length)), FILLING)
    weights[torch.arange(length) == lengths - 1] *= STOP
    starts = torch.tensor([len(row[1]) + k * length for row, k in chosen])
    return Batch([row[0].task for row in rows], ids, targets, target_weights, canvases, weights, starts)


def importance(length: int | Tensor) -> float | Tensor:
    """The weight of each token of an answer: a short answer counts almost as much as a long one."""
    return 20.0 / (length + 3)


def _pick_canvases(answer: int, rng: Random, length: int) -> list[int]:
    count = -(-answer // length)
    return [0] * CANVASES if count == 1 else sorted(rng.sample(range(count), CANVASES))


def _canvas(answer: list[int], index: int, length: int) -> list[int]:
    piece = answer[index * length : (index + 1) * length]
    return piece + [TURN_END] * (length - len(piece))


def corrupt(ids: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Each token replaced by a uniform one with its row's probability."""
    noise = torch.randint(VOCAB_SIZE, ids.shape, generator=generator)
    return torch.where(torch.rand(ids.shape, generator=generator) < probability[:, None], noise, ids)
