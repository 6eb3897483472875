"""Modules whose scales stand in tensors of their own: what modelopt and compressed-tensors have in common.

Which format a module is in shows in its tensors, whatever the configuration says about ignored ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dgemma.errors import CheckpointError, UnsupportedError
from dgemma.shards import TensorInfo
from dgemma_convert.floats import FLOATS
from dgemma_convert.foreign import Fp8, Integers, Nvfp4
from dgemma_convert.readers.folder import expect
from dgemma_convert.source import Stored
from dgemma_convert.stretch import Stretch

Parts = Mapping[str, TensorInfo]
PARTS = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "input_scale",
    "input_global_scale",
    "input_zero_point",
)
ACTIVATIONS = ("input_scale", "input_global_scale", "input_zero_point", "k_scale", "v_scale", "q_scale")


def nvfp4(path: str, parts: Parts, weight: str, factor: str, divides: bool) -> Stored:
    """Two codes a byte, E4M3 scales, one float32 beside them."""
    _only(path, parts, (weight, "weight_scale", factor, *ACTIVATIONS))
    codes, scales = parts[weight], parts["weight_scale"]
    out, columns = _matrix(path, weight, codes, 2)
    expect(path, weight, codes, ("U8",), (codes.shape,))
    if columns % 16:
        raise CheckpointError(f"{path} has rows of {columns} codes, which are not whole groups of 16.")
    expect(path, "weight_scale", scales, ("F8_E4M3",), ((out, columns // 16),))
    expect(path, factor, parts.get(factor), ("F32",), ((), (1,)))
    return Stored(Nvfp4(Stretch.of(codes), Stretch.of(scales), Stretch.of(parts[factor]), divides), (out, columns))


def fp8(path: str, parts: Parts) -> Stored:
    """E4M3 codes with a scale a row or one for all."""
    _only(path, parts, ("weight", "weight_scale", *ACTIVATIONS))
    codes, scales = parts["weight"], parts["weight_scale"]
    out, columns = _matrix(path, "weight", codes, 1)
    if scales.shape not in ((), (1,), (1, 1), (out,), (out, 1)):
        raise UnsupportedError(
            f"{path} has FP8 scales {list(scales.shape)}: scales of blocks are not supported.",
            "Use a checkpoint with a scale a tensor or a channel.",
        )
    expect(path, "weight_scale", scales, FLOATS, (scales.shape,))
    return Stored(Fp8(Stretch.of(codes), Stretch.of(scales), scales.dtype), (out, columns))


def integers(path: str, parts: Parts, weight: str, sizes: Collection[int] = ()) -> Stored:
    """4- or 8-bit codes in int32 words, or plain int8, with a scale and perhaps a zero point a group of a row.

    `sizes` are the groups that the configuration speaks of, if it does.
    """
    codes, scales, zeros = parts[weight], parts["weight_scale"], parts.get("weight_zero_point")
    if "weight_g_idx" in parts:
        raise UnsupportedError(f"{path} reorders its columns (g_idx), which is not supported.")
    signed = codes.dtype == "I8"
    _only(path, parts, (weight, "weight_scale", "weight_zero_point", "weight_shape", *ACTIVATIONS))
    out, columns = _shape(path, codes, parts.get("weight_shape"), signed)
    groups = scales.shape[-1] if len(scales.shape) == 2 else 0
    bits = 8 if signed else _bits(path, codes.shape[1], columns)
    expect(path, weight, codes, ("I32", "I8"), ((out, columns if signed else codes.shape[1]),))
    expect(path, "weight_scale", scales, FLOATS, ((out, groups),))
    if not groups or columns % groups or (sizes and groups > 1 and columns // groups not in sizes):
        raise CheckpointError(f"{path} has {columns} columns in {groups} groups, which are no whole ones.")
    if zeros is not None:
        height = out if signed else -(-out * bits // 32)
        expect(path, "weight_zero_point", zeros, ("I8",) if signed else ("I32",), ((height, groups),))
    points = None if zeros is None else Stretch.of(zeros)
    piece = Integers(
        Stretch.of(codes), Stretch.of(scales), points, scales.dtype, bits, columns, columns // groups, signed
    )
    return Stored(piece, (out, columns))


def _bits(path: str, words: int, columns: int) -> int:
    """How wide codes are of which `columns` fill `words` words."""
    found = [bits for bits in (4, 8) if -(-columns * bits // 32) == words]
    if len(found) != 1:
        raise UnsupportedError(f"{path} has {columns} columns in {words} words, which are not 4 or 8 bits each.")
    return found[0]


def _only(path: str, parts: Parts, known: Collection[str]) -> None:
    """Raise where a module has a tensor that its format would leave unread."""
    for part in parts:
        if part not in known:
            raise CheckpointError(f"{path} has a {part}, which its format does not know.")


def _matrix(path: str, part: str, info: TensorInfo, each: int) -> tuple[int, int]:
    if len(info.shape) != 2:
        raise CheckpointError(f"{path}.{part} is {list(info.shape)} instead of a matrix.")
    return info.shape[0], info.shape[1] * each


def _shape(path: str, codes: TensorInfo, stored: TensorInfo | None, signed: bool) -> tuple[int, int]:
    out, width = _matrix(path, "weight", codes, 1)
    if signed or stored is None:
        return out, width if signed else width * 8
    expect(path, "weight_shape", stored, ("I64", "I32"), ((2,),))
    rows, columns = (int(number) for number in Stretch.of(stored).array(stored.dtype)[0])
    if rows != out or columns <= 0:
        raise CheckpointError(f"{path}.weight_shape says {[rows, columns]}, but there are {out} rows.")
    return rows, columns
