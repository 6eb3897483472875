"""A weight in its stored format and the products taken with it. This backend holds unquantized weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Linear:
    """A bias-free linear map, `weight` [out, in]."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return torch.nn.functional.linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class Embedding:
    """The tied embedding, `weight` [V, H]: a lookup, the head, and mixtures of its rows."""

    weight: Tensor

    def __len__(self) -> int:
        """The vocabulary size."""
        return len(self.weight)

    def part(self, start: int, stop: int) -> Embedding:
        """The ids `start`..`stop`, as a view."""
        return Embedding(self.weight[start:stop])

    def rows(self, ids: Tensor) -> Tensor:
        """ids [N] -> [N, H]."""
        return self.weight[ids]

    def logits(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N, V] in the weight's dtype."""
        return torch.nn.functional.linear(x, self.weight)

    def mix(self, probabilities: Tensor) -> Tensor:
        """probabilities [N, V] -> [N, H]."""
        return probabilities @ self.weight


@dataclass(frozen=True, slots=True)
class Experts:
    """One stacked linear map an expert, `weight` [E, out, in]."""

    weight: Tensor

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [M, in], sorted by expert, expert e owning rows ends[e - 1]..ends[e] (int32 [E]) -> [M, out]."""
        return torch.nn.functional.grouped_mm(x, self.weight.transpose(1, 2), offs=ends)
