"""Every operation benchmark runs on this machine in its small form; what they time is not looked at."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.ops.all import NAMES
from benchmarks.ops.case import Meter, rows
from benchmarks.ops.shapes import Sizes

TINY = Sizes(rows=16, hidden=64, vocab=1500, experts=4, top_k=2, inner=64, dense=64, heads=8, context=24)


@pytest.mark.parametrize("package", ("benchmarks.ops", "benchmarks.ops.mlx"))
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_runs(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core" if package.endswith("mlx") else "torch")
    module = importlib.import_module(f"{package}.{name}")
    measure = importlib.import_module(f"{package}.measure")
    monkeypatch.setattr(module, "sizes", lambda: TINY)
    meter = Meter("any", "any", lambda call, repeats: measure.seconds(call, 1), 1.0, 1.0)
    found = list(rows(module.cases(), meter))
    assert len({(row["op"], row["variant"]) for row in found}) == len(found) >= 2
    assert all(float(str(row["ms"])) > 0 for row in found)
    peer = "mlx-vlm" if package.endswith("mlx") else "transformers"
    assert name not in ("vocab", "moe") or any(peer in str(row["variant"]) for row in found)
