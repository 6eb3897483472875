"""What SIGINT and SIGTERM do while something is computed: the answer ends, not the process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from dgemma import signals

INTERRUPTED = 128 + signal.SIGINT


class Interrupts:
    """While active, the first SIGINT or SIGTERM only sets `code`; the next one ends the process."""

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
            signals.leave(number)
        self.code = 128 + number


class Abort(Interrupts):
    """The same, but the first one raises KeyboardInterrupt where the program is."""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        super()._handle(number, frame)
        raise KeyboardInterrupt


class TalkInterrupts(Interrupts):
    """The same for a whole conversation: no moment of it belongs to another handler.

    On a terminal SIGINT raises KeyboardInterrupt while a line is entered, at most once, and otherwise stops the answer
    that runs or is about to. Without a terminal it ends the process outside an answer, as SIGTERM does everywhere.
    """

    def __init__(self, interactive: bool) -> None:
        super().__init__()
        self._interactive = interactive
        self._entering = self._answering = False

    @contextmanager
    def entering(self) -> Iterator[None]:
        """A line is being entered; catch KeyboardInterrupt around it."""
        self._entering, self.code = True, None
        try:
            yield
        finally:
            self._entering = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """An answer is under way; afterwards `code` tells whether it was stopped."""
        self._answering = True
        try:
            yield
        finally:
            self._answering = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._answering and (number == signal.SIGTERM or not self._interactive):
            signals.leave(number)
        if self._entering:
            self._entering = False
            raise KeyboardInterrupt
        super()._handle(number, frame)
