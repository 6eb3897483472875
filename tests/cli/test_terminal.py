"""The live canvas and the chat on an emulated terminal: what is left on the screen, and that nothing leaks."""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.screen import Ready, Screen, environment, scripted

ESCAPE = re.compile(rb"\x1b")
TEXT = "".join(f"Line {number} of the answer.\n" for number in range(14))
WIDE = "漢字かな交じり文。😀 family 👨‍👩‍👧 e\u0301 end\n" * 3
SIZES = [(80, 10), (200, 60), (40, 10)]


def script(folder: Path, text: str, pause: float = 0.0, entropy: float = 0.01) -> Path:
    (folder / "script.txt").write_text(text, encoding="utf-8")
    (folder / "pause.txt").write_text(str(pause))
    (folder / "entropy.txt").write_text(str(entropy))
    return folder


def folded(text: str, columns: int) -> list[str]:
    """Rows that a terminal makes of `text`, for text of narrow characters."""
    rows = [
        line[start : start + columns] for line in text.splitlines() for start in range(0, max(1, len(line)), columns)
    ]
    return [row.rstrip() for row in rows]


def interrupt(screen: Screen, ready: Ready) -> None:
    """Ctrl-C, and a key after it: Python's readline can sleep through a signal that comes just before its select."""
    screen.send("\x03")
    if not screen.within(5, ready):
        screen.send("\n")
    screen.until(ready)


def start(folder: Path, *arguments: str, columns: int = 80, rows: int = 24, **env: str) -> Screen:
    return Screen(scripted(folder, *arguments), environment(folder.parent, **env), columns, rows)


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_only_the_answer_remains(folder: Path, columns: int, rows: int) -> None:
    script(folder, TEXT, pause=0.02)
    with start(folder, "generate", "hi", "--steps", "3", columns=columns, rows=rows) as screen:
        screen.until("settled")
        assert screen.finish() == 0 and screen.intact
        shown = [line for line in screen.lines if line and not line.startswith(("Warning", "step"))]
        assert shown[: len(folded(TEXT, columns))] == folded(TEXT, columns)
        assert "settled ·" not in screen.text and "···" not in screen.text
        assert screen.raw.count(b"\x1b[?2026h") == screen.raw.count(b"\x1b[?2026l") > 0


@pytest.mark.parametrize("to", [(200, 60), (40, 8), (30, 24)])
def test_resize_keeps_what_was_printed(folder: Path, to: tuple[int, int]) -> None:
    script(folder, TEXT, pause=0.03)
    with start(folder, "generate", "hi", "--steps", "3", columns=80, rows=20) as screen:
        screen.until("Line 2 of")
        screen.resize(*to)
        assert screen.finish() == 0 and screen.intact
        numbers = [int(found) for found in re.findall(r"^Line (\d+) of", screen.text, re.MULTILINE)]
        assert numbers == sorted(set(numbers)) and numbers[-1] == 13


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_plain_terminals_get_no_escapes(folder: Path, command: str, env: dict[str, str]) -> None:
    script(folder, "Plain text.")
    with start(folder, command, *(["hi"] if command == "generate" else []), **env) as screen:
        if command == "chat":
            screen.until(">>>")
            screen.send("hi\n")
            screen.until("Plain text.")
            screen.until(lambda s: s.text.rstrip().endswith(">>>"))
            screen.send("\x04")
        assert screen.finish() == 0
        assert not ESCAPE.search(screen.raw) and "Plain text." in screen.text


def test_no_color_flag(folder: Path) -> None:
    script(folder, "Plain text.")
    with start(folder, "generate", "hi", "--no-color") as screen:
        assert screen.finish() == 0 and not ESCAPE.search(screen.raw)


def test_wide_characters(folder: Path) -> None:
    script(folder, WIDE, pause=0.03)
    with start(folder, "generate", "hi", columns=40, rows=10) as screen:
        screen.until("settled")
        assert screen.finish() == 0 and screen.intact
        assert screen.raw.decode().count("漢字かな交じり文。😀 family 👨‍👩‍👧 e\u0301 end") >= 3
        assert "·" not in screen.text.partition("Warning")[0]


