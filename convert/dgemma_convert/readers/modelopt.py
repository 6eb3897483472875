"""Reads what NVIDIA's modelopt writes: NVFP4 (and FP8) modules, experts one by one, the rest plain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgemma.checkpoint import read_tensors
from dgemma.errors import UnsupportedError
from dgemma_convert.readers import scaled
from dgemma_convert.readers.folder import modules, plain, source
from dgemma_convert.source import Source, Stored


def read(path: Path, config: Mapping[str, Any]) -> Source:
    """The model in the folder `path`."""
    tensors = read_tensors(path)
    found, rest = modules(tensors, scaled.PARTS, "weight_scale")
    dropped = [name for name in tensors if name.rpartition(".")[2] in scaled.ACTIVATIONS]
    stored = {name: plain(name, info) for name, info in rest.items() if name not in dropped}
    stored |= {f"{name}.weight": _module(name, parts) for name, parts in found.items()}
    return source(path, "modelopt", config, stored, dropped)


def _module(path: str, parts: scaled.Parts) -> Stored:
    dtype = parts["weight"].dtype if "weight" in parts else None
    if dtype == "U8":
        return scaled.nvfp4(path, parts, "weight", "weight_scale_2", divides=False)
    if dtype == "F8_E4M3":
        return scaled.fp8(path, parts)
    raise UnsupportedError(f"{path} is in a modelopt format that is not supported.", "NVFP4 and FP8 are.")
