"""A weight in its stored format and the products taken with it: plain, or packed as MLX quantizes.

Packed weights are unpacked a slab of rows at a time, by plain operations: the specification of faster kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from dgemma.quantization import QuantSpec

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SLAB = 1 << 25


class Linear(Protocol):
    """A bias-free linear map."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""


class Embedding(Protocol):
    """The tied embedding: a lookup, the head, and mixtures of its rows."""

    def __len__(self) -> int:
        """The vocabulary size."""

    def part(self, start: int, stop: int) -> Embedding:
        """The ids `start`..`stop`."""

    def rows(self, ids: Tensor) -> Tensor:
        """ids [N] -> [N, H]."""

    def logits(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N, V] in the model's dtype."""

    def mix(self, probabilities: Tensor) -> Tensor:
        """probabilities [N, V] -> [N, H]."""


class Experts(Protocol):
    """One stacked linear map an expert."""

    @property
    def count(self) -> int:
        """How many experts."""

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [M, in], sorted by expert, expert e owning rows ends[e - 1]..ends[e] (int32 [E]) -> [M, out]."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix, or a stack of them, in an MLX format.

    `weight` holds the codes as int32 words, `scales` and in affine mode `biases` one value a group, and `multiplier`
    one float32 a row of the matrix, which scales the product.
    """

    weight: Tensor
    scales: Tensor
    biases: Tensor | None
    multiplier: Tensor | None
    spec: QuantSpec

    def __getitem__(self, rows: Tensor | slice | int) -> Packed:
        """Some rows of a matrix, or one matrix of a stack."""
        biases = None if self.biases is None else self.biases[rows]
        multiplier = None if self.multiplier is None else self.multiplier[rows]
        return replace(self, weight=self.weight[rows], scales=self.scales[rows], biases=biases, multiplier=multiplier)

    def dequantized(self) -> Tensor:
        """The values in float32, without the multiplier."""
        codes = unpack(self.weight, self.spec.bits)
        groups = _split(_values(codes, self.spec), self.spec.group_size)
        scaled = groups * _scales(self.scales, self.spec)[..., None]
        if self.biases is not None:
            scaled += self.biases.float()[..., None]
        return scaled.flatten(-2)

    def product(self, x: Tensor) -> Tensor:
        """x [..., in] times the transpose of the matrix, in the dtype of `x`."""
        return torch.cat([slab._product(x) for slab in self._slabs()], dim=-1)

    def mix(self, x: Tensor) -> Tensor:
        """x [..., out] times the matrix, in the dtype of `x`."""
        total, first = torch.zeros((), device=x.device), 0
        for slab in self._slabs():
            weights = x[..., first : first + len(slab.weight)]
            scaled = weights if slab.multiplier is None else (weights.float() * slab.multiplier).to(x.dtype)
            total = total + (scaled @ slab.dequantized().to(x.dtype)).float()
            first += len(slab.weight)
        return total.to(x.dtype)

    def _product(self, x: Tensor) -> Tensor:
        wide = torch.float32 if self.multiplier is not None and x.dtype == torch.float16 else x.dtype
        out = torch.nn.functional.linear(x.to(wide), self.dequantized().to(wide))
        return (out if self.multiplier is None else out.float() * self.multiplier).to(x.dtype)

    def _slabs(self) -> Iterator[Packed]:
        """The matrix in runs of rows that are cheap to unpack."""
        rows = max(1, _SLAB * self.spec.bits // (32 * self.weight.shape[-1]))
        return (self[first : first + rows] for first in range(0, len(self.weight), rows))


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """`weight` [out, in]."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return torch.nn.functional.linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A quantized [out, in] matrix."""

    packed: Packed

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return self.packed.product(x)


@dataclass(frozen=True, slots=True)
class Side:
    """Two maps of one input whose formats differ, their outputs side by side."""

    first: Linear
    second: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return torch.cat([self.first(x), self.second(x)], dim=-1)


@dataclass(frozen=True, slots=True)
class PlainEmbedding:
    """`weight` [V, H]."""

    weight: Tensor

    def __len__(self) -> int:
        """See `Embedding`."""
        return len(self.weight)

    def part(self, start: int, stop: int) -> PlainEmbedding:
        """See `Embedding`."""
        return PlainEmbedding(self.weight[start:stop])

    def rows(self, ids: Tensor) -> Tensor:
        """See `Embedding`."""
        return self.weight[ids]

    def logits(self, x: Tensor) -> Tensor:
        """See `Embedding`."""
        return torch.nn.functional.linear(x, self.weight)

    def mix(self, probabilities: Tensor) -> Tensor:
        """See `Embedding`."""
        return probabilities @ self.weight


