"""How far a conversion is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int, str], None]
# Numbers converted or compared at a time.
RUN = 1 << 23


@dataclass(slots=True)
class Meter:
    """Bytes done of bytes to do."""

    total: int
    show: Progress
    done: int = 0

    def add(self, count: int, name: str) -> None:
        """Note that `count` more bytes, of the weight `name`, are done."""
        self.done += count
        self.show(self.done, self.total, name)
