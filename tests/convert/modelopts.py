"""Folders in modelopt's NVFP4 layout, byte by byte after its publication: experts one by one, everything else plain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.convert import models

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
DECLARED = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}


def write(folder: Path, tensors: models.Tensors | None = None, raw: Mapping[str, Any] | None = None) -> Path:
    """The tiny model, or the one given."""
    raw = (raw or models.config()) | DECLARED
    models.write(folder, models.unfused(tensors or models.weights(), encode), raw)
    described = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(described))
    return folder


def encode(path: str, matrix: torch.Tensor) -> models.Tensors:
    """The layout's own recipe: a scale for the tensor, E4M3 scales for groups of 16, two codes a byte."""
    overall = matrix.abs().max() / (6 * 448)
    groups = matrix.unflatten(1, (-1, 16))
    scales = (groups.abs().amax(-1) / 6 / overall).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    scaled = groups / (scales.float() * overall)[..., None]
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1).to(torch.uint8) | (scaled < 0).to(torch.uint8) << 3
    codes = codes.flatten(1)
    found = {"weight": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": scales, "weight_scale_2": overall}
    return {f"{path}.{part}": value for part, value in (found | {"input_scale": torch.tensor(1.0)}).items()}


def decode(tensors: models.Tensors, path: str) -> torch.Tensor:
    """The layout's own values of the matrix `path`."""
    octets, scales = tensors[f"{path}.weight"], tensors[f"{path}.weight_scale"].float()
    codes = torch.stack([octets & 15, octets >> 4], -1).flatten(1).long()
    values = torch.cat([E2M1, -E2M1])[codes].unflatten(1, (-1, 16)) * scales[..., None]
    return values.flatten(1) * tensors[f"{path}.weight_scale_2"]
