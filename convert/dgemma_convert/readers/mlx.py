"""Reads MLX folders: affine, mxfp4, nvfp4 and mxfp8, with overrides a module, and the older names of expert stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgemma.checkpoint import read_tensors
from dgemma.errors import CheckpointError
from dgemma.quantization import Quantization, QuantSpec
from dgemma.shards import TensorInfo
from dgemma_convert.floats import FLOATS
from dgemma_convert.pieces import Form, Packed
from dgemma_convert.readers.folder import expect, modules, plain, source
from dgemma_convert.source import Source, Stored
from dgemma_convert.stretch import Stretch

_FUSED = re.compile(r"\.switch_glu\.(gate|up|down)_proj$")
_NEWER = {"gate": ".gate_up_proj", "up": ".gate_up_proj", "down": ".down_proj"}
_PARTS = ("weight", "scales", "biases", "weight_scale_2")


def read(path: Path, config: Mapping[str, Any]) -> Source:
    """The model in the folder `path`."""
    quantization = Quantization.from_config(config)
    packed, rest = modules(read_tensors(path), _PARTS, "scales")
    stored = {name: plain(name, info) for name, info in rest.items()}
    for name, parts in packed.items():
        stored[f"{name}.weight"] = _packed(name, parts, _spec(quantization, name))
    return source(path, "MLX", config, stored)


def _spec(quantization: Quantization | None, name: str) -> QuantSpec:
    same = (name, _FUSED.sub(lambda found: _NEWER[found[1]], name))
    override = next((path for path in same if quantization and path in quantization.overrides), name)
    spec = quantization.spec(override) if quantization else None
    if spec is None:
        raise CheckpointError(f"{name} is stored quantized, but config.json does not say how.")
    return spec


def _packed(name: str, parts: Mapping[str, TensorInfo], spec: QuantSpec) -> Stored:
    weight, scales = parts.get("weight"), parts["scales"]
    rows = scales.shape[:-1]
    columns = scales.shape[-1] * spec.group_size if scales.shape else 0
    expect(name, "weight", weight, ("U32",), ((*rows, columns * spec.bits // 32),))
    expect(name, "scales", scales, FLOATS if spec.has_biases else ("U8",), (scales.shape,))
    if spec.has_biases:
        expect(name, "biases", parts.get("biases"), (scales.dtype,), (scales.shape,))
    if "weight_scale_2" in parts:
        expect(name, "weight_scale_2", parts["weight_scale_2"], ("F32",), (rows,))
    stretches = {part: Stretch.of(info) for part, info in parts.items() if part != "weight_scale_2"}
    if "weight_scale_2" in parts:
        rowwise = parts["weight_scale_2"]
        stretches["weight_scale_2"] = Stretch(rowwise.shard, rowwise.start, rowwise.nbytes // 4, 4)
    return Stored(Packed(stretches, Form(spec, scales.dtype, "weight_scale_2" in parts)), (*rows, columns))
