"""Every format, the tied embedding included, runs on both backends as the same weights unpacked: three steps deep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.convert import models
from tests.convert.support import close, converted, logits

FORMATS: dict[str, dict[str, Any]] = {f"affine-{bits}": {"bits": bits, "group_size": 32} for bits in (2, 3, 4, 5, 6, 8)}
FORMATS |= {mode: {"mode": mode} for mode in ("mxfp4", "nvfp4", "mxfp8")}
EMBEDDING = "model.decoder.embed_tokens.weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.hub(tmp_path_factory.mktemp("hub") / "source")


@pytest.mark.parametrize("name", FORMATS)
def test_self_conditioning_over_a_packed_embedding(source: Path, tmp_path: Path, name: str) -> None:
    report = converted(source, tmp_path / "packed", recipe="uniform", **FORMATS[name])
    assert report[EMBEDDING]["to"].startswith(name.split("-")[0])
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
