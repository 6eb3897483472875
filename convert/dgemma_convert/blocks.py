"""llama.cpp's quantized blocks, taken apart: their codes, scales and minima become MLX's codes, scales and biases.

The integers stay what they are. Scales are stored so wide that they lose nothing: float16 where a block has float16
scales of its own, float32 where they are products (the K types).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from dgemma.quantization import QuantSpec
from dgemma_convert.floats import STORED, Array, Floats, Octets
from dgemma_convert.packing import pack

Split = tuple[Octets, Array, Array | None]


@dataclass(frozen=True, slots=True)
class Block:
    """A block type: bytes, the MLX format of the same codes, the dtype of its scales, and how to take it apart.

    `split` maps raw blocks [n, size] to codes [n, values], scales and biases [n, groups].
    """

    size: int
    spec: QuantSpec
    scales: str
    split: Callable[[Octets], Split]

    @property
    def label(self) -> str:
        """What the repacking is: powers of two round nothing, other scales do so in 16 bits."""
        return "storage exact" if self.spec.has_biases else "exact"

    def repack(self, raw: Octets) -> dict[str, Array]:
        """Rows of blocks [rows, bytes] as parts of the MLX format."""
        codes, scales, biases = self.split(raw.reshape(-1, self.size))
        found = {"weight": pack(codes.reshape(len(raw), -1), self.spec.bits)}
        for name, part in (("scales", scales), ("biases", biases)):
            if part is not None:
                found[name] = _stored(part.reshape(len(raw), -1), self.scales)
        return found


def dequantized(raw: Octets, kind: str) -> Floats:
    """Rows of blocks [rows, bytes] in float32, as the gguf package computes them."""
    from gguf import GGMLQuantizationType, quants

    with np.errstate(over="ignore", invalid="ignore"):
        return cast(Floats, quants.dequantize(raw, GGMLQuantizationType[kind]))


def _stored(part: Array, dtype: str) -> Array:
    with np.errstate(over="ignore"):
        return part.astype(STORED[dtype])


def _half(raw: Octets, at: int) -> Floats:
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: Octets) -> Octets:
    """The low halves of all bytes, then the high halves."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _fifth_bits(raw: Octets) -> Octets:
    return np.unpackbits(raw, axis=-1, bitorder="little") << 4


def _q4_0(raw: Octets) -> Split:
    scale = _half(raw, 0)
    return _nibbles(raw[:, 2:]), scale, -8 * scale


def _q4_1(raw: Octets) -> Split:
    return _nibbles(raw[:, 4:]), _half(raw, 0), _half(raw, 2)


def _q5_0(raw: Octets) -> Split:
    scale = _half(raw, 0)
    return _nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6]), scale, -16 * scale


def _q5_1(raw: Octets) -> Split:
    return _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8]), _half(raw, 0), _half(raw, 2)


def _q8_0(raw: Octets) -> Split:
    scale = _half(raw, 0)
    return raw[:, 2:] ^ np.uint8(128), scale, -128 * scale


def _k_scales(raw: Octets) -> tuple[Floats, Floats]:
    """The eight scales and minima of a K block from its first 16 bytes."""
    low, minima, high = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=-1)
    offsets = np.concatenate([minima & 63, high >> 4 | minima >> 6 << 4], axis=-1)
    return _half(raw, 0) * scales, -_half(raw, 2) * offsets


def _k_nibbles(raw: Octets) -> Octets:
    """Four runs of 32 bytes, each 32 low halves and then 32 high halves."""
    return _nibbles(raw.reshape(-1, 32)).reshape(len(raw), -1)


def _q4_k(raw: Octets) -> Split:
    return (_k_nibbles(raw[:, 16:]), *_k_scales(raw))


def _q5_k(raw: Octets) -> Split:
    planes = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return (_k_nibbles(raw[:, 48:]) | planes.reshape(len(raw), -1) << 4, *_k_scales(raw))


def _mxfp4(raw: Octets) -> Split:
    return _nibbles(raw[:, 1:]), raw[:, :1], None


BLOCKS = {
    "Q4_0": Block(18, QuantSpec(4, 32), "F16", _q4_0),
    "Q4_1": Block(20, QuantSpec(4, 32), "F16", _q4_1),
    "Q5_0": Block(22, QuantSpec(5, 32), "F16", _q5_0),
    "Q5_1": Block(24, QuantSpec(5, 32), "F16", _q5_1),
    "Q8_0": Block(34, QuantSpec(8, 32), "F16", _q8_0),
    "Q4_K": Block(144, QuantSpec(4, 32), "F32", _q4_k),
    "Q5_K": Block(176, QuantSpec(5, 32), "F32", _q5_k),
    "MXFP4": Block(17, QuantSpec(4, 32, "mxfp4"), "U8", _mxfp4),
}
