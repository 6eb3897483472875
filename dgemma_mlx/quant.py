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
    """A matrix, or a stack of them, in an MLX format.

    `weight` holds the codes as uint32 words, `scales` and in affine mode `biases` one value a group, and `multiplier`
    one float32 a row of the matrix, which scales the product.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    multiplier: mx.array | None
    spec: QuantSpec

    def part(self, start: int, stop: int) -> Packed:
        """The rows `start`..`stop`."""
        biases = None if self.biases is None else self.biases[start:stop]
        multiplier = None if self.multiplier is None else self.multiplier[start:stop]
        return Packed(self.weight[start:stop], self.scales[start:stop], biases, multiplier, self.spec)

    def dequantized(self, rows: mx.array) -> mx.array:
        """The rows with ids `rows`, unpacked."""
        biases = None if self.biases is None else self.biases[rows]
        values = mx.dequantize(self.weight[rows], self.scales[rows], biases, **self.format)
        return values if self.multiplier is None else values * self.multiplier[rows][:, None]

    def product(self, x: mx.array) -> mx.array:
        """x [..., in] times the transpose of the matrix, in the dtype of `x`."""
        out = mx.quantized_matmul(self._room(x), self.weight, self.scales, self.biases, transpose=True, **self.format)
        return (out if self.multiplier is None else out * self.multiplier).astype(x.dtype)

    def gathered(self, x: mx.array, experts: mx.array) -> mx.array:
        """x [M, in], sorted by its expert ids `experts` [M], times the transposes of their matrices."""
        weights = (self.weight, self.scales, self.biases)
        rows = self._room(x)[:, None]
        out = mx.gather_qmm(rows, *weights, rhs_indices=experts, sorted_indices=True, **self.format)[:, 0]
        return (out if self.multiplier is None else out * self.multiplier[experts]).astype(x.dtype)

    def mix(self, x: mx.array) -> mx.array:
        """x [..., out] times the matrix, in the dtype of `x`."""
        scaled = x if self.multiplier is None else (x * self.multiplier).astype(x.dtype)
        out = mx.quantized_matmul(scaled, self.weight, self.scales, self.biases, transpose=False, **self.format)
        return out.astype(x.dtype)

    @property
    def format(self) -> dict[str, Any]:
        """The keyword arguments that MLX's quantized operations take."""
        return {"group_size": self.spec.group_size, "bits": self.spec.bits, "mode": self.spec.mode}

    def _room(self, x: mx.array) -> mx.array:
        """A product that is yet to be multiplied down can leave the range of float16."""
        return x.astype(mx.float32) if self.multiplier is not None and x.dtype == mx.float16 else x


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
        return self.packed.product(x)


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
        return self.packed.product(x)

    def mix(self, probabilities: mx.array) -> mx.array:
        """See `Embedding`."""
        return self.packed.mix(probabilities)


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
        return self.packed.gathered(x, experts)


def beside(first: Linear, second: Linear) -> Linear:
    """One map whose output is that of `first`, then that of `second`; one product where their formats agree."""
    if isinstance(first, PlainLinear) and isinstance(second, PlainLinear):
        return PlainLinear(mx.concatenate([first.weight, second.weight]))
    if isinstance(first, PackedLinear) and isinstance(second, PackedLinear) and _alike(first.packed, second.packed):
        return PackedLinear(_stacked(first.packed, second.packed))
    return Side(first, second)


def _alike(first: Packed, second: Packed) -> bool:
    """Whether two matrices can be stacked without a change of format."""
    same_scales = first.scales.dtype == second.scales.dtype
    return first.spec == second.spec and same_scales and (first.multiplier is None) == (second.multiplier is None)


def _stacked(first: Packed, second: Packed) -> Packed:
    return Packed(
        mx.concatenate([first.weight, second.weight]),
        mx.concatenate([first.scales, second.scales]),
        _joined(first.biases, second.biases),
        _joined(first.multiplier, second.multiplier),
        first.spec,
    )


def _joined(first: mx.array | None, second: mx.array | None) -> mx.array | None:
    return None if first is None or second is None else mx.concatenate([first, second])
