"""How the process ends on SIGINT and SIGTERM: at once, without a word, the terminal as it was found.

Imports nothing slow: it is in place before the command line is.
"""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress
from types import FrameType
from typing import Any

_AS_FOUND = b"\x1b[?2026l\x1b[0m\x1b[?25h\r\n"
_modes: list[Any] = []
_drawing = False


def install() -> None:
    """Let both signals end the process; what was written so far stays."""
    with suppress(termios.error):
        _modes[:] = termios.tcgetattr(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


def drawing(active: bool) -> None:
    """Note whether standard error shows something that hides the cursor."""
    global _drawing
    _drawing = active


def leave(number: int, frame: FrameType | None = None) -> None:
    """End with the code 128 + `number`; as a handler it runs wherever the program is."""
    if _drawing:
        os.write(2, _AS_FOUND)
    if _modes:
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, list(_modes))
    os._exit(128 + number)
