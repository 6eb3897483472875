"""Frames on a terminal: drawn below what is printed, redrawn in place, gone without a trace.

A frame is drawn at most every 50 ms, and never so often that drawing takes more than a hundredth of the time.
"""

from __future__ import annotations

import os
import time

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType

from dgemma import signals
from dgemma.cli.view import MUTED, SETTLED, Frame, Spelling
from dgemma.cli.visible import visible
from dgemma.events import Draft
from dgemma.tokenizer import Tokenizer

_INTERVAL = 0.05
_SHARE = 100
_SYNC_ON, _SYNC_OFF = "\x1b[?2026h", "\x1b[?2026l"
_REFLOWING = ("TMUX", "VTE_VERSION", "KITTY_WINDOW_ID", "WEZTERM_PANE", "GHOSTTY_RESOURCES_DIR", "ITERM_SESSION_ID")


class LiveCanvas:
    """Shows one canvas at a time on a console that is a terminal."""

    def __init__(self, console: Console, tokenizer: Tokenizer) -> None:
        self._console = console
        self._spelling = Spelling(tokenizer)
        self._live: Live | None = None
        self._frame: Frame | None = None
        self._size = console.size
        self._next = 0.0

    def draw(self, draft: Draft, line: str, thought: str) -> None:
        """Draw `draft` behind the unfinished `line` of the answer or of a `thought`, if it is time for a frame."""
        now, spent = time.perf_counter(), time.thread_time()
        if now < self._next:
            return
        before = [(visible(text), style) for text, style in ((thought, MUTED), (line, SETTLED)) if text]
        frame = self._spelling.frame(draft, before)
        if frame != self._frame or self._console.size != self._size:
            self._draw(frame)
        self._next = now + max(_INTERVAL, _SHARE * (time.thread_time() - spent))

    def erase(self) -> None:
        """Remove the frame and show the cursor again; the next one may follow at once."""
        if self._live is None:
            return
        stale = self._stale_rows()
        self._console.file.write(_SYNC_ON)
        self._live.stop()
        if stale:
            self._console.control(Control(*[(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * stale))
        self._console.file.write(_SYNC_OFF)
        self._console.file.flush()
        self._live = self._frame = None
        self._next = 0.0
        signals.drawing(False)

    def _draw(self, frame: Frame) -> None:
        if self._console.size != self._size:
            self.erase()
        signals.drawing(True)
        self._console.file.write(_SYNC_ON)
        if self._live is None:
            self._live = Live(
                console=self._console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
        self._live.update(frame, refresh=True)
        self._console.file.write(_SYNC_OFF)
        self._console.file.flush()
        self._frame, self._size = frame, self._console.size

    def _stale_rows(self) -> int:
        """Rows that a terminal which reflows its lines made of the frame beyond those it was drawn in."""
        width = self._console.size.width
        if self._frame is None or width >= self._size.width or not any(name in os.environ for name in _REFLOWING):
            return 0
        rows = self._frame.rows(self._size.width, max(2, self._size.height - 1))
        cells = [sum(segment.cell_length for segment in row) for row in rows]
        return sum(-(-count // width) - 1 for count in cells if count > width)
