"""`--trace` and `dgemma trace` in this process, on a scripted backend."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.backend import REGISTRY
from dgemma.cli import app
from scripted_backend import ENTRY, NAME

Run = Callable[..., Result]
TEXT = "a<b\nc" * 10


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)
    (folder / "script.txt").write_text(TEXT)

    def invoke(*arguments: str) -> Result:
        model = ["-m", str(folder), "--backend", NAME] if arguments[0] == "generate" else []
        return CliRunner().invoke(app, [*arguments, *model])

    return invoke


def test_tracing_changes_nothing(run: Run, tmp_path: Path) -> None:
    plain, traced = (
        json.loads(run("generate", "hi", "--json", "--seed", "3", *extra).stdout)
        for extra in ([], ["--trace", str(tmp_path / "t")])
    )
    assert plain["tokens"] == traced["tokens"] and plain["text"] == traced["text"] == TEXT
    header, *lines = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    assert (header["format"], header["version"], header["seed"]) == ("dgemma-trace", 1, 3)
    assert header["settings"]["mode"] == "diffusion" and lines[-1]["reason"] == "stop"
    assert sum(len(line["b"]) for line in lines if "b" in line) == len(traced["tokens"])


def test_show_stats_html(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    run("generate", "hi", "--trace", path)
    shown = run("trace", "show", path)
    assert shown.exit_code == 0 and "block 1 · step 1/8" in shown.stdout and "a<b⏎c" in shown.stdout
    found = json.loads(run("trace", "stats", path, "--json").stdout)
    assert found["schema"] == 1 and found["canvases"] == 4 and found["revisions"] == 0
    assert "Kendall tau-b" in run("trace", "stats", path).stdout
    assert run("trace", "html", path, "-o", str(tmp_path / "p.html")).exit_code == 0
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("command", [["show"], ["stats"], ["html", "-o", "p.html"]])
def test_what_is_not_a_trace(run: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "t").write_text("hello")
    result = run("trace", command[0], str(tmp_path / "t"), *command[1:])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_a_trace_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    result = run("generate", "hi", "--trace", str(tmp_path / "no" / "t"))
    assert result.exit_code == 2 and "cannot be written" in result.stderr
