"""Folders in the layouts of compressed-tensors: made by its compressors, scales as its observers would choose them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import (
    FloatQuantizationCompressor,
    IntQuantizationCompressor,
    NVFP4PackedCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from tests.convert import models


def integer(bits: int, symmetric: bool = True, group: int | None = 32) -> QuantizationArgs:
    strategy = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    return QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, **strategy)


def eight(strategy: str) -> QuantizationArgs:
    return QuantizationArgs(num_bits=8, type="float", strategy=strategy)


FP4 = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype="float8_e4m3fn")
CASES: dict[str, tuple[Any, QuantizationArgs, str, str]] = {
    "nvfp4": (NVFP4PackedCompressor, FP4, "nvfp4-pack-quantized", "storage exact"),
    "fp8-channel": (FloatQuantizationCompressor, eight("channel"), "float-quantized", "exact"),
    "fp8-tensor": (FloatQuantizationCompressor, eight("tensor"), "float-quantized", "exact"),
    "int4": (PackedQuantizationCompressor, integer(4), "pack-quantized", "storage exact"),
    "int4-asymmetric": (PackedQuantizationCompressor, integer(4, False), "pack-quantized", "storage exact"),
    "int8": (PackedQuantizationCompressor, integer(8), "pack-quantized", "storage exact"),
    "int4-channel": (PackedQuantizationCompressor, integer(4, group=None), "pack-quantized", "storage exact"),
    "int8-channel-plain": (IntQuantizationCompressor, integer(8, group=None), "int-quantized", "storage exact"),
}


def write(folder: Path, case: str, tensors: models.Tensors | None = None, raw: Mapping[str, Any] | None = None) -> Path:
    """The tiny model, or the one given, with every linear as `case` says."""
    described = {"format": CASES[case][2], "config_groups": {"group_0": {"targets": ["Linear"]}}, "ignore": ["lm_head"]}
    declared = {"quantization_config": {"quant_method": "compressed-tensors", **described}}
    stored = models.unfused(tensors or models.weights(), partial(encode, case), dense=True)
    return models.write(folder, stored, (raw or models.config()) | declared)


def encode(case: str, path: str, matrix: torch.Tensor) -> models.Tensors:
    """The stored tensors of one matrix."""
    compressor, args, _, _ = CASES[case]
    given = {"weight": matrix.bfloat16().float(), **parameters(matrix, args)}
    stored = compressor.compress(given, _scheme(args))
    return {f"{path}.{part}": value.detach() for part, value in stored.items() if value is not None}


def decode(case: str, path: str, tensors: models.Tensors, shape: tuple[int, int]) -> torch.Tensor:
    """The library's own values of the matrix `path`."""
    compressor, args, _, _ = CASES[case]
    stored = {name.removeprefix(f"{path}."): value for name, value in tensors.items() if name.startswith(f"{path}.")}
    if args is FP4:  # it decompresses in bfloat16; its codes and scales say more
        codes = unpack_fp4_from_uint8(stored["weight_packed"], *shape, dtype=torch.float32)
        scaled = codes.unflatten(1, (-1, 16)) * stored["weight_scale"].float()[..., None]
        return scaled.flatten(1) / stored["weight_global_scale"]
    return compressor.decompress(stored, _scheme(args))["weight"].detach()


def _scheme(args: QuantizationArgs) -> QuantizationScheme:
    return QuantizationScheme(targets=["Linear"], weights=args)


def parameters(matrix: torch.Tensor, args: QuantizationArgs) -> models.Tensors:
    """Scales and zero points as its observers would choose them."""
    columns = matrix.shape[1]
    if args.strategy == "tensor_group":
        overall = (448 * 6) / matrix.abs().max().reshape(1)
        local = matrix.unflatten(1, (-1, 16)).abs().amax(-1) / 6
        return {"weight_scale": (local * overall).clamp(2**-9, 448), "weight_global_scale": overall}
    if args.type == "float":
        peak = matrix.abs().amax(1, keepdim=True) if args.strategy == "channel" else matrix.abs().max().reshape(1)
        return {"weight_scale": (peak / 448).float()}
    groups = matrix.unflatten(1, (-1, args.group_size or columns))
    top, middle = 2**args.num_bits - 1, 2 ** (args.num_bits - 1)
    if args.symmetric:
        scale = (groups.abs().amax(-1) / (top / 2)).bfloat16().float()
        return {"weight_scale": scale, "weight_zero_point": torch.zeros_like(scale, dtype=torch.int8)}
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scale = ((high - low) / top).bfloat16().float()
    return {
        "weight_scale": scale,
        "weight_zero_point": (-middle - (low / scale).round()).clamp(-middle, middle - 1).to(torch.int8),
    }
