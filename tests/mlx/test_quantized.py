"""Packed checkpoints on the MLX backend equal the same weights unpacked, self-conditioning included."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgemma.backend import BackendOptions, DenoiseJob, EncodeJob, load_backend
from tests.parity import tiny

mx = pytest.importorskip("mlx.core")

FORMATS = [{"mode": "affine", "group_size": 32, "bits": bits} for bits in (2, 3, 4, 5, 6, 8)] + [
    {"mode": "mxfp4", "group_size": 32, "bits": 4},
    {"mode": "mxfp8", "group_size": 32, "bits": 8},
    {"mode": "nvfp4", "group_size": 16, "bits": 4},
]
WIDE = {"mode": "affine", "group_size": 32, "bits": 8}
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("spec", FORMATS, ids=lambda spec: f"{spec['mode']}-{spec['bits']}")
def test_packed_equals_unpacked(plain: Path, tmp_path: Path, spec: dict[str, Any]) -> None:
    packed, unpacked = quantize(plain, tmp_path, lambda name: spec if "experts" in name or "embed" in name else WIDE)
    ours, reference = _run(packed), _run(unpacked)
    # Self-conditioning multiplies a rounding difference by about five a step on random weights.
    assert all(np.abs(a - b).max() < limit for a, b, limit in zip(ours, reference, (1e-4, 1e-3, 1e-2), strict=True))
    assert np.abs(ours[-1] - _run(plain)[-1]).max() > 1e-4


def test_gate_and_up_of_different_formats(plain: Path, tmp_path: Path) -> None:
    def formats(name: str) -> dict[str, Any] | None:
        return WIDE if "gate_proj" in name else None if "up_proj" in name and "experts" not in name else FORMATS[2]

    packed, unpacked = quantize(plain, tmp_path, formats)
    assert np.abs(_run(packed)[0] - _run(unpacked)[0]).max() < 1e-4


def test_older_expert_names(plain: Path, tmp_path: Path) -> None:
    packed, _ = quantize(plain, tmp_path, lambda name: FORMATS[2])
    tensors = {name: part for old, value in _load(packed).items() for name, part in _split(old, value)}
    older = tmp_path / "older"
    shutil.copytree(packed, older)
    mx.save_safetensors(str(older / "model.safetensors"), tensors)
    assert all(np.array_equal(a, b) for a, b in zip(_run(older), _run(packed), strict=True))


def test_mlx_vlm_reads_the_same_folder_alike(plain: Path, tmp_path: Path) -> None:
    load_model = pytest.importorskip("mlx_vlm.utils").load_model
    packed, _ = quantize(plain, tmp_path, lambda name: FORMATS[2] if "experts" in name else WIDE)
    model = load_model(packed)
    prompt, canvas = _ids(30, 0), _ids(16, 1)
    backend = load_backend("mlx", packed, BackendOptions(device="cpu"))
    context = backend.open()
    backend.forward([EncodeJob(context, prompt)])
    ours = backend.inspect(DenoiseJob(context, canvas, 0.8)).logits
    output = model(input_ids=mx.array(prompt)[None], canvas_ids=mx.array(canvas)[None], cache=model.make_cache())
    theirs = np.array(output.logits.astype(mx.float32))[0]
    assert np.abs(ours - theirs).max() < 2e-3


def quantize(source: Path, folder: Path, spec_of: Callable[[str], dict[str, Any] | None]) -> tuple[Path, Path]:
    """Write `source` packed, in MLX's spelling with an override a module, and unpacked from there."""
    packed, unpacked = folder / "packed", folder / "unpacked"
    stored: Tensors = {}
    plain: Tensors = {}
    overrides: dict[str, Any] = {}
    for name, value in _load(source).items():
        path = name.removesuffix(".weight")
        spec = spec_of(name) if value.ndim >= 2 and "norm" not in name and "encoder" not in name else None
        if spec is None:
            stored[name] = plain[name] = value
            overrides |= {path: False} if value.ndim >= 2 else {}
            continue
        parts = mx.quantize(value, **spec)
        plain[name] = mx.dequantize(*parts, **spec).astype(mx.float32)
        stored |= dict(zip((f"{path}.weight", f"{path}.scales", f"{path}.biases"), parts, strict=False))
        overrides[path] = spec
    _write(source, unpacked, plain, None)
    _write(source, packed, stored, FORMATS[2] | overrides)
    return packed, unpacked


def _write(source: Path, folder: Path, tensors: Tensors, quantization: dict[str, Any] | None) -> None:
    shutil.copytree(source, folder)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    config = json.loads((folder / "config.json").read_text())
    config |= {} if quantization is None else {"quantization": quantization}
    (folder / "config.json").write_text(json.dumps(config))


def _split(name: str, value: Any) -> list[tuple[str, Any]]:
    if ".experts." not in name:
        return [(name, value)]
    base, suffix = name.split(".experts.")
    module, _, kind = suffix.partition(".")
    kind = kind or "weight"
    if module == "down_proj":
        return [(f"{base}.experts.switch_glu.down_proj.{kind}", value)]
    gate, up = mx.split(value, 2, axis=1)
    return [(f"{base}.experts.switch_glu.{half}_proj.{kind}", part) for half, part in (("gate", gate), ("up", up))]


def _load(folder: Path) -> Tensors:
    return dict(mx.load(str(folder / "model.safetensors")))


def _run(folder: Path) -> list[Any]:
    """Logits of three denoising steps over one canvas, each conditioned on the one before."""
    backend = load_backend("mlx", folder, BackendOptions(device="cpu", dtype="float32"))
    context = backend.open()
    backend.forward([EncodeJob(context, _ids(30, 0))])
    return [backend.inspect(DenoiseJob(context, _ids(16, 1), 0.8)).logits for _ in range(3)]


def _ids(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(3, 490, count).astype(np.int32)