@pytest.mark.parametrize("hostile", ["\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x9b31m", "a\rb\x08c\x7f", "\x1b[?1049h"])
def test_control_bytes_never_reach_the_terminal(folder: Path, hostile: str) -> None:
    script(folder, f"before {hostile} <|channel>x\n{hostile}<channel|>after", pause=0.02)
    with start(folder, "generate", "hi") as screen:
        assert screen.finish() == 0
        raw = screen.raw.decode()
        assert hostile not in raw and "\x07" not in raw and "\x9b" not in raw and "\x08" not in raw
        assert "a\rb" not in raw and "after" in screen.text


def test_piped_answers_are_byte_exact(folder: Path) -> None:
    script(folder, "a\x1b[1mb\r")
    env = environment(folder.parent)
    done = subprocess.run(scripted(folder, "generate", "hi"), env=env, stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"a\x1b[1mb\r\n")


@pytest.mark.parametrize("command", ["generate hi", "chat"])
def test_head_takes_one_line(folder: Path, command: str) -> None:
    script(folder, TEXT, pause=0.01)
    line = shlex.join(scripted(folder, *command.split()))
    both = f"printf 'hi\\nho\\n' | {line} | head -1; echo ${{PIPESTATUS[1]}}"
    done = subprocess.run(["bash", "-c", both], env=environment(folder.parent), capture_output=True, text=True)
    assert done.stdout.splitlines() == ["Line 0 of the answer.", "0"] and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["generate", "hi"], ["chat"]])
def test_closed_stdin(folder: Path, arguments: list[str]) -> None:
    line = shlex.join(scripted(script(folder, "Hello."), *arguments)) + " <&-"
    done = subprocess.run(["bash", "-c", line], env=environment(folder.parent), capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_a_conversation(folder: Path) -> None:
    script(folder, "Hello.", pause=0.02)
    with start(folder, "chat", "--seed", "3", columns=100) as screen:
        screen.until("dgemma chat")
        screen.until(">>>")
        for line in (
            "one 日本 e\u0301 😀",
            '"""two',
            'lines"""',
            "/regen 3",
            "/undo",
            "/system Be brief.",
            "/set steps 2",
        ):
            screen.send(line + "\n")
            time.sleep(0.3)
        screen.send("/stats\n")
        screen.until("1 turn · ")
        screen.send("/nonsense\n")
        screen.until("no command /nonsense")
        screen.send("h\n")
        screen.until("Ctrl-C stops an answer or drops a line.")
        screen.send("half a line")
        screen.until("half a line")
        interrupt(screen, "/exit leaves")
        screen.send("\x04")
        assert screen.finish() == 0 and screen.intact
        assert screen.text.count("Hello.") == 3 and "Taken back: two lines (1 turn left)" in screen.text
        assert screen.text.count("seed 3") >= 3 and "steps = 2" in screen.text
    history = (folder.parent / "dgemma" / "history").read_text()
    assert "one 日本" in history and "lines" in history
    with start(folder, "chat") as screen:
        screen.until(">>>")
        screen.send("\x1b[A\x1b[A\x1b[A")
        screen.until("/stats")
        interrupt(screen, "/exit leaves")
        screen.send("q\n")
        assert screen.finish() == 0


def test_ctrl_c_stops_the_answer_only(folder: Path) -> None:
    script(folder, TEXT, pause=0.03)
    with start(folder, "chat") as screen:
        screen.until(">>>")
        screen.send("hi\n")
        screen.until("Line 1 of")
        interrupt(screen, "stopped · ")
        screen.until(lambda s: s.text.rstrip().endswith(">>>"))
        screen.send("/exit\n")
        assert screen.finish() == 0 and screen.intact and "Traceback" not in screen.text


def prompted_again(screen: Screen) -> bool:
    return screen.text.count(">>>") >= 2 and screen.text.rstrip().endswith(">>>")


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03])
def test_ctrl_c_behind_a_message_never_ends_the_chat(folder: Path, delay: float) -> None:
    script(folder, TEXT, pause=0.03)
    with start(folder, "chat") as screen:
        screen.until(">>>")
        screen.send("hi\n")
        time.sleep(delay)
        interrupt(screen, prompted_again)
        screen.send("/stats\n")
        screen.until("tokens generated")
        screen.send("/exit\n")
        assert screen.finish() == 0 and screen.intact and "Line 13" not in screen.text


