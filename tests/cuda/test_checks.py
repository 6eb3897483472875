"""Triton kernels against their twins under the interpreter; see `checks`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def test_kernels_equal_their_twins() -> None:
    path = f"{ROOT / 'common'}:{ROOT / 'convert'}"
    command = [sys.executable, "-m", "tests.cuda.checks"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(rows) > 20
    assert [row for row in rows if row["failure"]] == []
