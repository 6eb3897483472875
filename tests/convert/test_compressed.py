"""compressed-tensors: files made by its compressors, values compared with its decompressors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgemma.errors import UnsupportedError
from dgemma_convert import Options, preview
from dgemma_convert.readers import open_source
from tests.convert import models
from tests.convert.support import close, converted, logits

pytest.importorskip("compressed_tensors")
from compressed_tensors.compressors import (
    FloatQuantizationCompressor,
    IntQuantizationCompressor,
    NVFP4PackedCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

EXPERTS = "model.decoder.layers.0.experts.gate_up_proj"
QUERY = "model.decoder.layers.1.self_attn.q_proj.weight"


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


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, models.Tensors]:
    """A quantized folder, and the library's own values of what it holds."""
    compressor, args, layout, _ = CASES[request.param]
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    values: models.Tensors = {}

    def encode(path: str, matrix: torch.Tensor) -> models.Tensors:
        stored = compressor.compress({"weight": matrix.bfloat16().float(), **parameters(matrix, args)}, scheme)
        values[path] = compressor.decompress(stored, scheme)["weight"].detach()
        if args is FP4:  # it decompresses in bfloat16; its codes and scales say more
            codes = unpack_fp4_from_uint8(stored["weight_packed"], *matrix.shape, dtype=torch.float32)
            scaled = codes.unflatten(1, (-1, 16)) * stored["weight_scale"].float()[..., None]
            values[path] = scaled.flatten(1) / stored["weight_global_scale"]
        return {f"{path}.{part}": value.detach() for part, value in stored.items() if value is not None}

    tensors = models.unfused(models.weights(), encode, dense=True)
    described = {"format": layout, "config_groups": {"group_0": {"targets": ["Linear"]}}, "ignore": ["lm_head"]}
    raw = models.config() | {"quantization_config": {"quant_method": "compressed-tensors", **described}}
    folder = models.write(tmp_path_factory.mktemp(request.param) / "source", tensors, raw)
    return request.param, folder, values


def test_values_and_labels(case: tuple[str, Path, models.Tensors], tmp_path: Path) -> None:
    name, folder, values = case
    report = converted(folder, tmp_path / "out")
    assert {report[each]["label"] for each in (EXPERTS, QUERY)} == {CASES[name][3]}
    written = open_source(tmp_path / "out").weights
    for canonical, path, rows in (
        (QUERY, QUERY.removesuffix(".weight"), 0),
        (EXPERTS, EXPERTS.replace("gate_up_proj", "2.gate_proj"), 4 * models.INNER),
    ):
        (piece,) = written[canonical].pieces
        theirs = values[path].float().numpy()
        ours = piece.values(rows, rows + len(theirs))
        if "asymmetric" in name or "nvfp4" in name:
            assert np.abs(ours - theirs).max() <= 2e-7 * np.abs(theirs).max()
        else:
            assert np.array_equal(ours, theirs)


def test_runs_alike_on_both_backends(case: tuple[str, Path, models.Tensors], tmp_path: Path) -> None:
    _, folder, _ = case
    converted(folder, tmp_path / "out")
    converted(folder, tmp_path / "plain", to="hub", dtype="fp32")
    ours, theirs = logits(tmp_path / "out", "mlx"), logits(tmp_path / "out", "cuda")
    assert close(ours, theirs, 1e-4)
    assert close(ours, logits(tmp_path / "plain", "cuda"), 1e-4)


def test_scales_of_blocks_are_refused(tmp_path: Path) -> None:
    def encode(path: str, matrix: torch.Tensor) -> models.Tensors:
        scale = torch.ones(matrix.shape[0] // 16, matrix.shape[1] // 16)
        return {f"{path}.weight": matrix.to(torch.float8_e4m3fn), f"{path}.weight_scale": scale}

    raw = models.config() | {"quantization_config": {"quant_method": "compressed-tensors"}}
    folder = models.write(tmp_path / "source", models.unfused(models.weights(), encode), raw)
    with pytest.raises(UnsupportedError, match="blocks are not supported"):
        preview(folder, Options())


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
