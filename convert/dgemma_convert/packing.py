"""MLX's quantized formats on numpy: codes packed into words, quantization as MLX itself does it, and the way back.

Arrays are [rows, columns]; a format's parts are its `weight` (uint32 words), `scales` and, in affine mode, `biases`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dgemma.quantization import QuantSpec
from dgemma_convert.floats import (
    E4M3,
    Array,
    Floats,
    Octets,
    from_e2m1,
    from_e8m0,
    narrow,
    to_e2m1,
    to_e4m3,
    to_e8m0,
    widen,
)

Parts = Mapping[str, Array]
_LARGEST = {"mxfp4": 6.0, "nvfp4": 6.0, "mxfp8": 448.0}


def pack(codes: Octets, bits: int) -> Array:
    """Codes [rows, n] as uint32 words [rows, n * bits / 32]: a little-endian stream of `bits` bits each."""
    if bits == 8:
        octets = codes
    elif bits == 4:
        octets = codes[:, ::2] | codes[:, 1::2] << 4
    else:
        streams = codes.reshape(len(codes), -1, 8).astype(np.uint64) << (np.arange(8, dtype=np.uint64) * bits)
        joined = np.bitwise_or.reduce(streams, axis=-1)
        octets = joined.view(np.uint8).reshape(*joined.shape, 8)[..., :bits].reshape(len(codes), -1)
    return np.ascontiguousarray(octets).view("<u4")


def unpack(words: Array, bits: int) -> Octets:
    """The codes in `words`; the inverse of `pack`."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    if bits == 4:
        return np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(octets), -1)
    groups = octets.reshape(len(octets), -1, bits).astype(np.uint16)
    starts = np.arange(8) * bits
    low, high = groups[..., starts // 8], groups[..., np.minimum(starts // 8 + 1, bits - 1)]
    codes = (low | high << 8) >> (starts % 8).astype(np.uint16) & np.uint16((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(len(octets), -1)


def quantize(values: Floats, spec: QuantSpec, scale_dtype: str) -> dict[str, Array]:
    """The parts of `values` [rows, columns] in the format `spec`; affine scales are stored as `scale_dtype`."""
    groups = values.reshape(len(values), -1, spec.group_size)
    if spec.mode == "affine":
        codes, scales, biases = _affine(groups, spec.bits)
        parts = {"scales": narrow(scales, scale_dtype), "biases": narrow(biases, scale_dtype)}
    else:
        codes, scales = _floating(groups, spec)
        parts = {"scales": scales}
    return {"weight": pack(codes.reshape(len(values), -1), spec.bits)} | parts


def dequantize(parts: Parts, spec: QuantSpec, scale_dtype: str) -> Floats:
    """The values in float32; a `weight_scale_2` among the parts multiplies its rows."""
    codes = unpack(parts["weight"], spec.bits)
    groups = _decoded(codes, spec).reshape(len(codes), -1, spec.group_size)
    values = groups * _scales(parts["scales"], spec, scale_dtype)[..., None]
    if spec.has_biases:
        values += widen(parts["biases"], scale_dtype)[..., None]
    values = values.reshape(len(codes), -1)
    return values if "weight_scale_2" not in parts else values * parts["weight_scale_2"][:, None]


def recast(parts: Parts, stored: str, scale_dtype: str) -> dict[str, Array]:
    """The same affine codes with scales and biases as `scale_dtype`, which were stored as `stored`."""
    cast = {name: narrow(widen(parts[name], stored), scale_dtype) for name in ("scales", "biases")}
    return {**parts, **cast}


def _affine(groups: Floats, bits: int) -> tuple[Octets, Floats, Floats]:
    """Codes 0 .. 2^bits - 1 such that code * scale + bias is close and the edge of larger size is a multiple."""
    top = np.float32((1 << bits) - 1)
    low, high = groups.min(-1), groups.max(-1)
    scale = np.maximum((high - low) / top, np.float32(1e-7))
    downwards = np.abs(low) > np.abs(high)
    scale = np.where(downwards, scale, -scale)
    edge = np.where(downwards, low, high)
    steps = np.rint(edge / scale)
    whole = steps != 0
    scale = np.where(whole, edge / np.where(whole, steps, 1), scale)
    bias = np.where(whole, edge, np.float32(0))
    codes = np.rint((groups - bias[..., None]) / scale[..., None])
    return np.clip(codes, 0, top).astype(np.uint8), scale, bias


def _floating(groups: Floats, spec: QuantSpec) -> tuple[Octets, Octets]:
    wanted = np.abs(groups).max(-1) / np.float32(_LARGEST[spec.mode])
    stored = to_e4m3(wanted) if spec.mode == "nvfp4" else to_e8m0(wanted)
    scales = _scales(stored, spec, "")[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(scales == 0, np.float32(0), groups / scales)
    return (to_e4m3(scaled) if spec.bits == 8 else to_e2m1(scaled)), stored


def _decoded(codes: Octets, spec: QuantSpec) -> Floats:
    if spec.mode == "affine":
        return codes.astype(np.float32)
    return E4M3[codes] if spec.bits == 8 else from_e2m1(codes)


def _scales(stored: Array, spec: QuantSpec, scale_dtype: str) -> Floats:
    if spec.mode == "affine":
        return widen(stored, scale_dtype)
    return E4M3[stored] if spec.mode == "nvfp4" else from_e8m0(stored)
