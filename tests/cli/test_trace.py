"""`--trace` and `dgemma trace` in this process, on a scripted backend."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.backend import REGISTRY
from dgemma.cli import app
from dgemma.trace import Trace
from scripted_backend import ENTRY, NAME
from tests.cli.test_process import ENVIRONMENT, START

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
    assert result.exit_code == 1 and "cannot be written" in result.stderr


@pytest.mark.parametrize("command", [["show"], ["stats", "--json"], ["html", "-o", "PAGE"]])
def test_a_cut_trace_is_readable_up_to_there_and_says_so(run: Run, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "t"
    run("generate", "hi", "--trace", str(path))
    arguments = [word.replace("PAGE", str(tmp_path / "page")) for word in command[1:]]
    whole = path.read_bytes()
    assert run("trace", command[0], str(path), *arguments).stderr == ""
    lines = whole.splitlines(keepends=True)
    for cut in (b"".join(lines[:-1]), b"".join(lines[:4]), b"".join(lines[:4]) + lines[4][:20], lines[0]):
        path.write_bytes(cut)
        found = run("trace", command[0], str(path), *arguments)
        assert found.exit_code == 0 and found.stderr.startswith("Warning: ") and "was cut" in found.stderr
        assert command[0] != "stats" or json.loads(found.stdout)["complete"] is False


def test_a_killed_generation_leaves_what_it_had(folder: Path, tmp_path: Path) -> None:
    (folder / "script.txt").write_text(TEXT * 20)
    (folder / "pause.txt").write_text("0.02")
    path = tmp_path / "t"
    words = [sys.executable, "-c", START, "generate", "hi", "-m", str(folder), "--backend", NAME, "--trace", str(path)]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not path.exists() or path.read_bytes().count(b"\n") < 4:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    trace = Trace.read(path)
    assert len(trace.events) >= 3 and not trace.complete
