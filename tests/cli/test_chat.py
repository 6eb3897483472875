"""`dgemma chat` in this process: piped lines, commands, what is refused."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.backend import REGISTRY, Job, Prediction
from dgemma.cli import app
from dgemma.cli.commands import changed
from dgemma.errors import OutOfMemoryError, UsageError
from dgemma.settings import Settings
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
        (["/set nothing 1"], "no setting 'nothing'"),
        (["/think on"], "Thinking is on"),
        (["/think perhaps"], "/think on or"),
        (["/save"], "Name a file"),
        (["/load /nowhere"], "cannot be read"),
        (["/save /nowhere/x"], "cannot be written"),
        (["one", "/stats"], "1 turn · 6 tokens generated"),
        (["/what"], "no command /what"),
        (["/set temperature 0.5", "/set temperature_range 0.1,0.2", "one"], "exclude"),
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


def test_negative_numbers_are_no_settings() -> None:
    for name, value in (("steps", "0"), ("temperature", "-1"), ("temperature", "nan"), ("seed", "-5")):
        with pytest.raises(UsageError):
            changed(Settings(), name, value)
