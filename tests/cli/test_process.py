"""`dgemma` as a process of its own: pipes, signals, what gets imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripted_backend import ENTRY, NAME

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / name) for name in ("common", "convert", "tests", ".")]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), "PYTHONWARNINGS": "error"}
START = f"from dgemma.backend import REGISTRY; REGISTRY[{NAME!r}] = {ENTRY!r}; from dgemma.cli import main; main()"
LINES = "0123456789 abcd\n" * 40


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-c", START, "generate", "hi", "-m", str(folder), "--backend", NAME, *arguments]


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command(folder, *arguments), env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )


@pytest.fixture
def slow(folder: Path) -> Path:
    (folder / "script.txt").write_text(LINES)
    (folder / "pause.txt").write_text("0.05")
    return folder


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["generate", "--help"]])
def test_help_imports_no_tensor_library(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom dgemma.cli import app\n"
        f"try: app({arguments!r}, prog_name='dgemma')\nexcept SystemExit as end: assert not end.code\n"
        "heavy = {'mlx', 'torch', 'triton', 'transformers', 'numpy', 'tokenizers', 'huggingface_hub', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "[]"
    assert "dgemma" in done.stdout and ("Exit codes" in done.stdout) == ("--help" in arguments)


def test_signals_wait_for_next_to_nothing() -> None:
    """Until the handlers are in place a signal meets Python's own, so nothing slow may come before."""
    code = (
        "import sys, signal\nbefore = set(sys.modules)\nimport dgemma.__main__ as entry\n"
        "print(sorted(set(sys.modules) - before))\nbefore = set(sys.modules)\n"
        "entry.install()\nprint(sorted(set(sys.modules) - before))\n"
        "print(signal.getsignal(2) is signal.getsignal(15) is not signal.default_int_handler)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["['dgemma', 'dgemma.__main__', 'dgemma.signals']", "['termios']", "True"]


def test_module_entry() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dgemma", "--version"], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "dgemma 0.1.0\n", "")


def test_plain_bytes_when_piped(folder: Path) -> None:
    (folder / "script.txt").write_text("ä€\n", encoding="utf-8")
    done = subprocess.run(
        command(folder, "--stats"), env=ENVIRONMENT | {"LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert done.returncode == 0 and done.stdout == "ä€\n\n".encode()
    assert b"\x1b" not in done.stderr and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_keep_what_was_committed(slow: Path, number: int, code: int) -> None:
    process = start(slow, "--stats")
    assert process.stdout is not None
    first = process.stdout.read(16)
    process.send_signal(number)
    rest, errors = process.communicate(timeout=20)
    assert process.returncode == code and b"Traceback" not in errors and errors.startswith(b"stopped")
    assert LINES.encode().startswith((first + rest)[:-1]) and len(first + rest) < len(LINES)


def test_interrupted_json_is_whole(slow: Path) -> None:
    process = start(slow, "--json", "-v")
    assert process.stderr is not None and b"scripted" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130 and (out == b"" or b'"finish_reason": "cancelled"' in out)


def test_reader_that_leaves(slow: Path) -> None:
    process = start(slow)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=20) == 0 and process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_standard_files(folder: Path, closed: str) -> None:
    whole = START.replace("dgemma.cli import", "dgemma.__main__ import")
    words = [sys.executable, "-c", whole, "generate", "hi", "-m", str(folder), "--backend", NAME]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *words], env=ENVIRONMENT, capture_output=True)
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert done.stdout.count(b"\n") == (closed != ">&-")
