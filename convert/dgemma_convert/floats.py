"""Small floating-point formats on numpy: bfloat16, E4M3, E8M0 and E2M1, which numpy itself does not have.

Stored bfloat16 is held as uint16, the eight- and four-bit formats as uint8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dgemma.errors import UnsupportedError

Array = NDArray[Any]
Floats = NDArray[np.float32]
Octets = NDArray[Any]

STORED: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
    "U8": np.uint8,
    "I8": np.int8,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "BOOL": np.uint8,
}
FLOATS = ("F32", "F16", "BF16")
# Positions, masks and counters; no quantized format keeps its codes so.
INDICES = ("I64", "BOOL")
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1_EDGES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)


def stored_type(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds tensors of a safetensors `dtype`."""
    if dtype not in STORED:
        raise UnsupportedError(f"Tensors of dtype {dtype} cannot be converted.")
    return np.dtype(STORED[dtype])


def itemsize(dtype: str) -> int:
    """Bytes an element of `dtype`."""
    return stored_type(dtype).itemsize


def widen(raw: Array, dtype: str) -> Floats:
    """Stored numbers of `dtype` as float32; exact for every format but F64."""
    if dtype == "BF16":
        wide = raw.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if dtype == "F8_E4M3":
        return E4M3[raw]
    return raw.astype(np.float32, copy=False)


def narrow(values: Floats, dtype: str) -> Array:
    """float32 rounded to nearest, ties to even, as stored numbers of `dtype`."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
    with np.errstate(over="ignore"):
        return values.astype(STORED[dtype], copy=False)


def from_e8m0(codes: Octets) -> Floats:
    """Powers of two; 255, the format's NaN, becomes infinity."""
    wide = codes.astype(np.uint32)
    return np.where(wide > 0, wide << 23, np.uint32(1 << 22)).view(np.float32)


def to_e8m0(values: Floats) -> Octets:
    """The smallest power of two that is not below each value; 1 for zero, 255 for what is not finite."""
    fraction, exponent = np.frexp(values)
    code = exponent + 127 - (fraction == 0.5)
    return np.where(np.isfinite(values), np.clip(code, 0, 254), 255).astype(np.uint8)


def to_e4m3(values: Floats) -> Octets:
    """Round to nearest, ties to even, saturated at 448."""
    size = np.minimum(np.abs(values), np.float32(448))
    bits = np.ascontiguousarray(size).view(np.uint32)
    normal = ((bits + (((bits >> 20) & 1) + np.uint32(0x7FFFF))) >> 20) - np.uint32(120 << 3)
    codes = np.where(size < 2**-6, np.rint(size * 512), normal).astype(np.uint8)
    codes |= np.signbit(values).astype(np.uint8) << np.uint8(7)
    return np.where(np.isnan(values), np.uint8(127), codes)


def from_e2m1(codes: Octets) -> Floats:
    """Four-bit floats, sign in bit 3."""
    return _SIGNED_E2M1[codes]


def to_e2m1(values: Floats) -> Octets:
    """Round to nearest, ties to zero, saturated at 6; no negative zero."""
    size, codes = np.abs(values), np.zeros(values.shape, np.uint8)
    for edge in _E2M1_EDGES:
        codes += size > edge
    codes |= (values < -_E2M1_EDGES[0]).astype(np.uint8) << np.uint8(3)
    return codes


def _e4m3_table() -> Floats:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, mantissa / 512, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[codes & 127 == 127] = np.nan
    return np.where(codes & 128, -size, size).astype(np.float32)


E4M3 = _e4m3_table()
_SIGNED_E2M1 = np.concatenate([_E2M1, -_E2M1])
