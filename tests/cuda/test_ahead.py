"""Kernels compile for every card: no spills, shared memory that fits, the tensor cores they should use.

All of them on all cards take minutes: set DGEMMA_ALL_CARDS=1 for that. Otherwise a few, on one card.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EVERYTHING = os.environ.get("DGEMMA_ALL_CARDS") == "1"
ESSENTIAL = ("moe gate-up affine4", "linear nvfp4", "attention canvas 512", "vocab scan")
ROOT = Path(__file__).parents[2]
SHARED_KB = {80: 163, 89: 99, 90: 227, 120: 99}
SPILLING: tuple[str, ...] = ()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]


@pytest.fixture(scope="module", params=sorted(SHARED_KB) if EVERYTHING else [90])
def rows(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'common'}:{ROOT / 'convert'}", "TRITON_DEFAULT_FP_FUSION": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.cuda.ahead", "--arch", str(request.param)]
    command += [] if EVERYTHING else ["--kernel", *ESSENTIAL]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_no_spills(rows: list[dict[str, Any]]) -> None:
    assert [row for row in rows if row["spill_bytes"] and row["kernel"] not in SPILLING] == []


def test_shared_memory(rows: list[dict[str, Any]]) -> None:
    assert [row for row in rows if row["shared_kb"] > SHARED_KB[row["arch"]]] == []


def test_tensor_cores(rows: list[dict[str, Any]]) -> None:
    products = [
        row
        for row in rows
        if row["kernel"].startswith(("moe gate", "moe down", "linear", "attention canvas", "attention causal"))
    ]
    assert products
    assert [row for row in products if not row["mma"]] == []
    wide = [row for row in products if row["arch"] == 90 and "512" not in row["kernel"]]
    assert [row for row in wide if row["mma"] != "wgmma"] == []
