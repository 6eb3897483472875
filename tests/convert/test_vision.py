"""The vision part goes over as it is, what is no floating-point number included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dgemma.errors import UnsupportedError
from dgemma_convert import Options, preview
from tests.convert import models
from tests.convert.support import converted, logits

TOWER = "model.encoder.vision_tower."
INDICES = {
    "embeddings.position_ids": torch.arange(9)[None] - (1 << 60),
    "embeddings.mask": torch.tensor([[True, False, True], [False, True, True]]),
    "norm.num_batches_tracked": torch.tensor(1 << 40),
    "patch.weight": torch.randn(5, 3),
}
CHANGES: list[dict[str, Any]] = [{}, {"to": "hub"}, {"bits": 4}, {"dtype": "bf16"}, {"to": "hub", "dtype": "fp16"}]


def described(method: str | None) -> dict[str, Any]:
    """config.json of a model with a vision part, stored by `method`."""
    raw = models.config() | {"vision_config": {"hidden_size": 3}}
    return raw if method is None else raw | {"quantization_config": {"quant_method": method}}


@pytest.mark.parametrize("method", [None, "modelopt", "compressed-tensors", "mlx"])
@pytest.mark.parametrize("options", CHANGES, ids=str)
def test_positions_and_masks(tmp_path: Path, method: str | None, options: dict[str, Any]) -> None:
    vision = {TOWER + name: value for name, value in INDICES.items()}
    raw = described(method)
    if method == "mlx":
        raw["quantization_config"] |= {"bits": 4, "group_size": 32}
    source = models.write(tmp_path / "source", models.weights() | vision, raw)
    report = converted(source, tmp_path / "out", **options)
    written = models.read(tmp_path / "out")
    for name, value in vision.items():
        if not value.is_floating_point():
            assert written[name].dtype == value.dtype
            assert torch.equal(written[name], value)
            assert (report[name]["label"], report[name]["from"]) == ("exact", report[name]["to"])
    for backend in ("cuda", "mlx"):
        assert logits(tmp_path / "out", backend, 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_in_the_text_part_they_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    name = "model.decoder.norm.weight"
    tensors = models.weights()
    source = models.hub(tmp_path / "source", tensors | {name: tensors[name].to(dtype)})
    with pytest.raises(UnsupportedError, match="does not explain"):
        preview(source, Options())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.float8_e4m3fn])
def test_codes_without_an_explanation_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    codes = {TOWER + "patch.weight": torch.ones(4, 4).to(dtype)}
    source = models.hub(tmp_path / "source", models.weights() | codes, described(None))
    with pytest.raises(UnsupportedError, match="does not explain"):
        preview(source, Options())
