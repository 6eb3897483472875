"""A process on a terminal of its own: what it writes ends up on an emulated screen."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

from scripted_backend import ENTRY, NAME

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / name) for name in ("common", "convert", "tests", ".")]
START = f"from dgemma.backend import REGISTRY; REGISTRY[{NAME!r}] = {ENTRY!r}; from dgemma.cli import main; main()"
Ready = str | Callable[["Screen"], bool]
PLAIN = {"TERM": "dumb"}
QUIET = ("NO_COLOR", "TMUX", "VTE_VERSION", "KITTY_WINDOW_ID", "WEZTERM_PANE", "ITERM_SESSION_ID", "DGEMMA_MODEL")


def environment(home: Path, **changes: str) -> dict[str, str]:
    """The environment of a child: nobody's history, a common terminal."""
    found = {name: value for name, value in os.environ.items() if name not in QUIET}
    paths = {"PYTHONPATH": os.pathsep.join(PATHS), "XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return found | paths | threads | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "HOME": str(home)} | changes


class Screen:
    """Runs `command` in a pty of `columns` x `rows`. `raw` is every byte it wrote."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], columns: int = 80, rows: int = 24) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=2000, ratio=0.5)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self._parent, child = pty.openpty()
        self.resize(columns, rows, tell=False)
        self.modes = termios.tcgetattr(child)
        self.process = subprocess.Popen(
            command, env=env, stdin=child, stdout=child, stderr=child, start_new_session=True, preexec_fn=_own_terminal
        )
        self._child = child

    def resize(self, columns: int, rows: int, tell: bool = True) -> None:
        """Change the size, of the emulated screen too."""
        fcntl.ioctl(self._parent, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.screen.resize(rows, columns)

    def send(self, text: str) -> None:
        """Type `text`."""
        os.write(self._parent, text.encode())

    def until(self, ready: Ready, seconds: float = 120) -> None:
        """Read until a text is on the screen, or a condition holds."""
        assert self.within(seconds, ready), f"waited for {ready!r}:\n{self.text}\n{self.raw[-500:]!r}"

    def within(self, seconds: float, ready: Ready) -> bool:
        """Read until that, or for so long; returns whether it came."""
        end = time.monotonic() + seconds
        while not (found := ready in self.text if isinstance(ready, str) else ready(self)):
            if time.monotonic() >= end:
                break
            self._read(0.02)
        return found

    def finish(self, seconds: float = 120) -> int:
        """Read until the process ends; returns its code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"still running:\n{self.text}"
            self._read(0.02)
        while self._read(0.05):
            pass
        return int(self.process.returncode)

    @property
    def lines(self) -> list[str]:
        """Scrollback and screen, without trailing blanks."""
        above = ["".join(row[x].data for x in range(self.screen.columns)) for row in self.screen.history.top]
        found = [line.rstrip() for line in [*above, *self.screen.display]]
        while found and not found[-1]:
            found.pop()
        return found

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    @property
    def intact(self) -> bool:
        """Whether the cursor is visible and the terminal's modes are those it started with."""
        shown = self.raw.rfind(b"\x1b[?25h") >= self.raw.rfind(b"\x1b[?25l")
        return shown and b"\x1b[?1049h" not in self.raw and termios.tcgetattr(self._child) == self.modes

    def _read(self, seconds: float) -> bool:
        if not select.select([self._parent], [], [], seconds)[0]:
            return False
        data = os.read(self._parent, 65536)
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._parent)
        os.close(self._child)


def scripted(folder: Path, *arguments: str) -> list[str]:
    """The command line of a model that answers with the folder's script."""
    return [sys.executable, "-c", START, arguments[0], "-m", str(folder), "--backend", NAME, *arguments[1:]]


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
