"""`dgemma chat` in this process: piped lines, commands, what is refused."""

import errno
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.backend import REGISTRY, Job, Prediction
from dgemma.cli import app
from dgemma.errors import OutOfMemoryError
from scripted_backend import ENTRY, NAME, Scripted

Talk = Callable[..., Result]


@pytest.fixture
def talk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)

    def invoke(*lines: str, script: str = "Hello.", flags: tuple[str, ...] = ()) -> Result:
        (folder / "script.txt").write_text(script, encoding="utf-8")
        entered = "".join(line + "\n" for line in lines)
        return CliRunner().invoke(app, ["chat", "-m", str(folder), "--backend", NAME, *flags], input=entered)

    return invoke


def test_a_turn_a_line(talk: Talk) -> None:
    result = talk("one", "", "two", "three")
    assert (result.exit_code, result.stdout) == (0, "Hello.\n" * 3)
    assert result.stderr.count(" · seed ") == 3 and "cached" in result.stderr.splitlines()[1]


def test_quiet(talk: Talk) -> None:
    assert talk("one", flags=("-q",)).stderr == ""


def test_reasoning_stays_off_stdout(talk: Talk) -> None:
    result = talk("one", script="<|channel>thought\nHm.<channel|>Yes.", flags=("--think",))
    assert result.stdout == "Yes.\n" and "Hm." in result.stderr


@pytest.mark.parametrize("leave", ["/exit", "q", " q "])
def test_leaving(talk: Talk, leave: str) -> None:
    assert talk("one", leave, "two").stdout == "Hello.\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["/help"], "/regen [SEED]"),
        (["h"], "/regen [SEED]"),
        (["one", "r", "/undo"], "no turn to take back"),
        (["/regen"], "no turn to answer"),
        (["one", "/regen x"], "takes a seed"),
        (["one", "/undo"], "Taken back: one (0 turns left)"),
        (["/system Be brief.", "/set"], "max_tokens = 1024"),
        (["/set steps 3"], "steps = 3"),
        (["/set stop END"], "stop = END"),
        (["/set temperature_range 0.1,0.9"], "temperature_range = 0.1,0.9"),
        (["/set steps 3", "/set steps default"], "steps = default"),
        (["/set steps x"], "steps does not take 'x'"),
        (["/set temperature 1e308"], "temperature does not take '1e308': A temperature is 0 or 0.001 to 1000"),
        (["/set temperature_range 0,1e-40"], "temperature_range does not take '0,1e-40': Temperatures"),
        (["/set nothing 1"], "no setting 'nothing'"),
        (["/think on"], "Thinking is on"),
        (["/think perhaps"], "/think on or"),
        (["/save"], "Name a file"),
        (["/load /nowhere"], "cannot be read"),
        (["/load /tmp"], "/tmp is a folder"),
        (["/save /tmp"], "/tmp is a folder"),
        (["/save! /tmp"], "/tmp is a folder"),
        (["/save /nowhere/x"], "cannot be written"),
        (["one", "/stats"], "1 turn · 6 tokens generated"),
        (["/what"], "no command /what"),
    ],
)
def test_commands(talk: Talk, lines: list[str], words: str) -> None:
    result = talk(*lines, "last")
    assert words in result.stderr and "Traceback" not in result.stderr
    assert result.stdout.endswith("Hello.\n"), "the last line is answered"


