"""Every format, the tied embedding included, runs on both backends as the same weights unpacked: three steps deep."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from tests.convert import ggufs, models
from tests.convert.support import close, converted, logits

FORMATS: dict[str, dict[str, Any]] = {f"affine-{bits}": {"bits": bits, "group_size": 32} for bits in (2, 3, 4, 5, 6, 8)}
FORMATS |= {mode: {"mode": mode} for mode in ("mxfp4", "nvfp4", "mxfp8")}
EMBEDDING = "model.decoder.embed_tokens.weight"


@pytest.mark.parametrize("name", FORMATS)
def test_self_conditioning_over_a_packed_embedding(source: Path, tmp_path: Path, name: str) -> None:
    report = converted(source, tmp_path / "packed", recipe="uniform", **FORMATS[name])
    assert report[EMBEDDING]["to"].startswith(name.split("-")[0])
    converted(tmp_path / "packed", tmp_path / "unpacked", to="hub", dtype="fp32")
    unpacked = logits(tmp_path / "unpacked", "cuda")
    for backend in ("cuda", "mlx"):
        assert close(logits(tmp_path / "packed", backend), unpacked, 1e-4), backend


def compressed_embedding(case: str, folder: Path) -> Path:
    pytest.importorskip("compressed_tensors")
    from tests.convert import compressed

    tensors = models.weights()
    path = EMBEDDING.removesuffix(".weight")
    tensors |= compressed.encode(case, path, tensors.pop(EMBEDDING))
    return models.write(
        folder, tensors, models.config() | {"quantization_config": {"quant_method": "compressed-tensors"}}
    )


def modelopt_embedding(folder: Path) -> Path:
    tensors = models.weights()
    scale = tensors[EMBEDDING].abs().max() / 448
    tensors[EMBEDDING.removesuffix(".weight") + ".weight_scale"] = scale
    tensors[EMBEDDING] = (tensors[EMBEDDING] / scale).to(torch.float8_e4m3fn)
    return models.write(folder, tensors, models.config() | {"quantization_config": {"quant_method": "modelopt"}})


def gguf_embedding(kind: str, folder: Path) -> Path:
    wide = models.config(hidden_size=256) if kind.endswith("K") else None
    kinds = gguf.GGMLQuantizationType
    return ggufs.write(folder.with_suffix(".gguf"), lambda name: kinds[kind if name == EMBEDDING else "F32"], wide)


FOREIGN: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "FP8 a row": ("mxfp8", partial(compressed_embedding, "fp8-channel")),
    "FP8 a tensor": ("mxfp8", partial(compressed_embedding, "fp8-tensor")),
    "NVFP4 with a factor": ("nvfp4", partial(compressed_embedding, "nvfp4")),
    "FP8 of modelopt": ("mxfp8", modelopt_embedding),
    "int4 with zero points": ("affine 4-bit g32", partial(compressed_embedding, "int4-asymmetric")),
    "int8 of a channel": ("affine 8-bit g64", partial(compressed_embedding, "int8-channel-plain")),
    "float32 scales": ("affine 4-bit g32", partial(gguf_embedding, "Q4_K")),
    "float16 scales": ("affine 5-bit g32", partial(gguf_embedding, "Q5_1")),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_self_conditioning_over_a_foreign_embedding(tmp_path: Path, name: str) -> None:
    expected, write = FOREIGN[name]
    report = converted(write(tmp_path / "source"), tmp_path / "packed")
    assert (report[EMBEDDING]["to"], report[EMBEDDING]["max_error"]) == (expected, pytest.approx(0, abs=1e-6))
    converted(tmp_path / "packed", tmp_path / "unpacked", to="hub", dtype="fp32")
    unpacked = logits(tmp_path / "unpacked", "cuda")
    for backend in ("cuda", "mlx"):
        assert close(logits(tmp_path / "packed", backend), unpacked, 1e-4), backend


def test_older_expert_names(source: Path, tmp_path: Path) -> None:
    """switch_glu.{gate,up,down}_proj of early conversions become fused stacks, bit for bit."""
    converted(source, tmp_path / "packed", bits=4)
    tensors: models.Tensors = {}
    for name, value in models.read(tmp_path / "packed").items():
        base, _, tail = name.partition(".experts.")
        kind, _, part = tail.partition(".")
        halves = {"gate_proj": 0, "up_proj": 1} if kind == "gate_up_proj" else {"down_proj": 0}
        for half, which in halves.items() if tail else ():
            tensors[f"{base}.experts.switch_glu.{half}.{part}"] = value.chunk(len(halves), 1)[which]
        if not tail:
            tensors[name] = value
    older = models.write(tmp_path / "older", tensors, models.config())
    (older / "config.json").write_bytes((tmp_path / "packed" / "config.json").read_bytes())
    report = converted(older, tmp_path / "again")
    assert report[""]["totals"]["labels"]["requantized"] == 0
    first, second = models.read(tmp_path / "packed"), models.read(tmp_path / "again")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_bf16_scales_and_float32_scales(tmp_path: Path) -> None:
    """The dtype of affine scales follows --dtype; both run."""
    source = models.hub(tmp_path / "source")
    for dtype, expected in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        converted(source, tmp_path / dtype, bits=4, dtype=dtype)
        scales = models.read(tmp_path / dtype)["model.decoder.layers.0.experts.down_proj.scales"]
        assert scales.dtype == expected
        assert close(logits(tmp_path / dtype, "cuda"), logits(tmp_path / dtype, "mlx"), 1e-4)
