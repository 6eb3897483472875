"""Data-parallel workers: one single-threaded process per core."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank() -> int:
    """This worker's number."""
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    """How many workers there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def total(values: Tensor) -> Tensor:
    """The sum of a tensor over the workers, in place."""
    if count() > 1:
        dist.all_reduce(values)
    return values


def average_gradients(model: nn.Module) -> None:
    """Replaces every gradient by its mean over the workers; a missing one counts as zero."""
    if count() == 1:
        return
    parameters = list(model.parameters())
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
    pieces = (total(flat) / count()).split([p.numel() for p in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter)


def share(function: Callable[[Tensor], Tensor], stack: Tensor) -> Tensor:
    """A function of each row of a stack, the rows split among the workers."""
    if count() == 1:
        return function(stack)
    size = -(-len(stack) // count())
    padded = torch.zeros(size * count(), *stack.shape[1:])
    padded[: len(stack)] = stack
    mine = function(padded[rank() * size : (rank() + 1) * size]).contiguous()
    parts = [torch.empty_like(mine) for _ in range(count())]
    dist.all_gather(parts, mine)
    return torch.cat(parts)[: len(stack)]