def test_several_lines(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    stream = __import__("dgemma").Chat.stream
    monkeypatch.setattr("dgemma.Chat.stream", lambda chat, prompt: (seen.append(prompt), stream(chat, prompt))[1])
    assert talk('"""a', "b", 'c""" ignored', "d", '"""', "e", '"""', '"""f"""').exit_code == 0
    assert seen == ["a\nb\nc", "d", "e", "f"]


def test_half_an_entry_is_never_sent(talk: Talk) -> None:
    result = talk("one", '"""never closed', "more")
    assert (result.exit_code, result.stdout) == (2, "Hello.\n") and 'no closing """' in result.stderr


LONG = "a" * 5000


@pytest.mark.parametrize("bad", [LONG, "/what", "/set steps x", "/load /nowhere", "/regen x", "/regen \u00b2"])
def test_a_line_that_fails_is_told_once_and_the_next_one_is_answered(talk: Talk, bad: str) -> None:
    result = talk("one", bad, "two", flags=("-q",))
    assert (result.exit_code, result.stdout) == (2, "Hello.\n" * 2) and result.stderr.count("\n") == 1


@pytest.mark.parametrize(("error", "code"), [(OutOfMemoryError("Too big."), 5), (MemoryError(), 5)])
def test_a_turn_that_fails_half_way(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    passes, forward = [0], Scripted.forward

    def fail_once(backend: Scripted, jobs: Sequence[Job]) -> list[Prediction | None]:
        passes[0] += 1
        if passes[0] == 5:
            raise error
        return forward(backend, jobs)

    monkeypatch.setattr(Scripted, "forward", fail_once)
    result = talk("one", "two", script="x" * 40, flags=("-q",))
    first, second = result.stdout.splitlines()
    assert result.exit_code == code and result.stderr.count("\n") == 1
    assert "x" * 40 in (first, second) and min(first, second, key=len) != "x" * 40


def test_again_with_a_seed(talk: Talk) -> None:
    result = talk("one", "/regen 77", "/regen")
    assert result.stdout == "Hello.\n" * 3
    seeds = [line.rpartition("seed ")[2] for line in result.stderr.splitlines()]
    assert seeds[1] == "77" and len(set(seeds)) == 3


def test_save_and_load(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    assert "Saved 1 turn" in talk("/system Be brief.", "one", f"/save {path}").stderr
    assert [m["role"] for m in json.loads(path.read_text())["messages"]] == ["system", "user", "assistant"]
    assert "Loaded 1 turn" in (found := talk(f"/load {path}", "/undo", "/stats").stderr) and "Taken back: one" in found


def test_show_live_needs_a_terminal(talk: Talk) -> None:
    result = talk("one", flags=("--show", "live"))
    assert result.exit_code == 2 and "needs a terminal" in result.stderr


def test_show_none_prints_at_the_end(talk: Talk) -> None:
    assert talk("one", script="x" * 40, flags=("--show", "none")).stdout == "x" * 40 + "\n"


BAD_SETTINGS = [
    ("steps", ("0", "-1", "1.5", "x", "10 20")),
    ("max_tokens", ("0", "-1", "1e3")),
    ("canvas_length", ("0", "-1", "100000")),
    ("seed", ("-5", "x", str(2**64))),
    ("temperature", ("-1", "nan", "inf", "x")),
    ("temperature_range", ("0.9,0.1", "0.1", "x,y", "-1,1", "nan,1", "0,0", "0.1,inf", "1,2,3")),
    ("entropy_bound", ("-1", "nan", "inf", "x")),
]


@pytest.mark.parametrize(("name", "values"), BAD_SETTINGS)
def test_a_setting_is_refused_at_once_by_its_own_name(talk: Talk, name: str, values: tuple[str, ...]) -> None:
    lines = talk(*(f"/set {name} {value}" for value in values), "/set", "one", flags=("-q",)).stderr.splitlines()
    for value, line in zip(values, lines, strict=False):
        assert line.startswith(f"{name} does not take {value!r}") and "--" not in line, line
    settings = lines[len(values) :]
    assert f"{name} = {'1024' if name == 'max_tokens' else 'default'}" in settings


def test_what_excludes_what_is_set_is_refused(talk: Talk) -> None:
    found = talk("/set temperature 0.5", "/set temperature_range 0.1,0.2", "/set", "one", flags=("-q",))
    assert "exclude" in found.stderr and "temperature_range = default" in found.stderr
    assert "temperature = 0.5" in found.stderr and found.stdout == "Hello.\n"


def test_a_system_message_that_does_not_fit_is_refused(talk: Talk) -> None:
    found = talk(f"/system {LONG}", "one", flags=("-q",))
    assert "positions" in found.stderr and found.stdout == "Hello.\n"


@pytest.mark.parametrize("flags", [("--temp-range", "0.9,0.1"), ("--entropy-bound", "inf"), ("--temp", "inf")])
@pytest.mark.parametrize("command", [("chat",), ("generate", "hi")])
def test_such_flags_are_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    result = CliRunner().invoke(app, [*command, *flags, "-m", "/nowhere"])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1


GOOD = {"schema": 1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def saved(*messages: object, **changes: object) -> bytes:
    return json.dumps(GOOD | ({"messages": messages} if messages else {}) | changes).encode()


def said(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


DAMAGED = {
    "empty": b"",
    "no JSON": b"hello",
    "binary": b"\xff\x00\x80",
    "cut": saved()[:-9],
    "list": b"[]",
    "number": b"3",
    "deep": b"[" * 100_000,
    "no messages": b'{"schema": 1}',
    "messages text": saved(messages="hello"),
    "message text": saved("hello", "there"),
    "no content": saved({"role": "user"}, said("assistant", "b")),
    "no role": saved({"content": "a"}, said("assistant", "b")),
    "role": saved(said("tool", "a"), said("assistant", "b")),
    "order": saved(said("assistant", "a"), said("user", "b")),
    "twice": saved(said("user", "a"), said("user", "b")),
    "half": saved(said("user", "a")),
    "late system": saved(said("user", "a"), said("system", "b")),
    "parts": saved(said("user", [{"type": "text", "text": "a"}]), said("assistant", "b")),
    "null": saved(said("user", "a"), said("assistant", None)),
    "surrogate": saved(said("user", "\ud800"), said("assistant", "b")),
    "schema": saved(schema=2),
    "seeds": saved(seeds=["x"]),
    "many seeds": saved(seeds=[1, 2]),
    "reasoning": saved(reasoning=[3]),
    "long": saved(said("user", "a" * 5000), said("assistant", "b")),
    "system": saved(said("system", 5), said("user", "a"), said("assistant", "b")),
}


def test_a_file_that_is_no_conversation_changes_nothing(talk: Talk, tmp_path: Path) -> None:
    for name, data in DAMAGED.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "large").open("wb").truncate(65_000_000)
    bad = [*DAMAGED, "large", ".", "missing"]
    loads = [f"/load {tmp_path / name}" for name in bad]
    found = talk("/system Be brief.", "one", *loads, "/load /dev/zero", "/load ~nobody-here/x", "/undo", flags=("-q",))
    lines = found.stderr.splitlines()[1:]
    for name, line in zip(bad, lines, strict=False):
        told = ("is not a saved", "cannot be", "is too large", "is not a file", "is a folder")
        assert any(words in line for words in told) and "Error" not in line, f"{name}: {line}"
    assert lines[-1].startswith("Taken back: one (0 turns left)") and len(lines) == len(bad) + 3
    assert found.exit_code == 2


def test_a_loaded_conversation_goes_on(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(saved())
    assert "Taken back: a" in talk(f"/load {tmp_path / 'whole'}", "one", "/undo", "/undo").stderr


@pytest.mark.parametrize("link", [False, True])
def test_saving_leaves_other_files_alone(talk: Talk, tmp_path: Path, link: bool) -> None:
    other, own = tmp_path / "notes.txt", tmp_path / "talk.json"
    other.write_text("precious")
    named = other
    if link:
        named = tmp_path / "link"
        named.symlink_to(other)
    found = talk("one", f"/save {named}", f"/save {own}", "two", f"/save {own}", flags=("-q",))
    assert other.read_text() == "precious" and f"/save! {named}" in found.stderr and found.exit_code == 2
    assert len(json.loads(own.read_text())["messages"]) == 4
    assert talk("one", f"/save {own}").exit_code == 2, "another conversation's file"
    assert talk(f"/load {own}", "one", f"/save {own}").exit_code == 0
    assert len(json.loads(own.read_text())["messages"]) == 6
    assert talk("one", f"/save! {named}").exit_code == 0 and json.loads(other.read_text())["schema"] == 1
    assert named.is_symlink() == link and not list(tmp_path.glob(".*"))


def test_a_failed_save_keeps_the_old_file(talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "talk.json"
    talk("one", f"/save {own}")
    before = own.read_bytes()

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    found = talk(f"/load {own}", "one", f"/save {own}", "two", flags=("-q",))
    assert found.exit_code == 1 and "No space left" in found.stderr and own.read_bytes() == before
    assert found.stdout == "Hello.\n" * 2 and not list(tmp_path.glob(".*"))
