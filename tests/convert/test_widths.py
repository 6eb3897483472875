"""Rows that are no whole number of the target's groups: in every packed format the values stay what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dgemma.errors import CheckpointError
from dgemma_convert import Options, convert
from dgemma_convert.readers import open_source
from tests.convert import modelopts, models
from tests.convert.support import converted

pytest.importorskip("compressed_tensors")
from tests.convert import compressed

PROBE = "model.encoder.vision_tower.probe"
WIDTHS = (1, 4, 8, 16, 24, 40, 48, 80, 112, 4304)
GROUPED = {"nvfp4": 16, "int4": 32, "int4-asymmetric": 32, "int8": 32}
AMBIGUOUS = {case for case in compressed.CASES if case.startswith(("int4", "int8")) and "plain" not in case}
SOUND = [
    (case, width)
    for case in compressed.CASES
    for width in WIDTHS
    if width % GROUPED.get(case, 1) == 0 and not (case in AMBIGUOUS and width <= 4)
]


def matrix(width: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(width).normal(size=(8, width)).astype(np.float32))


def folder(path: Path, method: str, probe: models.Tensors) -> Path:
    raw = models.config() | {"quantization_config": {"quant_method": method}}
    return models.write(path, models.weights() | probe, raw)


def check(source: Path, target: Path, expected: torch.Tensor, ulps: float = 0) -> None:
    """Converted with verification, read back, and equal to `expected`; what is called exact is so."""
    report = converted(source, target)[f"{PROBE}.weight"]
    (piece,) = open_source(target).weights[f"{PROBE}.weight"].pieces
    written, wanted = piece.values(0, 8), expected.float().numpy()
    assert np.abs(written - wanted).max() <= ulps * np.abs(wanted).max()
    assert report["label"] in ("exact", "storage exact")
    assert report["label"] == "storage exact" or report["max_error"] == 0
    assert report["to"] != "F32" or "divides" in report["note"]


@pytest.mark.parametrize(("case", "width"), SOUND)
def test_compressed_tensors(tmp_path: Path, case: str, width: int) -> None:
    probe = compressed.encode(case, PROBE, matrix(width))
    wanted = compressed.decode(case, PROBE, probe, (8, width))
    ulps = 2e-7 if "asymmetric" in case or case == "nvfp4" else 0
    check(folder(tmp_path / "source", "compressed-tensors", probe), tmp_path / "out", wanted, ulps)


@pytest.mark.parametrize("width", WIDTHS)
def test_fp8_of_modelopt(tmp_path: Path, width: int) -> None:
    codes = (matrix(width) * 100).to(torch.float8_e4m3fn)
    scale = torch.tensor(0.0123)
    source = folder(tmp_path / "source", "modelopt", {f"{PROBE}.weight": codes, f"{PROBE}.weight_scale": scale})
    check(source, tmp_path / "out", codes.float() * scale)


@pytest.mark.parametrize("width", [16, 48, 80, 4304])
def test_nvfp4_of_modelopt(tmp_path: Path, width: int) -> None:
    probe = modelopts.encode(PROBE, matrix(width))
    check(folder(tmp_path / "source", "modelopt", probe), tmp_path / "out", modelopts.decode(probe, PROBE))


@pytest.mark.parametrize("width", [8, 24, 4300])
def test_nvfp4_of_half_groups_is_refused(tmp_path: Path, width: int) -> None:
    groups = width // 16
    probe = {
        f"{PROBE}.weight": torch.zeros(8, width // 2, dtype=torch.uint8),
        f"{PROBE}.weight_scale": torch.ones(8, groups).to(torch.float8_e4m3fn),
        f"{PROBE}.weight_scale_2": torch.tensor(1.0),
    }
    source = folder(tmp_path / "source", "modelopt", probe)
    with pytest.raises(CheckpointError, match=f"{PROBE}.*groups of 16|{PROBE}.*empty"):
        convert(source, tmp_path / "out", Options())


def test_groups_that_end_in_the_middle_are_refused(tmp_path: Path) -> None:
    """Three groups of 32 declared over 90 columns are not three groups of 30."""
    probe = {
        f"{PROBE}.weight_packed": torch.zeros(8, 12, dtype=torch.int32),
        f"{PROBE}.weight_scale": torch.ones(8, 3),
        f"{PROBE}.weight_shape": torch.tensor([8, 90]),
    }
    groups = {"g": {"weights": {"num_bits": 4, "group_size": 32}}}
    raw = models.config() | {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}
    source = models.write(tmp_path / "source", models.weights() | probe, raw)
    with pytest.raises(CheckpointError, match=f"{PROBE}.*groups"):
        convert(source, tmp_path / "out", Options())
