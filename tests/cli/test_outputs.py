"""Every command that writes: its input is never overwritten, and what cannot be written is told in one line."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.backend import REGISTRY
from dgemma.cli import app
from scripted_backend import ENTRY, NAME
from tests.bench.rows import make_row
from tests.cli.test_process import ENVIRONMENT, START

Run = Callable[..., Result]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Invokes a command in a folder with a trace, rows and a prompt; MODEL stands for the model's flags."""
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)
    monkeypatch.chdir(tmp_path)
    (folder / "script.txt").write_text("Hello.")
    model = ["-m", str(folder), "--backend", NAME]

    def invoke(*arguments: str, stdin: str = "") -> Result:
        words = [word for each in arguments for word in (model if each == "MODEL" else [each])]
        return CliRunner().invoke(app, words, input=stdin)

    assert invoke("generate", "hi", "MODEL", "--trace", "trace").exit_code == 0
    (tmp_path / "rows.jsonl").write_text(make_row().dump())
    (tmp_path / "prompt").write_text("hi\n")
    shutil.copy(Path(__file__).parents[2] / "benchmarks" / "prompts" / "chat.jsonl", tmp_path / "profile.jsonl")
    return invoke


OVER_INPUT = {
    "trace html": (["trace", "html", "INPUT", "-o", "OUTPUT"], "trace"),
    "generate file": (["generate", "MODEL", "-f", "INPUT", "--trace", "OUTPUT"], "prompt"),
    "generate start": (["generate", "hi", "MODEL", "--warm-start", "INPUT", "--trace", "OUTPUT"], "prompt"),
    "bench report": (["bench", "report", "INPUT", "-o", "OUTPUT"], "rows.jsonl"),
    "bench submit": (["bench", "submit", "INPUT", "-o", "OUTPUT"], "rows.jsonl"),
    "bench run": (["bench", "run", "MODEL", "--profile", "INPUT", "-o", "OUTPUT"], "profile.jsonl"),
    "convert": (["convert", "INPUT", "OUTPUT"], "model"),
}


@pytest.mark.parametrize("link", ["same", "dotted", "symbolic", "hard"])
@pytest.mark.parametrize("name", OVER_INPUT)
def test_no_output_goes_over_an_input(run: Run, tmp_path: Path, name: str, link: str) -> None:
    words, given = OVER_INPUT[name]
    source, target = tmp_path / given, tmp_path / f"link{Path(given).suffix}"
    if link == "symbolic":
        target.symlink_to(source)
    elif link == "hard" and source.is_file():
        os.link(source, target)
    else:
        target = source if link == "same" else tmp_path / "." / ".." / tmp_path.name / given
    before = source.read_bytes() if source.is_file() else sorted(source.iterdir())
    result = run(*[{"INPUT": str(source), "OUTPUT": str(target)}.get(word, word) for word in words])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert before == (source.read_bytes() if source.is_file() else sorted(source.iterdir()))


OVER_MODEL = {
    "generate": ["generate", "hi", "MODEL", "--trace", "OUTPUT"],
    "bench run": ["bench", "run", "MODEL", "--prompts", "1", "-r", "1", "-n", "4", "-o", "OUTPUT"],
    "chat save": ["chat", "MODEL"],
    "fill": ["fill", "OUTPUT", "MODEL", "--in-place"],
    "edit": ["edit", "OUTPUT", "MODEL", "--lines", "1", "--in-place"],
}


