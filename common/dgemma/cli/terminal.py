"""Everything the command line draws, and how it ends: answers on stdout, talk on stderr, one line per error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, Self, TextIO

import typer

from dgemma import signals
from dgemma.cli.visible import visible
from dgemma.errors import DgemmaError, StandardOutputError, UsageError
from dgemma.outputs import standard_output

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.status import Status

    from dgemma.cli.live import LiveCanvas
    from dgemma.events import Draft
    from dgemma.tokenizer import Tokenizer


Show = Literal["auto", "live", "blocks", "none"]
_LONGEST_LINE = 4000


class Terminal:
    """Standard error for people, standard output for the answer's bytes.

    Where both are one terminal canvases are drawn below the text, whose lines are then printed once they are complete.
    `show` as the flag: auto and live draw, blocks and none do not.
    """

    def __init__(self, quiet: bool = False, show: Show = "auto") -> None:
        self.quiet = quiet
        self._console = _console()
        self._shared = _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
        self._progress = show in ("auto", "live") and not quiet
        self._live = self._progress and self._console is not None and self._shared
        self._status: Status | None = None
        self._canvas: LiveCanvas | None = None
        self._held = self._held_talk = ""
        self._line_open = False
        self._talking = False

    @property
    def console(self) -> Console | None:
        """Standard error as a rich console, where it is a terminal that may be decorated."""
        return self._console

    def write(self, text: str) -> None:
        """Write to standard output at once; byte for byte where that is not a terminal."""
        if not text:
            return
        if self._talking or self._held_talk:
            self._end_talk()
        if self._canvas is not None and not self._line_open:
            text = self._held + text
            cut = text.rfind("\n") + 1
            text, self._held = text[:cut], text[cut:]
        if text:
            self._pause()
            self._out(text)

    def data(self, raw: bytes) -> None:
        """Write bytes to standard output as they are."""
        self._free_line()
        with standard_output():
            sys.stdout.buffer.write(raw)
            sys.stdout.buffer.flush()

    def note(self, line: str, always: bool = False) -> None:
        """Print a line on standard error, dim on a terminal; `always`: even when quiet."""
        if always or not self.quiet:
            self._free_line()
            if self._line_open and self._shared:
                self._print("", "\n")
                self._line_open = False
            self._print(visible(line), "\n")

    def talk(self, text: str) -> None:
        """Print a part of a longer text on standard error."""
        if not text or self.quiet:
            return
        if self._held:
            self._free_line()
        if self._canvas is not None:
            text = self._held_talk + text
            cut = text.rfind("\n") + 1
            text, self._held_talk = text[:cut], text[cut:]
        if text:
            self._pause()
            self._print(text, "")
            self._talking = not text.endswith("\n")

    def show(self, renderable: RenderableType, plain: str) -> None:
        """Print something drawn with rich on standard error, or `plain` where that cannot be."""
        if self.quiet:
            return
        self._free_line()
        if self._console is None:
            self._print(plain, "\n")
        else:
            self._console.print(renderable)

    def progress(self, text: str) -> None:
        """Show what is going on; only on a terminal whose line is free."""
        if self._console is None or not self._progress or self._line_open or self._talking:
            return
        if self._status is None:
            signals.drawing(True)
            self._status = self._console.status(text, spinner="dots")
            self._status.start()
        self._status.update(text)

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar of `total` bytes; the function it gives takes how many have arrived."""
        if self._console is None or self.quiet or not total:
            yield lambda count: None
            return
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        columns = (
            TextColumn(visible(name), markup=False),
            BarColumn(),
            DownloadColumn(),
            Speed(),
            TimeRemainingColumn(),
        )
        self._free_line()
        signals.drawing(True)
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task("", total=total)
            yield lambda count: progress.update(task, completed=count)
        signals.drawing(False)

    def canvas(self, draft: Draft, tokenizer: Tokenizer) -> None:
        """Show a canvas that is being denoised: itself, or on other terminals how far it is."""
        if self._console is None:
            return
        if not self._live or self._line_open or self._talking:
            self.progress(" · ".join(draft.summary))
            return
        if self._canvas is None:
            from dgemma.cli.live import LiveCanvas

            self._canvas = LiveCanvas(self._console, tokenizer)
        self._end_status()
        self._canvas.draw(draft, self._held, self._held_talk)

    def end_line(self) -> None:
        """End the answer's line where it is not complete."""
        self._free_line()
        self._out("\n" if self._line_open else "")

    def close(self) -> None:
        """Remove what is drawn and print what was held back."""
        self._free_line()

    def _out(self, text: str) -> None:
        if not text:
            return
        shown = visible(text) if _is_terminal(sys.stdout) else text
        with standard_output():
            sys.stdout.buffer.write(shown.encode("utf-8", "replace"))
            sys.stdout.buffer.flush()
        self._line_open = not text.endswith("\n")

    def _print(self, text: str, end: str) -> None:
        if self._console:
            text = visible(text)
            self._console.print(text, style="dim", end=end, markup=False, highlight=False, soft_wrap=True, emoji=False)
        else:
            text = visible(text) if _is_terminal(sys.stderr) else text
            with suppress(OSError):
                print(text, file=sys.stderr, end=end, flush=True)

    def _free_line(self) -> None:
        self._end_talk()
        held, self._held = self._held, ""
        self._out(held)

    def _end_talk(self) -> None:
        self._pause()
        if self._talking or self._held_talk:
            self._print(self._held_talk, "\n")
            self._talking, self._held_talk = False, ""

    def _pause(self) -> None:
        self._end_status()
        if self._canvas is not None:
            self._canvas.erase()

    def _end_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
            signals.drawing(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def exit_codes(verbose: bool) -> Iterator[None]:
    """Turn errors into one line on standard error and the exit code that belongs to them."""
    try:
        yield
    except BrokenPipeError:
        silence_stdout()
        raise typer.Exit(0) from None
    except DgemmaError as error:
        if isinstance(error, StandardOutputError):
            silence_stdout()
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
    line = visible(" ".join(line.split("\n")))
    line = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} ..."
    with suppress(OSError):
        if verbose:
            print(visible(traceback.format_exc()), file=sys.stderr, end="")
        print(f"dgemma: {line}", file=sys.stderr, flush=True)
    return typer.Exit(code)


def silence_stdout() -> None:
    """Keep the interpreter from complaining when it flushes a pipe that nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_show(show: str) -> None:
    """Raise UsageError where `--show live` is asked for and cannot be."""
    possible = not _is_plain() and _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
    if show == "live" and not possible:
        raise UsageError("--show live needs a terminal for output and errors, and no NO_COLOR.", "Leave it out.")


def _is_plain() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _console() -> Console | None:
    """A rich console where standard error is a terminal that may be decorated; importing rich costs time."""
    if _is_plain() or not _is_terminal(sys.stderr):
        return None
    from rich.console import Console

    return Console(stderr=True)
