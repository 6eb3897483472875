"""The examples run, and are short."""

import os
import runpy
from pathlib import Path

import pytest

from dgemma.hub import DEMO, locate, missing_file

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
DEMO_FOLDER = Path(__file__).parents[2] / "common" / "dgemma" / "demo"


@pytest.fixture(autouse=True)
def small_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(folder) if missing_file(DEMO_FOLDER) else str(locate(DEMO).folder)
    monkeypatch.setenv("DGEMMA_MODEL", os.environ.get("DGEMMA_MODEL", model))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_there_are_six() -> None:
    assert len(EXAMPLES) >= 6
