"""Everything the command line draws, and how it ends: answers on stdout, talk on stderr, one line per error."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import typer

from dgemma.errors import DgemmaError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class Terminal:
    """Standard error for people, standard output for the answer's bytes."""

    def __init__(self, quiet: bool = False, progress: bool = True) -> None:
        self._quiet = quiet
        self._console = _console()
        self._progress = progress and not quiet
        self._status: Status | None = None
        self._line_open = False
        self._talking = False

    def write(self, text: str) -> None:
        """Write to standard output at once, byte for byte."""
        if not text:
            return
        self._free_line()
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        self._line_open = not text.endswith("\n")

    def data(self, raw: bytes) -> None:
        """Write bytes to standard output as they are."""
        self._free_line()
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()

    def note(self, line: str, always: bool = False) -> None:
        """Print a line on standard error, dim on a terminal; `always`: even when quiet."""
        if always or not self._quiet:
            self._free_line()
            self._print(line, "\n")

    def talk(self, text: str) -> None:
        """Print a part of a longer text on standard error."""
        if text and not self._quiet:
            self._pause()
            self._print(text, "")
            self._talking = not text.endswith("\n")

    def progress(self, text: str) -> None:
        """Show what is going on; only on a terminal whose line is free."""
        if self._console is None or not self._progress or self._line_open or self._talking:
            return
        if self._status is None:
            self._status = self._console.status(text, spinner="dots")
            self._status.start()
        self._status.update(text)

    def close(self) -> None:
        """Remove the progress display and end the line."""
        self._free_line()

    def _print(self, text: str, end: str) -> None:
        if self._console:
            self._console.print(text, style="dim", end=end, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, end=end, flush=True)

    def _free_line(self) -> None:
        self._pause()
        if self._talking:
            self._print("", "\n")
            self._talking = False

    def _pause(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Interrupts:
    """While active, the first SIGINT or SIGTERM only sets `code`; the next one interrupts at once."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.code is not None:
            raise KeyboardInterrupt
        self.code = 128 + number


@contextmanager
def exit_codes(verbose: bool) -> Iterator[None]:
    """Turn errors into one line on standard error and the exit code that belongs to them."""
    try:
        yield
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(0) from None
    except DgemmaError as error:
        raise _failed(error.line(), error.exit_code, verbose) from None
    except MemoryError:
        raise _failed("Out of memory. Try a smaller model or a shorter prompt.", 5, verbose) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:
        if isinstance(error, typer.Exit | typer.Abort):
            raise
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise _failed(f"Unexpected {line}. Run again with -v for the traceback.", 1, verbose) from None


def _failed(line: str, code: int, verbose: bool) -> typer.Exit:
    if verbose:
        traceback.print_exc()
    print(f"dgemma: {line}", file=sys.stderr)
    return typer.Exit(code)


def _silence_stdout() -> None:
    """Keep the interpreter from complaining when it flushes a pipe that nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console() -> Console | None:
    """A rich console where standard error is a terminal that may be decorated; importing rich costs time."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not sys.stderr.isatty():
        return None
    from rich.console import Console

    return Console(stderr=True)