@dataclass(frozen=True, slots=True)
class PackedEmbedding:
    """A quantized [V, H] matrix whose rows unpack to `dtype`."""

    packed: Packed
    dtype: torch.dtype

    def __len__(self) -> int:
        """See `Embedding`."""
        return len(self.packed.weight)

    def part(self, start: int, stop: int) -> PackedEmbedding:
        """See `Embedding`."""
        return PackedEmbedding(self.packed[start:stop], self.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """See `Embedding`."""
        chosen = self.packed[ids]
        rows = chosen.dequantized()
        return (rows if chosen.multiplier is None else rows * chosen.multiplier[:, None]).to(self.dtype)

    def logits(self, x: Tensor) -> Tensor:
        """See `Embedding`."""
        return self.packed.product(x)

    def mix(self, probabilities: Tensor) -> Tensor:
        """See `Embedding`."""
        return self.packed.mix(probabilities)


@dataclass(frozen=True, slots=True)
class PlainExperts:
    """`weight` [E, out, in]."""

    weight: Tensor

    @property
    def count(self) -> int:
        """See `Experts`."""
        return len(self.weight)

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """See `Experts`."""
        return torch.nn.functional.grouped_mm(x, self.weight.transpose(1, 2), offs=ends)


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """A quantized [E, out, in] stack; only experts that own rows are unpacked."""

    packed: Packed

    @property
    def count(self) -> int:
        """See `Experts`."""
        return len(self.packed.weight)

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """See `Experts`."""
        stops = ends.tolist()
        spans = enumerate(zip([0, *stops], stops, strict=False))
        outs = [self.packed[expert].product(x[first:stop]) for expert, (first, stop) in spans if first < stop]
        return torch.cat(outs) if outs else x.new_empty(0, self.packed.weight.shape[1])


def beside(first: Linear, second: Linear) -> Linear:
    """One map whose output is that of `first`, then that of `second`; one product where their formats agree."""
    if isinstance(first, PlainLinear) and isinstance(second, PlainLinear):
        return PlainLinear(torch.cat([first.weight, second.weight]))
    if isinstance(first, PackedLinear) and isinstance(second, PackedLinear) and _alike(first.packed, second.packed):
        return PackedLinear(_stacked(first.packed, second.packed))
    return Side(first, second)


def unpack(words: Tensor, bits: int) -> Tensor:
    """The codes [..., n] (int32) in `words` [..., n * bits / 32]: a little-endian stream of `bits` bits each."""
    octets = _split(words.contiguous().view(torch.uint8), bits).to(torch.int32)
    starts = torch.arange(8, device=words.device) * bits
    low, high = octets[..., starts // 8], octets[..., (starts // 8 + 1).clamp(max=bits - 1)]
    return ((low | high << 8) >> (starts % 8).to(torch.int32) & (1 << bits) - 1).flatten(-2)


def _split(x: Tensor, size: int) -> Tensor:
    """The last axis in runs of `size`."""
    return x.view(*x.shape[:-1], -1, size)


def _values(codes: Tensor, spec: QuantSpec) -> Tensor:
    if spec.mode == "affine":
        return codes.float()
    if spec.bits == 8:
        return codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
    return _fp4(codes.device)[codes]


@cache
def _fp4(device: torch.device) -> Tensor:
    """The values of all codes, copied to the device once: a recorded pass must copy nothing from the host."""
    return torch.tensor([*_FP4, *(-value for value in _FP4)], device=device)


def _scales(scales: Tensor, spec: QuantSpec) -> Tensor:
    if spec.mode == "affine":
        return scales.float()
    if spec.mode == "nvfp4":
        return scales.view(torch.float8_e4m3fn).float()
    exponents = scales.to(torch.int32)
    return torch.where(exponents > 0, exponents << 23, 1 << 22).view(torch.float32)


def _alike(first: Packed, second: Packed) -> bool:
    """Whether two matrices can be stacked without a change of format."""
    same_scales = first.scales.dtype == second.scales.dtype
    return first.spec == second.spec and same_scales and (first.multiplier is None) == (second.multiplier is None)


def _stacked(first: Packed, second: Packed) -> Packed:
    return Packed(
        torch.cat([first.weight, second.weight]),
        torch.cat([first.scales, second.scales]),
        _joined(first.biases, second.biases),
        _joined(first.multiplier, second.multiplier),
        first.spec,
    )


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat([first, second])
