"""The prompt from its places: files, then standard input, then the argument, with blank lines between them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from dgemma.errors import UsageError


def read_prompt(argument: str | None, option: str | None, files: Sequence[Path]) -> str:
    """Raises UsageError where there is nothing to read."""
    if argument is not None and option is not None:
        raise UsageError("The prompt is given twice.", "Give it as an argument or with -p.")
    text = option if argument is None else argument
    parts = [_read_file(path) for path in files]
    if text == "-" or _is_piped():
        parts.append(_read_stdin())
    if text is not None and text != "-":
        parts.append(text)
    parts = [part for part in parts if part.strip()]
    if not parts:
        raise UsageError("There is no prompt.", 'Try: dgemma generate "add 12+30"')
    return parts[0] if len(parts) == 1 else "\n\n".join(part.strip("\n") for part in parts)


def read_start(path: Path | None) -> str | None:
    """The text of a file to start from; raises UsageError where it cannot be read or is empty."""
    text = None if path is None else _read_file(path)
    if text == "":
        raise UsageError(f"{path} is empty.")
    return text


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("Standard input is not UTF-8 text.") from error


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file; /dev/null and a terminal are neither."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:
        return True
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