@pytest.mark.parametrize("link", ["same", "dotted", "symbolic", "hard"])
@pytest.mark.parametrize("name", OVER_MODEL)
def test_nor_over_a_file_of_the_model(run: Run, folder: Path, tmp_path: Path, name: str, link: str) -> None:
    source, target = folder / "config.json", tmp_path / "link.json"
    if name == "fill":
        source = folder / "words.json"
        source.write_text("<fill:2>")
    if link == "symbolic":
        target.symlink_to(source)
    elif link == "hard":
        os.link(source, target)
    else:
        target = source if link == "same" else tmp_path / "." / "model" / ".." / "model" / source.name
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    entered = f"hi\n/save! {target}\n" if name == "chat save" else ""
    result = run(*[{"OUTPUT": str(target)}.get(word, word) for word in OVER_MODEL[name]], stdin=entered)
    assert result.exit_code == 2 and "is an input" in result.stderr, result.stderr
    assert name == "chat save" or (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert before == {each.name: each.read_bytes() for each in folder.iterdir()}


EMPTY = [
    ["trace", "html", "trace", "-o", ""],
    ["generate", "hi", "MODEL", "--trace", ""],
    ["bench", "report", "rows.jsonl", "-o", ""],
]


@pytest.mark.parametrize("words", EMPTY, ids=lambda words: words[0])
def test_an_empty_name_is_wrong_usage(run: Run, words: list[str]) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "is empty" in result.stderr


def test_nor_over_standard_input(run: Run, folder: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", START, "generate", "-m", str(folder), "--backend", NAME, "--trace", "prompt"]
    with (tmp_path / "prompt").open() as file:
        done = subprocess.run(words, env=ENVIRONMENT, stdin=file, capture_output=True, cwd=tmp_path)
    assert done.returncode == 2 and b"is an input" in done.stderr
    assert (tmp_path / "prompt").read_text() == "hi\n"


WRITERS = {
    "trace html": ["trace", "html", "trace", "-o", "OUTPUT"],
    "generate": ["generate", "hi", "MODEL", "--trace", "OUTPUT"],
    "bench report": ["bench", "report", "rows.jsonl", "-o", "OUTPUT"],
    "bench run": ["bench", "run", "MODEL", "--prompts", "1", "-r", "1", "-n", "4", "-o", "OUTPUT.jsonl"],
    "bench run json": ["bench", "run", "MODEL", "--prompts", "1", "-r", "1", "-n", "4", "-o", "OUTPUT.json"],
    "convert": ["convert", "model", "OUTPUT"],
}


def place(kind: str, tmp_path: Path, convert: bool) -> str:
    if kind == "missing folder" and not convert:
        return str(tmp_path / "no" / "file")
    (tmp_path / "plain").write_text("")
    return "/proc/self/no" if kind == "refused by the system" else str(tmp_path / "plain" / "file")


@pytest.mark.parametrize("kind", ["missing folder", "file for a folder", "refused by the system"])
@pytest.mark.parametrize("name", WRITERS)
def test_places_that_cannot_be_written(run: Run, tmp_path: Path, name: str, kind: str) -> None:
    target = place(kind, tmp_path, name == "convert")
    result = run(*[word.replace("OUTPUT", target) for word in WRITERS[name]])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1, result.stderr
    assert "cannot be written" in result.stderr or "0.0 MB free" in result.stderr
    assert "Unexpected" not in result.stderr
    assert not result.stdout


@needs_full
@pytest.mark.parametrize("name", ["trace html", "generate"])
def test_a_full_disk(run: Run, name: str) -> None:
    result = run(*[word.replace("OUTPUT", str(FULL)) for word in WRITERS[name]])
    assert result.exit_code == 1 and "No space left" in result.stderr and "Free some space" in result.stderr
    assert result.stderr.count("\n") == 1


@needs_full
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["completion"],
        ["models", "alias"],
        ["generate", "hi", "MODEL"],
        ["trace", "show", "T"],
    ],
)
def test_standard_output_on_a_full_disk(run: Run, folder: Path, tmp_path: Path, arguments: list[str]) -> None:
    model = ["-m", str(folder), "--backend", NAME]
    words = [word for each in arguments for word in (model if each == "MODEL" else [each])]
    words = ["trace" if word == "T" else word for word in words]
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", START, *words], env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path
        )
    assert done.returncode == 1 and b"Traceback" not in done.stderr, done.stderr
    assert done.stderr.count(b"\n") == 1 and b"Standard output cannot be written" in done.stderr


def test_devices_are_written_to_not_replaced(run: Run) -> None:
    assert run("trace", "html", "trace", "-o", "/dev/null").exit_code == 0
    assert not Path("/dev/null").is_file()
