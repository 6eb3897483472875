"""The script for an NVIDIA machine, with an interpreter that only pretends: a part that fails costs no other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "nvidia.sh"
PRETENDER = """#!/usr/bin/env bash
case "$*" in
    *get_device_name*) echo Some-Card ;;
    *tests.cuda.checks*) echo '{"check": "'"${DGEMMA_CHECK:-}"'", "failure": "'"$FAILURE"'"}' ;;
    *"--formats $BROKEN "*) echo half a row; echo "no memory for it" >&2; exit 3 ;;
    *benchmarks.step*) echo '{"format": "'"$4"'"}' ;;
    *benchmarks.ops.all*) echo '{"op": "any"}' ;;
esac
"""


def run(folder: Path, broken: str, failure: str = "") -> tuple[subprocess.CompletedProcess[str], dict[str, list[str]]]:
    if shutil.which("timeout") is None:
        pytest.skip("needs coreutils' timeout")
    python = folder / "python"
    python.write_text(PRETENDER)
    python.chmod(0o755)
    changes = {"PYTHON": str(python), "RESULTS": str(folder / "rows"), "BROKEN": broken, "FAILURE": failure}
    done = subprocess.run(
        ["bash", str(SCRIPT)], env=os.environ | changes, capture_output=True, text=True, timeout=60, check=False
    )
    files = {path.stem.rsplit("-", 1)[1]: path.read_text().splitlines() for path in (folder / "rows").iterdir()}
    return done, files


def test_all_parts_run(tmp_path: Path) -> None:
    done, files = run(tmp_path, "none")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["check"] for line in files["checks"]] == ["step-", ""]
    assert [json.loads(line)["format"] for line in files["steps"]] == [
        "affine4",
        "nvfp4",
        "mxfp4",
        "affine8",
        "mxfp8",
        "plain",
    ]
    assert len(files["ops"]) == 1


def test_a_part_that_fails_costs_no_other(tmp_path: Path) -> None:
    done, files = run(tmp_path, "nvfp4")
    assert done.returncode == 1
    assert "no memory for it" in done.stderr
    assert len(files["steps"]) == 6
    assert len(files["ops"]) == 1


def test_a_failed_check_fails_the_script(tmp_path: Path) -> None:
    assert run(tmp_path, "none", "argmax")[0].returncode == 1


def test_the_limits_leave_it_within_eight_minutes() -> None:
    limits = [int(line.split()[1]) for line in SCRIPT.read_text().splitlines() if line.lstrip().startswith("part ")]
    assert len(limits) == 5
    assert sum(limits) + 4 * 35 <= 480
