"""What is written loads elsewhere: the MLX layout strictly in mlx-vlm, the hub layout in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dgemma_convert.readers import open_source
from tests.convert import modelopts, models
from tests.convert.support import close, converted, ids, logits

WAYS = {
    "plain": {},
    "affine-4": {"bits": 4},
    "nvfp4": {"mode": "nvfp4", "recipe": "uniform"},
    "mixed": {"recipe": "mixed-4-6"},
}


@pytest.mark.parametrize("way", WAYS)
def test_mlx_vlm_loads_the_mlx_layout_strictly(source: Path, tmp_path: Path, way: str) -> None:
    converted(source, tmp_path / "out", **WAYS[way])
    assert np.abs(theirs(tmp_path / "out") - logits(tmp_path / "out", "mlx", 1)[0]).max() < 2e-3


def test_mlx_vlm_runs_multipliers_of_nvfp4(tmp_path: Path) -> None:
    raw = models.config() | {"quantization_config": {"quant_method": "modelopt"}}
    models.write(tmp_path / "source", models.unfused(models.weights(), modelopts.encode), raw)
    converted(tmp_path / "source", tmp_path / "out")
    assert np.abs(theirs(tmp_path / "out") - logits(tmp_path / "out", "mlx", 1)[0]).max() < 2e-3


def test_transformers_loads_the_hub_layout(tmp_path: Path) -> None:
    from transformers import DiffusionGemmaForBlockDiffusion

    from tests.parity import tiny

    original = tiny.write(tmp_path / "original")
    converted(original, tmp_path / "mlx", mode="mxfp8", recipe="uniform")
    converted(tmp_path / "mlx", tmp_path / "hub", to="hub")
    model, info = DiffusionGemmaForBlockDiffusion.from_pretrained(tmp_path / "hub", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    packed = open_source(tmp_path / "mlx").weights
    loaded = model.state_dict()
    for name, weight in packed.items():
        values = np.concatenate([run.piece.values(run.first, run.stop) for run in weight.runs(1 << 20)])
        assert np.array_equal(loaded[name].float().numpy().reshape(values.shape), values), name
    prompt, canvas = (torch.from_numpy(each.astype(np.int64))[None] for each in (ids(30, 0), ids(16, 1)))
    with torch.no_grad():
        theirs = model.float()(input_ids=prompt, decoder_input_ids=canvas).logits[0].numpy()
    assert np.abs(theirs - logits(tmp_path / "mlx", "cuda", 1)[0]).max() < 2e-4


def test_there_and_back(source: Path, tmp_path: Path) -> None:
    """bf16 -> nvfp4 -> bf16 has exactly the values of nvfp4, and runs as it."""
    mx = pytest.importorskip("mlx.core")
    tensors = models.weights(dtype=torch.bfloat16)
    models.write(tmp_path / "source", tensors, models.config() | {"dtype": "bfloat16"})
    converted(tmp_path / "source", tmp_path / "mlx", mode="nvfp4", recipe="uniform")
    report = converted(tmp_path / "mlx", tmp_path / "back", to="hub")
    assert report[""]["totals"]["labels"]["requantized"] == 0
    back = models.read(tmp_path / "back")
    assert {name: value.dtype for name, value in back.items()} == {n: torch.bfloat16 for n in tensors}
    name = "model.decoder.layers.1.mlp.up_proj.weight"
    parts = mx.quantize(mx.array(tensors[name].float().numpy()), mode="nvfp4")
    expected = np.array(mx.dequantize(*parts, mode="nvfp4", dtype=mx.float32))
    assert np.array_equal(back[name].float().numpy(), expected)
    assert close(logits(tmp_path / "mlx", "cuda"), logits(tmp_path / "back", "cuda"), 1e-4)


def test_files_go_along(source: Path, tmp_path: Path) -> None:
    report = converted(source, tmp_path / "out", bits=4)
    for name in ("generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "affine 4-bit g64" in card
    assert "base_model" not in card
    assert json.loads((tmp_path / "out" / "dgemma_convert.json").read_text()) == report[""]


def test_shards_and_index(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgemma_convert.layout.lay_out.__defaults__", (100_000,))
    converted(source, tmp_path / "out")
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 2
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == shards
    assert close(logits(source, "cuda"), logits(tmp_path / "out", "cuda"), 1e-6)


def theirs(folder: Path) -> np.ndarray:
    mx = pytest.importorskip("mlx.core")
    model = pytest.importorskip("mlx_vlm.utils").load_model(folder)
    cache = model.make_cache()
    output = model(input_ids=mx.array(ids(30, 0))[None], canvas_ids=mx.array(ids(16, 1))[None], cache=cache)
    return np.array(output.logits.astype(mx.float32))[0]
