"""Ctrl-C and SIGTERM: their codes, one line about --resume where that helps, a clean terminal; what is left goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dgemma_convert import begun, convert
from tests.cli.screen import START, Screen, environment
from tests.convert.children import OPTIONS, contents, eventually

LINE = "Interrupted; the same command with --resume goes on from here."
SLOW = """
import time, dgemma_convert.layout as layout, dgemma_convert.readers as readers
write, read = layout.Files.write, readers.open_source
layout.Files.write = lambda *arguments: (time.sleep({writing}), write(*arguments))
readers.open_source = lambda path: (print("reading", flush=True), time.sleep({reading}), read(path))[-1]
"""
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def command(source: Path, target: Path, *flags: str, reading: float = 0, writing: float = 0.5) -> list[str]:
    code = SLOW.format(reading=reading, writing=writing) + START
    return [sys.executable, "-c", code, "convert", str(source), str(target), "--bits", "4", *flags]


def check_resumes(source: Path, target: Path) -> None:
    convert(source, target, OPTIONS, resume=True)
    convert(source, target.with_name("whole"), OPTIONS)
    assert contents(target) == contents(target.with_name("whole"))


@pytest.mark.parametrize("columns", [80, 30])
@pytest.mark.parametrize("number", CODES)
def test_on_a_terminal(source: Path, tmp_path: Path, number: signal.Signals, columns: int) -> None:
    target = tmp_path / "out"
    with Screen(command(source, target), environment(tmp_path), columns=columns) as screen:
        screen.until(lambda screen: begun(target) and "\u2501" in screen.text)
        if number == signal.SIGINT:
            screen.send("\x03")
        else:
            screen.process.send_signal(number)
        assert screen.finish() == CODES[number]
        text = "".join(screen.text.split())
        assert text.count("".join(LINE.split())) == 1, screen.text
        assert "\u2501" not in text and screen.intact
    check_resumes(source, target)


@pytest.mark.parametrize("flags", [[], ["--quiet"], ["--json"], ["--verify"]], ids=" ".join)
@pytest.mark.parametrize("number", CODES)
def test_with_pipes(source: Path, tmp_path: Path, number: signal.Signals, flags: list[str]) -> None:
    target, pipe = tmp_path / "out", subprocess.PIPE
    with subprocess.Popen(
        command(source, target, *flags), env=environment(tmp_path), stdout=pipe, stderr=pipe
    ) as process:
        eventually(lambda: begun(target))
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors.decode()) == (CODES[number], b"reading\n", LINE + "\n")
    check_resumes(source, target)


@pytest.mark.parametrize("number", CODES)
def test_before_anything_is_written(source: Path, tmp_path: Path, number: signal.Signals) -> None:
    """There is nothing to take up, and no word of it."""
    pipe = subprocess.PIPE
    words = command(source, tmp_path / "out", reading=60)
    with subprocess.Popen(words, env=environment(tmp_path), stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None and process.stdout.readline() == b"reading\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (CODES[number], b"")
    assert not list(tmp_path.glob("out*"))


def test_twice(source: Path, tmp_path: Path) -> None:
    """Impatience does not say it twice, nor does it end in a traceback."""
    target, pipe = tmp_path / "out", subprocess.PIPE
    with subprocess.Popen(command(source, target), env=environment(tmp_path), stdout=pipe, stderr=pipe) as process:
        eventually(lambda: begun(target))
        for _ in range(3):
            os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.decode() in ("", LINE + "\n")
    check_resumes(source, target)
