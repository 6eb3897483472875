"""`dgemma fill` and `dgemma edit` in this process, on a scripted backend."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.backend import REGISTRY
from dgemma.cli import app
from scripted_backend import ENTRY, NAME

Run = Callable[..., Result]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)

    def invoke(command: str, *arguments: str, script: str = "Hello.", stdin: bytes = b"") -> Result:
        (folder / "script.txt").write_text(script, encoding="utf-8")
        return CliRunner().invoke(app, [command, *arguments, "-m", str(folder), "--backend", NAME], input=stdin)

    return invoke


def test_holes_are_filled_and_the_rest_comes_back_byte_for_byte(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfH<fill:3>\r\n\x00 <fill:1>")
    result = run("fill", str(path), script="Hello, world")
    assert result.exit_code == 0 and result.stdout_bytes == b"\xef\xbb\xbfHell\r\n\x00 o"
    assert result.stderr == "" and path.read_bytes().endswith(b"<fill:1>")


def test_standard_input_and_json(run: Run) -> None:
    assert run("fill", "-", stdin=b"He<fill:2>!").stdout == "Hell!"
    found = json.loads(run("fill", "-", "--json", "--seed", "4", "-i", "x", stdin=b"He<fill:2>!").stdout)
    assert (found["schema"], found["text"], found["fills"], found["seed"]) == (1, "Hell!", ["ll"], 4)
    assert found["stats"]["canvases"] == 1 and found["model"]


def test_lengths(run: Run) -> None:
    assert run("fill", "-", "--lengths", "2-2", stdin=b"He<fill>").stdout == "Hell"
    assert run("fill", "-", "--lengths", "3", stdin=b"He<fill>").stdout == "Hello"


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["fill", "-"], b"no hole", "nothing to fill"),
        (["fill", "-"], b"\xff\x00", "not a text"),
        (["fill", "/nowhere"], b"", "/nowhere cannot be read"),
        (["fill", "-", "--lengths", "x"], b"<fill>", "--lengths takes"),
        (["fill", "-", "--lengths", "3-1"], b"<fill>", "--lengths takes"),
        (["fill", "-"], b"a" * 5000 + b"<fill:1>", "positions; the model has 4096"),
        (["edit", "FILE", "--lines", "x"], b"", "--lines takes"),
        (["edit", "FILE", "--lines", "2:9"], b"", "has 3 lines"),
        (["edit", "FILE", "--lines", "1", "--diff", "--in-place"], b"", "exclude"),
    ],
)
def test_failures_are_one_line(run: Run, tmp_path: Path, arguments: list[str], stdin: bytes, words: str) -> None:
    (tmp_path / "FILE").write_text("a\nb\nc\n")
    result = run(*[str(tmp_path / "FILE") if each == "FILE" else each for each in arguments], stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "") and words in result.stderr and result.stderr.count("\n") == 1


def test_an_edit_shows_a_diff_and_touches_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nsix\n")
    result = run("edit", str(path), "--lines", "2:2", "--lengths", "3", script="one\nTWO\n")
    assert result.stdout.splitlines()[2:] == ["@@ -1,3 +1,3 @@", " one", "-two", "+TWO", " six"]
    assert path.read_bytes() == b"one\ntwo\nsix\n"


@pytest.mark.parametrize("warm", [[], ["--warm-start"]])
def test_in_place_keeps_everything_else(run: Run, tmp_path: Path, warm: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9\r\ntwo\r\nsix")
    path.chmod(0o600)
    result = run("edit", str(path), "--lines", "2", "--in-place", "--lengths", "3", *warm, script="xxxxxxxxxxxxxxxx")
    assert result.exit_code == 0 and result.stdout == "" and "+xxx" in result.stderr
    assert path.read_bytes() == b"caf\xe9\r\nxxx\r\nsix" and path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["a.txt"]
