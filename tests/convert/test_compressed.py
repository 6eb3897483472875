"""compressed-tensors: files made by its compressors, values compared with its decompressors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dgemma.errors import UnsupportedError
from dgemma_convert import Options, preview
from dgemma_convert.readers import open_source
from tests.convert import models
from tests.convert.support import close, converted, logits

pytest.importorskip("compressed_tensors")
from tests.convert import compressed

EXPERTS = "model.decoder.layers.0.experts.gate_up_proj"
QUERY = "model.decoder.layers.1.self_attn.q_proj.weight"


@pytest.fixture(params=compressed.CASES, scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a layout, and a folder in it."""
    return request.param, compressed.write(tmp_path_factory.mktemp(request.param) / "source", request.param)


def test_values_and_labels(case: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = case
    report = converted(folder, tmp_path / "out")
    assert {report[each]["label"] for each in (EXPERTS, QUERY)} == {compressed.CASES[name][3]}
    stored, written = models.read(folder), open_source(tmp_path / "out").weights
    for canonical, path, rows, shape in (
        (QUERY, QUERY.removesuffix(".weight"), 0, written[QUERY].shape),
        (EXPERTS, EXPERTS.replace("gate_up_proj", "2.gate_proj"), 4 * models.INNER, (models.INNER, models.HIDDEN)),
    ):
        (piece,) = written[canonical].pieces
        theirs = compressed.decode(name, path, stored, shape).float().numpy()
        ours = piece.values(rows, rows + len(theirs))
        if "asymmetric" in name or "nvfp4" in name:
            assert np.abs(ours - theirs).max() <= 2e-7 * np.abs(theirs).max()
        else:
            assert np.array_equal(ours, theirs)


def test_runs_alike_on_both_backends(case: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = case
    converted(folder, tmp_path / "out")
    converted(folder, tmp_path / "plain", to="hub", dtype="fp32")
    ours, theirs = logits(tmp_path / "out", "mlx"), logits(tmp_path / "out", "cuda")
    assert close(ours, theirs, 1e-4)
    assert close(ours, logits(tmp_path / "plain", "cuda"), 1e-4)


def test_scales_of_blocks_are_refused(tmp_path: Path) -> None:
    def encode(path: str, matrix: torch.Tensor) -> models.Tensors:
        scale = torch.ones(matrix.shape[0] // 16, matrix.shape[1] // 16)
        return {f"{path}.weight": matrix.to(torch.float8_e4m3fn), f"{path}.weight_scale": scale}

    raw = models.config() | {"quantization_config": {"quant_method": "compressed-tensors"}}
    folder = models.write(tmp_path / "source", models.unfused(models.weights(), encode), raw)
    with pytest.raises(UnsupportedError, match="blocks are not supported"):
        preview(folder, Options())
