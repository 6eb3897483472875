"""Numbers that are none, and auxiliary tensors of another type or shape: refused by name in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dgemma.errors import CheckpointError, UnsupportedError
from dgemma_convert import Options, convert, preview
from tests.convert import models
from tests.convert.support import converted

pytest.importorskip("compressed_tensors")
from tests.convert import compressed, modelopts

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
NAN, INF = float("nan"), float("inf")
PROBE = "model.encoder.vision_tower.probe"
MATRIX = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
FP8 = {f"{PROBE}.weight": MATRIX.to(torch.float8_e4m3fn), f"{PROBE}.weight_scale": torch.tensor(0.5)}
STORED: dict[str, tuple[str, models.Tensors]] = {
    **{case: ("compressed-tensors", compressed.encode(case, PROBE, MATRIX)) for case in compressed.CASES},
    "modelopt-nvfp4": ("modelopt", modelopts.encode(PROBE, MATRIX)),
    "modelopt-fp8": ("modelopt", FP8),
}
ZERO_POINTS = {"int4-asymmetric"}
SCALES = [
    (case, part, value)
    for case, (_, tensors) in STORED.items()
    for part in ("weight_scale", "weight_scale_2", "weight_global_scale")
    if f"{PROBE}.{part}" in tensors
    for value in (NAN, INF)
]
FACTORS = [("nvfp4", "weight_global_scale", value) for value in (0.0, 1e-40, NAN, INF)]
FACTORS += [("modelopt-nvfp4", "weight_scale_2", 1e38), ("modelopt-fp8", "weight_scale", 1e38)]


def folder(path: Path, case: str, **changes: torch.Tensor) -> Path:
    method, tensors = STORED[case]
    raw = models.config() | {"quantization_config": {"quant_method": method}}
    stored = models.weights() | tensors | {f"{PROBE}.{part}": value for part, value in changes.items()}
    return models.write(path, stored, raw)


@pytest.mark.parametrize("to", ["mlx", "hub"])
@pytest.mark.parametrize(("case", "part", "value"), [*SCALES, *FACTORS])
def test_scales(tmp_path: Path, case: str, part: str, value: float, to: Any) -> None:
    scales = STORED[case][1][f"{PROBE}.{part}"]
    if scales.dtype == torch.float8_e4m3fn:
        value = NAN
    broken = scales.float().clone()
    broken.view(-1)[-1] = value
    source = folder(tmp_path / "source", case, **{part: broken.to(scales.dtype)})
    with pytest.raises(CheckpointError, match=f"^{PROBE}.weight: .*(scale|weight_scale_2).*(not finite|not a number)"):
        convert(source, tmp_path / "out", Options(to=to))


@pytest.mark.parametrize("options", [{}, {"to": "hub", "dtype": "bf16"}, {"recipe": "uniform", "bits": 4}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [NAN, -NAN])
def test_weights(tmp_path: Path, options: dict[str, Any], dtype: torch.dtype, value: float) -> None:
    tensors = models.weights()
    name = "model.decoder.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name].to(dtype)
    tensors[name][3, 5] = value
    source = models.hub(tmp_path / "source", tensors)
    with pytest.raises(CheckpointError, match=f"^{name}: .*NaN"):
        convert(source, tmp_path / "out", Options(**options))


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_codes_of_fp8(tmp_path: Path, byte: int) -> None:
    codes = FP8[f"{PROBE}.weight"].view(torch.uint8).clone()
    codes[9, 9] = byte
    source = folder(tmp_path / "source", "modelopt-fp8", weight=codes.view(torch.float8_e4m3fn))
    with pytest.raises(CheckpointError, match=f"^{PROBE}.weight: .*NaN"):
        convert(source, tmp_path / "out", Options())


def test_codes_of_mxfp8(tmp_path: Path) -> None:
    convert(models.hub(tmp_path / "plain"), tmp_path / "source", Options(mode="mxfp8"))
    tensors, name = models.read(tmp_path / "source"), "model.decoder.layers.1.experts.down_proj"
    tensors[f"{name}.weight"].view(torch.uint8)[1, 2, 3] = 0x7F
    source = models.write(tmp_path / "broken", tensors, json.loads((tmp_path / "source" / "config.json").read_text()))
    with pytest.raises(CheckpointError, match=f"^{name}: .*NaN"):
        convert(source, tmp_path / "out", Options())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_infinite_bounds_are_copied(tmp_path: Path, dtype: torch.dtype) -> None:
    """The clipping bounds of a vision tower may be infinite."""
    bounds = {f"model.encoder.vision_tower.{n}": torch.tensor(v, dtype=dtype) for n, v in (("a", INF), ("b", -INF))}
    report = converted(models.hub(tmp_path / "source", models.weights() | bounds), tmp_path / "out")
    assert {report[name]["label"] for name in bounds} == {"exact"}
    assert all(torch.equal(models.read(tmp_path / "out")[name], value) for name, value in bounds.items())
    json.dumps(report[""], allow_nan=False)


@pytest.mark.parametrize(
    "wanted", [{"dtype": "bf16"}, {"dtype": "fp32", "bits": 4}, {"dtype": "fp16", "to": "hub"}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_infinite_bounds_in_another_type(tmp_path: Path, dtype: torch.dtype, wanted: dict[str, Any]) -> None:
    bounds = {f"model.encoder.vision_tower.{n}": torch.tensor(v, dtype=dtype) for n, v in (("a", INF), ("b", -INF))}
    report = converted(models.hub(tmp_path / "source", models.weights() | bounds), tmp_path / "out", **wanted)
    found = models.read(tmp_path / "out")
    assert all(found[name].item() == value.item() for name, value in bounds.items())
    json.dumps(report[""], allow_nan=False)


def wrong(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensor in other types and shapes."""
    listed = tensor.reshape(1) if not tensor.ndim else tensor
    raw = listed.contiguous().view(torch.uint8)
    return {
        "bytes": raw.reshape(-1),
        "integers": torch.ones(tensor.shape, dtype=torch.int16),
        "double": torch.ones(tensor.shape, dtype=torch.float64),
        "twice": torch.stack([raw, raw]).view(tensor.dtype),
        "three axes": listed.reshape(1, *listed.shape, 1, 1),
    }


