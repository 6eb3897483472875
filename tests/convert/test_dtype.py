"""--dtype and equal formats on a source that is packed already: the codes stay, only scales are rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from dgemma.errors import UnsupportedError
from dgemma_convert import Options, convert, preview
from tests.convert import ggufs, models
from tests.convert.support import close, converted, logits

Kind = gguf.GGMLQuantizationType
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WIDE = models.config(
    hidden_size=256, intermediate_size=256, moe_intermediate_size=256, num_experts=2, head_dim=128, global_head_dim=128
)
EXPERT = "model.decoder.layers.1.experts.down_proj"
WIDER = {("bf16", "fp32"), ("fp16", "fp32")}
PAIRS = [(stored, wanted) for stored in DTYPES for wanted in DTYPES if stored != wanted]
ULP = {"bf16": 2**-8, "fp16": 2**-11}


def packed(tmp_path: Path, bits: int, dtype: str) -> Path:
    source = models.hub(tmp_path / "source")
    converted(source, tmp_path / "packed", bits=bits, group_size=32, recipe="uniform", dtype=dtype)
    return tmp_path / "packed"


def codes(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for name, value in models.read(folder).items() if value.dtype == torch.uint32}


def same_codes(one: Path, other: Path) -> bool:
    first, second = codes(one), codes(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("stored", "wanted"), PAIRS)
def test_mlx(tmp_path: Path, bits: int, stored: str, wanted: str) -> None:
    folder = packed(tmp_path, bits, stored)
    report = converted(folder, tmp_path / "out", dtype=wanted)
    assert same_codes(folder, tmp_path / "out")
    path = EXPERT + ".scales"
    before, after = models.read(folder)[path], models.read(tmp_path / "out")[path]
    assert after.dtype == DTYPES[wanted] and torch.equal(before.to(DTYPES[wanted]), after)
    if (stored, wanted) in WIDER:
        assert (report[EXPERT]["label"], report[EXPERT]["max_error"]) == ("exact", 0)
        assert report[""]["totals"]["labels"]["requantized"] == 0
    else:
        assert report[EXPERT]["label"] == "requantized"
        assert "the same codes, scales rounded" in report[EXPERT]["note"]
        assert report[EXPERT]["relative_rms_error"] < 4 * ULP[wanted]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "MXFP4"])
def test_gguf(tmp_path: Path, kind: str, dtype: str) -> None:
    path = ggufs.write(tmp_path / "m.gguf", lambda name: Kind[kind], WIDE if kind.endswith("K") else None)
    converted(path, tmp_path / "kept")
    found = converted(path, tmp_path / "out", dtype=dtype)[EXPERT]
    assert same_codes(tmp_path / "kept", tmp_path / "out")
    stored = "fp32" if kind.endswith("K") else "fp16"
    if kind == "MXFP4" or dtype == stored or (stored, dtype) in WIDER:
        assert (found["label"], found["max_error"]) == ("exact" if kind == "MXFP4" else "storage exact", 0)
    else:
        assert found["label"] == "requantized" and 0 < found["relative_rms_error"] < 8 * ULP[dtype]


def test_it_runs(tmp_path: Path) -> None:
    folder = packed(tmp_path, 4, "fp16")
    converted(folder, tmp_path / "out", dtype="bf16")
    assert close(logits(tmp_path / "out", "cuda"), logits(tmp_path / "out", "mlx"), 1e-4)


@pytest.mark.parametrize("part", ["scales", "biases"])
@pytest.mark.parametrize("verify", [False, True])
def test_scales_beyond_float16(tmp_path: Path, part: str, verify: bool) -> None:
    folder = packed(tmp_path, 4, "bf16")
    tensors = models.read(folder)
    tensors[f"{EXPERT}.{part}"][..., 0] = 1e6
    configuration = (folder / "config.json").read_bytes()
    large = models.write(tmp_path / "large", tensors, models.config())
    (large / "config.json").write_bytes(configuration)
    with pytest.raises(UnsupportedError, match="range") as error:
        convert(large, tmp_path / "out", Options(dtype="fp16"), verify=verify)
    assert error.value.remedy
    assert not list(tmp_path.glob("out*"))


SAME: dict[str, dict[str, Any]] = {
    "default": {"bits": 4},
    "affine 3-bit g32": {"bits": 3, "group_size": 32},
    "mixed": {"recipe": "mixed-4-6"},
    "all-8bit": {"recipe": "all-8bit"},
    "experts-only": {"recipe": "experts-only"},
    **{mode: {"mode": mode, "recipe": "uniform"} for mode in ("mxfp4", "mxfp8", "nvfp4")},
}


@pytest.mark.parametrize("name", SAME)
def test_the_format_it_has_already(tmp_path: Path, name: str) -> None:
    """Asked for by name, it is kept as without any flag."""
    source = models.hub(tmp_path / "source")
    converted(source, tmp_path / "packed", **SAME[name])
    report = converted(tmp_path / "packed", tmp_path / "out", **SAME[name])
    assert report[""]["totals"]["labels"] == {"exact": len(models.weights()), "storage exact": 0, "requantized": 0}
    first, second = models.read(tmp_path / "packed"), models.read(tmp_path / "out")
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_gguf_in_the_format_it_has_already(tmp_path: Path) -> None:
    path = ggufs.write(tmp_path / "m.gguf", lambda name: Kind.Q4_0)
    converted(path, tmp_path / "kept")
    report = converted(path, tmp_path / "out", bits=4, group_size=32, recipe="uniform")
    assert report[""]["totals"]["labels"]["requantized"] == 0
    assert same_codes(tmp_path / "kept", tmp_path / "out")


@pytest.mark.parametrize("dtype", [None, *DTYPES])
@pytest.mark.parametrize("stored", DTYPES)
def test_to_the_hub_layout(tmp_path: Path, stored: str, dtype: str | None) -> None:
    """Only the plain numbers are rounded, never the codes."""
    folder = packed(tmp_path, 4, stored)
    exact = converted(folder, tmp_path / "exact", to="hub", dtype="fp32")
    assert exact[""]["totals"]["labels"]["requantized"] == 0
    found = converted(folder, tmp_path / "out", to="hub", dtype=dtype)[EXPERT]
    values = models.read(tmp_path / "exact")[EXPERT]
    kind = dtype or stored
    assert torch.equal(models.read(tmp_path / "out")[EXPERT], values.to(DTYPES[kind]))
    assert found["relative_rms_error"] <= ULP.get(kind, 0)


def test_the_plan_says_so(tmp_path: Path) -> None:
    folder = packed(tmp_path, 4, "fp16")
    items = {item.weight.name: item for item in preview(folder, Options(dtype="bf16")).items}
    assert items[EXPERT].label == "requantized" and items[EXPERT].note == "the same codes, scales rounded to BF16"