def test_ctrl_d_within_an_entry_and_during_an_answer(folder: Path) -> None:
    script(folder, TEXT, pause=0.02)
    with start(folder, "chat") as screen:
        screen.until(">>>")
        screen.send('"""half\n')
        screen.until("...")
        screen.send("\x04")
        screen.until('no closing """')
        screen.until(lambda s: s.text.rstrip().endswith(">>>"))
        screen.send("hi\n")
        screen.until("Line 1 of")
        screen.send("\x04")
        screen.until("Line 13")
        screen.until(lambda s: s.process.poll() is not None or s.text.rstrip().endswith(">>>"))
        if screen.process.poll() is None:
            screen.send("\x04")
        assert screen.finish() == 0 and screen.intact and "Traceback" not in screen.text


def test_bytes_that_are_no_text(folder: Path) -> None:
    script(folder, "Hello.")
    with start(folder, "chat") as screen:
        screen.until(">>>")
        os.write(screen._parent, b"a\xff\xfeb\n")
        screen.until("Hello.")
        screen.until(lambda s: s.text.rstrip().endswith(">>>"))
        screen.send("/exit\n")
        assert screen.finish() == 0 and "Unexpected" not in screen.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("round_", range(4))
def test_signals_at_any_moment(folder: Path, number: signal.Signals, code: int, round_: int) -> None:
    script(folder, TEXT, pause=0.01)
    generator = random.Random(1000 * round_ + code)
    with start(folder, "generate", "hi") as screen:
        screen.until(lambda s: _handles_signals(s.process.pid))
        delay = generator.uniform(0, 0.2 if round_ < 2 else 2.5)
        end = time.monotonic() + delay
        while time.monotonic() < end:
            screen._read(0.01)
        screen.process.send_signal(number)
        assert screen.finish() in (code, 0) and screen.intact, f"after {delay:.3f} s"
        assert "Traceback" not in screen.text and "KeyboardInterrupt" not in screen.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_at_once(folder: Path, number: signal.Signals, code: int) -> None:
    script(folder, TEXT, pause=0.5)
    with start(folder, "generate", "hi") as screen:
        screen.until("settled")
        screen.process.send_signal(number)
        time.sleep(0.05)
        screen.process.send_signal(number)
        # A shell tells both apart as little: Python gives the signals back to the system as it shuts down.
        assert screen.finish() in (code, -number) and screen.intact


def test_terminated_at_the_prompt(folder: Path) -> None:
    with start(folder, "chat") as screen:
        screen.until(">>>")
        screen.send("unfinished")
        screen.until("unfinished")
        screen.process.send_signal(signal.SIGTERM)
        assert screen.finish() == 143 and screen.intact


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_while_importing(folder: Path, number: signal.Signals, code: int) -> None:
    slow = "import sys, time\nfrom dgemma.__main__ import main\nprint('ready', flush=True)\n"
    begin = f"sys.argv = ['dgemma', '--help']\n{slow}import builtins\nreal = builtins.__import__\n"
    drag = "def drag(*a, **k):\n    time.sleep(0.002)\n    return real(*a, **k)\nbuiltins.__import__ = drag\nmain()"
    program = "import sys, time\n" + begin + drag
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment(folder.parent), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    time.sleep(0.15)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (code, b"", b"")


def _handles_signals(pid: int) -> bool:
    """Whether the child has its handlers: SIGTERM is caught."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    caught = int(re.search(r"SigCgt:\s*([0-9a-f]+)", status)[1], 16)  # type: ignore[index]
    return bool(caught >> (signal.SIGTERM - 1) & 1)
