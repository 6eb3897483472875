"""modelopt NVFP4, byte by byte after its published layout: experts one by one, everything else plain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dgemma_convert.readers import open_source
from tests.convert import modelopts, models
from tests.convert.support import close, converted, logits

DOWN = "model.decoder.layers.1.experts.down_proj"
GATE_UP = "model.decoder.layers.0.experts.gate_up_proj"
NORM = "model.decoder.norm.weight"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modelopt") / "source"
    return modelopts.write(folder)


def test_bytes_go_over_unchanged(source: Path, tmp_path: Path) -> None:
    report = converted(source, tmp_path / "out")
    assert {report[name]["label"] for name in (DOWN, GATE_UP, NORM)} == {"exact"}
    stored, written = models.read(source), models.read(tmp_path / "out")
    for expert in range(models.EXPERTS):
        part = f"{DOWN.replace('.down_proj', '')}.{expert}.down_proj"
        assert torch.equal(written[f"{DOWN}.weight"][expert].view(torch.uint8), stored[f"{part}.weight"])
        assert torch.equal(written[f"{DOWN}.scales"][expert], stored[f"{part}.weight_scale"].view(torch.uint8))
        assert (written[f"{DOWN}.weight_scale_2"][expert] == stored[f"{part}.weight_scale_2"]).all()
    halves = written[f"{GATE_UP}.weight_scale_2"].unflatten(1, (2, models.INNER))
    assert torch.equal(halves.amin(-1), halves.amax(-1))
    assert (halves[:, 0, 0] != halves[:, 1, 0]).any()
    assert report[""]["dropped"] == [
        f"model.decoder.layers.*.experts.*.{each}_proj.input_scale" for each in ("down", "gate", "up")
    ]


def test_values(source: Path, tmp_path: Path) -> None:
    converted(source, tmp_path / "out")
    (piece,) = open_source(tmp_path / "out").weights[DOWN].pieces
    expected = torch.cat(
        [modelopts.decode(models.read(source), f"{DOWN.replace('.down_proj', '')}.{e}.down_proj") for e in range(4)]
    )
    assert np.array_equal(piece.values(0, piece.rows), expected.numpy())


def test_runs_on_both_backends_as_unpacked(source: Path, tmp_path: Path) -> None:
    converted(source, tmp_path / "out")
    converted(source, tmp_path / "plain", to="hub", dtype="fp32")
    runs = [logits(tmp_path / "out", "mlx"), logits(tmp_path / "out", "cuda"), logits(tmp_path / "plain", "cuda")]
    assert close(runs[0], runs[1], 1e-4)
    assert close(runs[0], runs[2], 1e-4)


def test_again_to_mlx_is_a_copy(source: Path, tmp_path: Path) -> None:
    converted(source, tmp_path / "out")
    report = converted(tmp_path / "out", tmp_path / "again", mode="nvfp4", recipe="experts-only")
    assert report[DOWN]["label"] == "exact"
    first, second = models.read(tmp_path / "out"), models.read(tmp_path / "again")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
