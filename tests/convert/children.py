"""Conversions in processes of their own, forked with everything imported: they can be held, and killed for real."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dgemma.errors import DgemmaError
from dgemma_convert import Options, convert

Hook = Callable[[int, int, str], None]
CRASHED = 99
OPTIONS = Options(bits=4)


class Child:
    """`convert(*arguments)` in a fork, which waits once `held` bytes are done until it is let go; a context manager."""

    def __init__(
        self, *arguments: Any, held: int | None = None, setup: Callable[[], None] | None = None, **options: Any
    ) -> None:
        self._reached, reaching = os.pipe()
        going, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(arguments, options, _holding(held, reaching, going), setup)
        os.close(reaching)
        os.close(going)
        self._code: int | None = None

    def reached(self) -> None:
        """Wait until it is held."""
        assert os.read(self._reached, 1) == b"x", self.wait()

    def go(self) -> None:
        """Let it go on."""
        os.write(self._go, b"x")

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Its exit code: that of its error, or minus the signal."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    @staticmethod
    def _run(arguments: tuple[Any, ...], options: dict[str, Any], hook: Hook, setup: Callable[[], None] | None) -> None:
        code = CRASHED
        try:
            if setup is not None:
                setup()
            convert(*arguments, progress=hook, **options)
            code = 0
        except DgemmaError as error:
            code = error.exit_code
        finally:
            os._exit(code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        os.close(self._reached)
        os.close(self._go)


def contents(folder: Path) -> dict[str, bytes]:
    """Names and bytes of the files in `folder`."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def _holding(held: int | None, reaching: int, going: int) -> Hook:
    waiting = [held is not None]

    def hook(done: int, total: int, name: str) -> None:
        if waiting[0] and done >= (held or 0):
            waiting[0] = False
            os.write(reaching, b"x")
            os.read(going, 1)

    return hook
