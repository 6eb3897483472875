"""`dgemma convert`: what goes where, exit codes, the dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dgemma.cli import app

RUN = CliRunner()


def test_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    result = RUN.invoke(app, ["convert", str(source), str(tmp_path / "out"), "--bits", "4", "--dry-run"])
    assert result.exit_code == 0
    assert "model.decoder.layers.*.experts.down_proj" in result.stdout
    assert "groups of 32: 64 does not divide 32" in result.stdout
    assert "Memory with 8192 tokens of context: MLX" in result.stdout
    assert result.stderr == ""
    assert not list(tmp_path.iterdir())


def test_dry_run_as_json(source: Path, tmp_path: Path) -> None:
    result = RUN.invoke(
        app, ["convert", str(source), str(tmp_path / "out"), "--recipe", "all-8bit", "--dry-run", "--json"]
    )
    plan = json.loads(result.stdout)
    assert plan["schema"] == 1
    assert set(plan["needs_bytes"]) == {"mlx", "cuda"}
    assert plan["totals"]["labels"]["requantized"] > 0


def test_the_report(source: Path, tmp_path: Path) -> None:
    result = RUN.invoke(app, ["convert", str(source), str(tmp_path / "out"), "--mode", "nvfp4", "--verify", "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert report["verified"]
    tensor = next(each for each in report["tensors"] if each["name"].endswith("1.experts.down_proj"))
    assert tensor["label"] == "requantized"
    assert 0 < tensor["rms_error"] < tensor["max_error"]
    assert tensor["bits_per_weight"] == 4.5


def test_people_read_standard_error(source: Path, tmp_path: Path) -> None:
    result = RUN.invoke(app, ["convert", str(source), str(tmp_path / "out"), "--bits", "8"])
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "not verified" in result.stderr
    assert "of the text bytes" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--to", "hub", "--bits", "4"], 2), (["--recipe", "best"], 2), (["--bits", "9"], 2), (["--mode", "fp4"], 2)],
    ids=str,
)
def test_wrong_usage(source: Path, tmp_path: Path, arguments: list[str], code: int) -> None:
    assert RUN.invoke(app, ["convert", str(source), str(tmp_path / "out"), *arguments]).exit_code == code
    assert not list(tmp_path.iterdir())


def test_errors_have_their_codes(source: Path, tmp_path: Path) -> None:
    missing = RUN.invoke(app, ["convert", str(tmp_path / "nowhere"), str(tmp_path / "out")])
    assert missing.exit_code == 3
    assert RUN.invoke(app, ["convert", str(source), str(source)]).exit_code == 2
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    broken = RUN.invoke(app, ["convert", str(tmp_path / "m.gguf"), str(tmp_path / "out")])
    assert broken.exit_code == 4
    assert broken.stderr.count("\n") == 1
