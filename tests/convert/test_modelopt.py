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


def fp8(path: str, matrix: torch.Tensor) -> models.Tensors:
    scale = matrix.abs().max() / 448
    found = {"weight": (matrix / scale).to(torch.float8_e4m3fn), "weight_scale": scale, "input_scale": scale}
    return {f"{path}.{part}": value for part, value in found.items()}


def test_fp8(tmp_path: Path) -> None:
    """FP8 with a scale a tensor: the same bytes, a scale of 1 and the multiplier; both backends run it as unpacked."""
    raw = models.config() | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    folder = models.write(tmp_path / "source", models.unfused(models.weights(), fp8, dense=True), raw)
    report = converted(folder, tmp_path / "out")
    query = "model.decoder.layers.1.self_attn.q_proj"
    assert {(report[name]["to"], report[name]["label"]) for name in (DOWN, GATE_UP, f"{query}.weight")} == {
        ("mxfp8", "exact")
    }
    stored, written = models.read(folder), models.read(tmp_path / "out")
    assert torch.equal(written[f"{query}.weight"].view(torch.uint8), stored[f"{query}.weight"].view(torch.uint8))
    assert (written[f"{query}.scales"] == 127).all()
    assert (written[f"{query}.weight_scale_2"] == stored[f"{query}.weight_scale"]).all()
    (piece,) = open_source(tmp_path / "out").weights[f"{query}.weight"].pieces
    expected = stored[f"{query}.weight"].float() * stored[f"{query}.weight_scale"]
    assert np.array_equal(piece.values(0, piece.rows), expected.numpy())
    converted(folder, tmp_path / "plain", to="hub", dtype="fp32")
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
