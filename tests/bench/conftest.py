"""What the benchmark's tests share: the command line with a fake engine, in this process or with workers."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.bench import engines, remote
from dgemma.cli import app
from tests.bench.fake_engine import ENTRY, NAME, WORKER

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Run:
    paths = [str(ROOT / name) for name in (".", "common", "tests")]
    monkeypatch.setitem(engines.REGISTRY, NAME, ENTRY)
    monkeypatch.setattr(remote, "COMMAND", (sys.executable, "-c", WORKER.format(paths=paths)))
    return lambda *arguments: CliRunner().invoke(app, ["bench", *map(str, arguments)])
