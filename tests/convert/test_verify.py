"""--verify finds whatever is ruined: any label, plain or packed, before the name is given, resumed, and finished."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from dgemma.errors import DgemmaError
from dgemma_convert import Options, conversion, convert
from tests.convert import ggufs, models
from tests.convert.children import Child, contents

EXPERT = "model.decoder.layers.1.experts.down_proj"
SCALES, CODES, BIASES = f"{EXPERT}.scales", f"{EXPERT}.weight", f"{EXPERT}.biases"
Edit = Callable[[torch.Tensor], torch.Tensor]


def hub(folder: Path) -> Path:
    return models.hub(folder / "source")


def mlx(folder: Path) -> Path:
    convert(hub(folder), folder / "packed", Options(bits=4, recipe="uniform", group_size=32, dtype="bf16"))
    return folder / "packed"


def nvfp4(folder: Path) -> Path:
    convert(hub(folder), folder / "packed", Options(mode="nvfp4", recipe="uniform"))
    return folder / "packed"


def q4_0(folder: Path) -> Path:
    return ggufs.write(folder / "m.gguf", lambda name: gguf.GGMLQuantizationType.Q4_0)


def doubled(value: torch.Tensor) -> torch.Tensor:
    return value * 2


def one_more(value: torch.Tensor) -> torch.Tensor:
    """The smallest change: the last bit of one number or code."""
    changed = value.clone()
    octets = changed.view(torch.uint8).reshape(-1)
    octets[0] ^= 1
    return changed


def infinite(value: torch.Tensor) -> torch.Tensor:
    changed = value.clone()
    changed.view(-1)[0] = float("inf")
    return changed


CASES: dict[str, tuple[Callable[[Path], Path], Options, str, str, Edit]] = {
    "exact plain": (hub, Options(), "exact", CODES, doubled),
    "exact plain, a bit": (hub, Options(), "exact", CODES, one_more),
    "exact plain, infinite": (hub, Options(), "exact", CODES, infinite),
    "exact plain, widened": (mlx, Options(to="hub", dtype="fp32"), "exact", EXPERT, one_more),
    "exact hub": (hub, Options(to="hub"), "exact", EXPERT, doubled),
    "exact packed": (mlx, Options(), "exact", SCALES, doubled),
    "exact packed, a code": (mlx, Options(), "exact", CODES, one_more),
    "exact packed, a bias": (mlx, Options(), "exact", BIASES, one_more),
    "exact packed, infinite": (mlx, Options(), "exact", SCALES, infinite),
    "exact packed, widened": (mlx, Options(dtype="fp32"), "exact", SCALES, doubled),
    "exact nvfp4": (nvfp4, Options(), "exact", SCALES, one_more),
    "storage exact": (q4_0, Options(), "storage exact", SCALES, doubled),
    "storage exact, a scale": (q4_0, Options(), "storage exact", SCALES, one_more),
    "storage exact, a code": (q4_0, Options(), "storage exact", CODES, one_more),
    "storage exact, widened": (q4_0, Options(dtype="fp32"), "storage exact", SCALES, doubled),
    "requantized plain": (hub, Options(dtype="bf16"), "requantized", CODES, doubled),
    "requantized packed": (hub, Options(bits=4), "requantized", SCALES, doubled),
    "requantized packed, zero": (hub, Options(bits=4), "requantized", SCALES, torch.zeros_like),
    "requantized packed, biases": (hub, Options(bits=4), "requantized", BIASES, doubled),
    "requantized packed, infinite": (hub, Options(bits=4), "requantized", SCALES, infinite),
    "requantized nvfp4": (hub, Options(mode="nvfp4"), "requantized", SCALES, one_more),
    "requantized scales": (mlx, Options(dtype="fp16"), "requantized", SCALES, doubled),
    "requantized, back to plain": (mlx, Options(to="hub", dtype="bf16"), "requantized", EXPERT, doubled),
}


def ruin(folder: Path, name: str, edit: Edit) -> None:
    shard = folder / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(shard).items()}
    tensors[name] = edit(tensors[name]).contiguous()
    save_file(tensors, folder / "new", {"format": "mlx"})
    (folder / "new").replace(shard)


@pytest.mark.parametrize("when", ["fresh", "resumed", "finished"])
@pytest.mark.parametrize("case", CASES)
def test_ruined(tmp_path: Path, case: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, options, label, name, edit = CASES[case]
    source, target = make(tmp_path), tmp_path / "out"
    report = convert(source, tmp_path / "whole", options, verify=True)
    assert next(each for each in report["tensors"] if each["name"] == EXPERT)["label"] == label
    if when == "finished":
        convert(source, target, options)
        ruin(target, name, edit)
        before = contents(target)
    else:
        original = conversion._describe

        def ruining(folder: Path, *rest: Any) -> None:
            original(folder, *rest)
            ruin(folder, name, edit)

        if when == "resumed":
            with Child(source, target, options, held=report["totals"]["bytes"] * 9 // 10) as child:
                child.reached()
                child.kill()
        monkeypatch.setattr(conversion, "_describe", ruining)
    with pytest.raises(DgemmaError) as error:
        convert(source, target, options, verify=True, resume=when != "fresh")
    if edit is not infinite:
        assert EXPERT in str(error.value)
    if when == "finished":
        assert contents(target) == before
    else:
        assert not target.exists() and not target.with_name("out.partial").exists()


@pytest.mark.parametrize("case", ["exact packed", "storage exact", "requantized packed", "requantized scales"])
def test_whole_results_pass(tmp_path: Path, case: str) -> None:
    make, options, *_ = CASES[case]
    source = make(tmp_path)
    convert(source, tmp_path / "verified", options, verify=True)
    convert(source, tmp_path / "out", options)
    assert convert(source, tmp_path / "out", options, verify=True, resume=True)["verified"]
    assert contents(tmp_path / "out") == contents(tmp_path / "verified")
    assert convert(source, tmp_path / "out", options, verify=True, resume=True)["verified"]


@pytest.mark.parametrize(
    "tensors", [[], None, [1], [{"name": EXPERT}], [{"name": EXPERT, "max_error": "none"}]], ids=str
)
def test_a_report_that_says_nothing(tmp_path: Path, tensors: object) -> None:
    source = hub(tmp_path)
    convert(source, tmp_path / "out", Options(bits=4))
    path = tmp_path / "out" / "dgemma_convert.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tensors": tensors}))
    with pytest.raises(DgemmaError):
        convert(source, tmp_path / "out", Options(bits=4), verify=True, resume=True)


@pytest.mark.parametrize("name", [CODES, "model.decoder.norm.weight"])
def test_a_tensor_in_another_format(tmp_path: Path, name: str) -> None:
    source = hub(tmp_path)
    convert(source, tmp_path / "out", Options())
    ruin(tmp_path / "out", name, lambda value: value.half().float().bfloat16())
    with pytest.raises(DgemmaError, match="is not there as F32"):
        convert(source, tmp_path / "out", Options(), verify=True, resume=True)
