"""What a user enters: lines with editing and history on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dgemma.errors import UsageError

PROMPT, MORE = ">>> ", "... "
_QUOTES = '"""'
_KEPT = 1000


class Lines:
    """Entries of a conversation: one line each, or several between triple quotes."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.interactive = _is_terminal()
        self._ask = _editing(words) if self.interactive else _plain

    def read(self) -> str | None:
        """The next entry; None at the end. Raises UsageError where the end comes within an entry."""
        line = self._line(PROMPT)
        if line is None or not line.lstrip().startswith(_QUOTES):
            return line
        return self._until_quotes(line.lstrip()[len(_QUOTES) :])

    def _until_quotes(self, line: str) -> str:
        found = [line]
        while _QUOTES not in found[-1]:
            more = self._line(MORE)
            if more is None:
                raise UsageError(f"The entry has no closing {_QUOTES} and is dropped.", "Enter it again.")
            found.append(more)
        return "\n".join([*found[:-1], found[-1].partition(_QUOTES)[0]]).strip("\n")

    def _line(self, prompt: str) -> str | None:
        return self._ask(prompt if self.interactive else "")


def history_file() -> Path:
    """Where lines are kept between runs."""
    from platformdirs import user_state_path

    return user_state_path("dgemma") / "history"


def _is_terminal() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream is not None and not stream.closed and stream.isatty() for stream in streams)


def _plain(prompt: str) -> str | None:
    if prompt:
        print(prompt, end="", file=sys.stderr, flush=True)
    if sys.stdin is None or sys.stdin.closed:
        return None
    line = sys.stdin.buffer.readline()
    return line.decode("utf-8", "replace").rstrip("\r\n") if line else None


def _editing(words: Sequence[str]) -> Callable[[str], str | None]:
    """Reading with GNU readline or libedit, where the terminal can be edited on."""
    if os.environ.get("TERM") == "dumb":
        return _plain
    try:
        import readline
    except ImportError:
        return _plain
    path = history_file()
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_KEPT)
    readline.set_completer(lambda text, state: [*(w for w in words if w.startswith(text)), None][state])
    readline.set_completer_delims("")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    if os.environ.get("NO_COLOR"):
        readline.parse_and_bind("set enable-bracketed-paste off")

    def ask(prompt: str) -> str | None:
        try:
            line = input(prompt)
        except EOFError:
            print(file=sys.stderr)
            return None
        line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
        return line

    return ask
