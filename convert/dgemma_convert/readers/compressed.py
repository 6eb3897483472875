"""Reads compressed-tensors: float-quantized (FP8), nvfp4-pack-quantized, pack-quantized and int-quantized modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgemma.checkpoint import read_tensors
from dgemma.errors import UnsupportedError
from dgemma.quantization import declared
from dgemma.section import as_whole
from dgemma_convert.readers import scaled
from dgemma_convert.readers.folder import modules, plain, source
from dgemma_convert.source import Source, Stored


def read(path: Path, config: Mapping[str, Any]) -> Source:
    """The model in the folder `path`."""
    tensors = read_tensors(path)
    found, rest = modules(tensors, scaled.PARTS, "weight_scale")
    dropped = [name for name in tensors if name.rpartition(".")[2] in scaled.ACTIVATIONS]
    stored = {name: plain(name, info) for name, info in rest.items() if name not in dropped}
    sizes = _group_sizes(config)
    stored |= {f"{name}.weight": _module(name, parts, sizes) for name, parts in found.items()}
    return source(path, "compressed-tensors", config, stored, dropped)


def _module(path: str, parts: scaled.Parts, sizes: set[int]) -> Stored:
    if "weight_global_scale" in parts and "weight_packed" in parts:
        return scaled.nvfp4(path, parts, "weight_packed", "weight_global_scale", divides=True)
    if "weight_packed" in parts and parts["weight_packed"].dtype == "I32":
        return scaled.integers(path, parts, "weight_packed", sizes)
    dtype = parts["weight"].dtype if "weight" in parts else None
    if dtype == "F8_E4M3":
        return scaled.fp8(path, parts)
    if dtype == "I8":
        return scaled.integers(path, parts, "weight", sizes)
    raise UnsupportedError(
        f"{path} is in a compressed-tensors format that is not supported.",
        "float-quantized, nvfp4-pack-quantized, pack-quantized and int-quantized are.",
    )


def _group_sizes(config: Mapping[str, Any]) -> set[int]:
    """The sizes of groups that config.json speaks of."""
    groups = (declared(config) or {}).get("config_groups")
    found = set()
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        size = as_whole(weights.get("group_size")) if isinstance(weights, Mapping) else None
        if size is not None:
            found.add(size)
    return found
