"""The step benchmark runs in every format, with the chosen kernels and with the naive twins, and adds up its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import breakdown, step_weights
from benchmarks.ops.shapes import FORMATS
from dgemma.config import LayerShape, Rope


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = (
        LayerShape("sliding_attention", 1, 32, Rope("default", 1e4)),
        LayerShape("full_attention", 1, 64, Rope("proportional", 1e6, 0.25)),
    )
    sizes: dict[str, Any] = {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64}
    sizes |= {"num_experts": 4, "top_k_experts": 2, "num_attention_heads": 2, "canvas_length": 8, "layers": layers}
    config = replace(step_weights.config(small=True), **sizes)
    monkeypatch.setattr(breakdown, "_config", lambda: config)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str) -> None:
    row: Any = breakdown.row(name, 40, 1)
    assert row["step_ms"] > 0
    assert row["kernels"]["step"] == "eager (no CUDA device)"
    assert set(row["parts_ms"]) == {*breakdown._PARTS, "linear and rest"}
    assert all(spent > 0 for spent in row["parts_ms"].values())
    assert sum(row["parts_ms"].values()) == pytest.approx(row["watched_ms"], abs=0.1)


def test_the_naive_twins() -> None:
    row: Any = breakdown.row("affine4", 40, 1, "reference")
    assert row["kernels"]["attention"] == "naive"
    assert row["step_ms"] > 0