PARTS = [
    (case, name.rpartition(".")[2], how)
    for case, (_, tensors) in STORED.items()
    for name in tensors
    if "input" not in name
    for how in wrong(torch.ones(2, 2))
]


@pytest.mark.parametrize(("case", "part", "how"), PARTS)
def test_another_type_or_shape(tmp_path: Path, case: str, part: str, how: str) -> None:
    changed = wrong(STORED[case][1][f"{PROBE}.{part}"])[how]
    source = folder(tmp_path / "source", case, **{part: changed})
    with pytest.raises(UnsupportedError, match=PROBE):
        preview(source, Options())


@pytest.mark.parametrize("case", STORED)
@pytest.mark.parametrize("part", ["weight_g_idx", "weight_zero_point", "weight_scale_2", "weight_global_scale"])
def test_parts_of_other_formats(tmp_path: Path, case: str, part: str) -> None:
    """A tensor that would go unread is refused, a zero point of another type too."""
    if f"{PROBE}.{part}" in STORED[case][1]:
        pytest.skip("it belongs there")
    source = folder(tmp_path / "source", case, **{part: torch.ones(64, 2)})
    with pytest.raises(UnsupportedError, match=f"{PROBE}.*(g_idx|zero_point|scale|does not know)"):
        preview(source, Options())


def test_zero_points_of_bytes_beside_packed_codes(tmp_path: Path) -> None:
    packed = STORED["int4-asymmetric"][1][f"{PROBE}.weight_zero_point"]
    source = folder(
        tmp_path / "source", "int4-asymmetric", weight_zero_point=torch.ones(packed.shape, dtype=torch.int8)
    )
    with pytest.raises(CheckpointError, match=f"{PROBE}.weight_zero_point is I8 .* instead of I32"):
        preview(source, Options())
