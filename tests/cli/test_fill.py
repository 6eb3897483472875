"""`dgemma fill` and `dgemma edit` in this process, on a scripted backend."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.backend import REGISTRY
from dgemma.cli import app
from dgemma.infill import span_of
from dgemma.textfile import TextFile
from scripted_backend import ENTRY, NAME, Scripted, open_scripted

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


@pytest.mark.parametrize("flags", [(), ("-q",), ("--json",), ("--jsonl",), ("--in-place",)])
@pytest.mark.parametrize(("text", "empty"), [("He<fill:2>!", [1]), ("H<fill:1>!<fill:3>", [2]), ("<fill:2>", [])])
def test_a_gap_filled_with_nothing_is_told(
    run: Run, tmp_path: Path, text: str, empty: list[int], flags: tuple[str, ...]
) -> None:
    (tmp_path / "a.txt").write_text(text)
    result = run("fill", str(tmp_path / "a.txt"), *flags, script="He")
    warned = [line for line in result.stderr.splitlines() if "Warning" in line]
    assert warned == [f"Warning: gap {number} was filled with nothing." for number in empty]
    if "--json" in flags or "--jsonl" in flags:
        assert json.loads(result.stdout.splitlines()[-1])["empty"] == empty


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
        (["edit", "FILE", "--lines", "1", "--diff", "--in-place"], b"", "excludes"),
        (["edit", "FILE", "--lines", "1", "--diff", "--json"], b"", "excludes"),
        (["edit", "FILE", "--lines", "1", "--json", "--jsonl"], b"", "exclude"),
        (["edit", "DIR", "--lines", "1", "--in-place"], b"", "cannot be read"),
        (["edit", "EMPTY", "--lines", "1"], b"", "has 0 lines"),
        (["fill", "-", "--json", "--jsonl"], b"<fill:1>", "exclude"),
        (["fill", "-", "--in-place"], b"<fill:1>", "cannot be changed in place"),
        (["fill", "-", "--lengths", "1-99999999999"], b"<fill>", "At most 64"),
        (["fill", "-"], b"a<fill:x>", "<fill:x> in line 1 is no gap"),
    ],
)
def test_failures_are_one_line(run: Run, tmp_path: Path, arguments: list[str], stdin: bytes, words: str) -> None:
    (tmp_path / "FILE").write_text("a\nb\nc\n")
    (tmp_path / "EMPTY").touch()
    (tmp_path / "DIR").mkdir()
    places = {name: str(tmp_path / name) for name in ("FILE", "EMPTY", "DIR")}
    result = run(*[places.get(each, each) for each in arguments], stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "") and words in result.stderr and result.stderr.count("\n") == 1


def test_an_edit_shows_a_diff_and_touches_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\nsix\n")
    result = run("edit", str(path), "--lines", "2:2", "--lengths", "3", script="one\nTWO\n")
    assert result.stdout.splitlines()[2:] == ["@@ -1,3 +1,3 @@", " one", "-two", "+TWO", " six"]
    assert path.read_bytes() == b"one\ntwo\nsix\n"


def test_a_diff_says_where_the_last_newline_is_missing_and_keeps_the_others(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\nsix")
    result = run("edit", str(path), "--lines", "2", "--lengths", "3", script="xxxxxSIX")
    assert result.stdout_bytes.split(b"\n")[3:] == [
        b" one\r",
        b"-six",
        rb"\ No newline at end of file",
        b"+SIX",
        rb"\ No newline at end of file",
        b"",
    ]


@pytest.mark.parametrize("warm", [[], ["--warm-start"]])
def test_in_place_keeps_everything_else(run: Run, tmp_path: Path, warm: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9\r\ntwo\r\nsix")
    path.chmod(0o600)
    result = run("edit", str(path), "--lines", "2", "--in-place", "--lengths", "3", *warm, script="xxxxxxxxxxxxxxxx")
    assert result.exit_code == 0 and result.stdout == "" and "+xxx" in result.stderr
    assert path.read_bytes() == b"caf\xe9\r\nxxx\r\nsix" and path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["a.txt"]


KINDS = {
    "plain": b"one\ntwo\nsix\n",
    "no newline at the end": b"one\ntwo\nsix",
    "windows": b"one\r\ntwo\r\nsix\r\n",
    "old mac": b"one\rtwo\rsix",
    "byte order mark": b"\xef\xbb\xbfone\r\ntwo\nsix",
    "latin-1": b"caf\xe9\ntwo\nsix\n",
    "utf-16": "\ufeffone\r\ntwo\r\nsix".encode("utf-16-le"),
    "nul": b"one\n\0\nsix",
    "blank lines": b"\n\n\n",
}


@pytest.mark.parametrize("line", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_lines_change_whatever_the_file(run: Run, tmp_path: Path, kind: str, line: int) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_bytes(KINDS[kind])
    path.chmod(0o604)
    link.symlink_to("a.txt")
    result = run("edit", str(link), "--lines", str(line), "--in-place", "--lengths", "3", script="x" * 40)
    assert result.exit_code == 0 and result.stdout == ""
    before, _, behind = span_of(TextFile.of(KINDS[kind]).text, (line, line))
    file = TextFile.of(KINDS[kind])
    assert path.read_bytes() == file.encode(f"{before}xxx{behind}")
    assert path.stat().st_mode & 0o777 == 0o604 and link.is_symlink()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "blank lines"])
def test_gaps_are_filled_in_place(run: Run, tmp_path: Path, kind: str) -> None:
    file = TextFile.of(KINDS[kind])
    gaps, path = file.text.replace("six", "<fill:3>").replace("one", "<fill:2>-<fill:1>"), tmp_path / "a.txt"
    path.write_bytes(file.encode(gaps))
    result = run("fill", str(path), "--in-place", script="x" * 40)
    assert result.exit_code == 0 and result.stdout == "" and "+" in result.stderr
    assert path.read_bytes() == file.encode(file.text.replace("six", "xxx").replace("one", "xx-x"))


@pytest.mark.parametrize("command", [["fill"], ["edit", "--lines", "1"]])
@pytest.mark.parametrize("harm", ["removed", "changed", "read-only"])
def test_a_file_that_cannot_be_changed_is_left_alone(
    run: Run, tmp_path: Path, command: list[str], harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a<fill:1>\n")
    contents = b"theirs" if harm == "changed" else path.read_bytes()

    def meanwhile(*arguments: object) -> Scripted:
        if harm == "removed":
            path.unlink()
        elif harm == "changed":
            path.write_bytes(contents)
        return open_scripted(*arguments)

    if harm == "read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr("scripted_backend.open_scripted", meanwhile)
    result = run(*command, str(path), "--in-place")
    assert (result.exit_code, result.stdout) == (2 if harm == "read-only" else 1, "")
    assert result.stderr.count("\n") == 1 and str(path) in result.stderr
    assert path.read_bytes() == contents if path.exists() else harm == "removed"
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["a.txt"] * path.exists()


def test_events_line_by_line(run: Run, tmp_path: Path) -> None:
    found = [
        json.loads(line)
        for line in run("fill", "-", "--jsonl", "--lengths", "1-2", stdin=b"He<fill>!").stdout.splitlines()
    ]
    assert {each["event"] for each in found[:-1]} == {"draft", "block"} and found[-1]["event"] == "finish"
    assert {each["candidate"] for each in found[:-1]} == {0, 1} and found[-1]["text"].startswith("He")
    (tmp_path / "FILE").write_text("one\ntwo\n")
    lines = run("edit", str(tmp_path / "FILE"), "--lines", "2", "--jsonl").stdout.splitlines()
    assert json.loads(lines[-1])["text"].startswith("one\n") and json.loads(lines[0])["event"] == "draft"
    [line] = run("edit", str(tmp_path / "FILE"), "--lines", "2", "--json").stdout.splitlines()
    assert json.loads(line)["fills"] == json.loads(lines[-1])["fills"]


def test_statistics_and_quality(run: Run) -> None:
    result = run("fill", "-", "--stats", "--quality", "fast", "--seed", "5", stdin=b"He<fill:2>!")
    assert result.stdout == "Hell!" and "2 tokens filled" in result.stderr and "seed 5" in result.stderr
    assert run("fill", "-", "--quality", "best", stdin=b"He<fill:2>!").exit_code == 2
