"""A weight in its stored format and the products taken with it: plain, or packed as MLX quantizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from dgemma.quantization import QuantSpec


class Linear(Protocol):
    """A bias-free linear map."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., in] -> [..., out]."""


class Embedding(Protocol):
    """The tied embedding: a lookup, the head, and mixtures of its rows."""

    def __len__(self) -> int:
        """The vocabulary size."""

    def part(self, start: int, stop: int) -> Embedding:
        """The ids `start`..`stop`."""

    def rows(self, ids: mx.array) -> mx.array:
        """ids [N] -> [N, H]."""

    def logits(self, x: mx.array) -> mx.array:
        """x [N, H] -> [N, V] in the model's dtype."""

    def mix(self, probabilities: mx.array) -> mx.array:
        """probabilities [N, V] -> [N, H]."""


class Experts(Protocol):
    """One stacked linear map an expert."""

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        """x [M, in], sorted by its expert ids `experts` [M] -> [M, out]."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix in an MLX format: `weight` uint32, `scales`, and in affine mode `biases`."""

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    spec: QuantSpec

    def part(self, start: int, stop: int) -> Packed:
        """The rows `start`..`stop`."""
        biases = None if self.biases is None else self.biases[start:stop]
        return Packed(self.weight[start:stop], self.scales[start:stop], biases, self.spec)

    def dequantized(self, rows: mx.array) -> mx.array:
        """The rows with ids `rows`, unpacked."""
        biases = None if self.biases is None else self.biases[rows]
        return mx.dequantize(self.weight[rows], self.scales[rows], biases, **self.format)

    def product(self, x: mx.array, transpose: bool) -> mx.array:
        """x times the transpose of the matrix, or times the matrix."""
        return mx.quantized_matmul(x, self.weight, self.scales, self.biases, transpose=transpose, **self.format)

    @property
    def format(self) -> dict[str, Any]:
        """The keyword arguments that MLX's quantized operations take."""
        return {"group_size": self.spec.group_size, "bits": self.spec.bits, "mode": self.spec.mode}


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """`weight` [out, in]."""

    weight: mx.array

    def __call__(self, x: mx.array) -> mx.array:
        """See `Linear`."""
        return x @ self.weight.T


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A quantized [out, in] matrix."""

    packed: Packed

    def __call__(self, x: mx.array) -> mx.array:
        """See `Linear`."""
        return self.packed.product(x, transpose=True)


@dataclass(frozen=True, slots=True)
class Side:
    """Two maps of one input whose formats differ, their outputs side by side."""

    first: Linear
    second: Linear

    def __call__(self, x: mx.array) -> mx.array:
        """See `Linear`."""
        return mx.concatenate([self.first(x), self.second(x)], axis=-1)


@dataclass(frozen=True, slots=True)
class PlainEmbedding:
    """`weight` [V, H]."""

    weight: mx.array

    def __len__(self) -> int:
        """See `Embedding`."""
        return len(self.weight)

    def part(self, start: int, stop: int) -> PlainEmbedding:
        """See `Embedding`."""
        return PlainEmbedding(self.weight[start:stop])

    def rows(self, ids: mx.array) -> mx.array:
        """See `Embedding`."""
        return self.weight[ids]

    def logits(self, x: mx.array) -> mx.array:
        """See `Embedding`."""
        return x @ self.weight.T

    def mix(self, probabilities: mx.array) -> mx.array:
        """See `Embedding`."""
        return probabilities @ self.weight


@dataclass(frozen=True, slots=True)
class PackedEmbedding:
    """A quantized [V, H] matrix whose rows unpack to `dtype`."""

    packed: Packed
    dtype: mx.Dtype

    def __len__(self) -> int:
        """See `Embedding`."""
        return len(self.packed.weight)

    def part(self, start: int, stop: int) -> PackedEmbedding:
        """See `Embedding`."""
        return PackedEmbedding(self.packed.part(start, stop), self.dtype)

    def rows(self, ids: mx.array) -> mx.array:
        """See `Embedding`."""
        return self.packed.dequantized(ids).astype(self.dtype)

    def logits(self, x: mx.array) -> mx.array:
        """See `Embedding`."""
        return self.packed.product(x, transpose=True)

    def mix(self, probabilities: mx.array) -> mx.array:
        """See `Embedding`."""
        return self.packed.product(probabilities, transpose=False)


@dataclass(frozen=True, slots=True)
class PlainExperts:
    """`weight` [E, out, in]. `widen` casts to float32 around the product, where the device has no other."""

    weight: mx.array
    widen: bool

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        """See `Experts`."""
        weight = self.weight.astype(mx.float32) if self.widen else self.weight
        rows = x.astype(weight.dtype)[:, None]
        out = mx.gather_mm(rows, weight.swapaxes(1, 2), rhs_indices=experts, sorted_indices=True)
        return out[:, 0].astype(x.dtype)


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """A quantized [E, out, in] stack."""

    packed: Packed

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        """See `Experts`."""
        stack = self.packed
        weights = (stack.weight, stack.scales, stack.biases)
        return mx.gather_qmm(x[:, None], *weights, rhs_indices=experts, sorted_indices=True, **stack.format)[:, 0]


def beside(first: Linear, second: Linear) -> Linear:
    """One map whose output is that of `first`, then that of `second`; one product where their formats agree."""
    if isinstance(first, PlainLinear) and isinstance(second, PlainLinear):
        return PlainLinear(mx.concatenate([first.weight, second.weight]))
    if isinstance(first, PackedLinear) and isinstance(second, PackedLinear) and first.packed.spec == second.packed.spec:
        return PackedLinear(_stacked(first.packed, second.packed))
    return Side(first, second)


def _stacked(first: Packed, second: Packed) -> Packed:
    biases = None
    if first.biases is not None and second.biases is not None:
        biases = mx.concatenate([first.biases, second.biases])
    weight = mx.concatenate([first.weight, second.weight])
    return Packed(weight, mx.concatenate([first.scales, second.scales]), biases, first.spec)
