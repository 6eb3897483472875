"""`--trace FILE`: records a running generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dgemma.outputs import writing

if TYPE_CHECKING:
    from dgemma.api import Model
    from dgemma.events import Event
    from dgemma.trace import TraceWriter


class Recorder:
    """Writes a trace to an open file; without one it does nothing."""

    def __init__(self, file: TextIO | None = None, path: Path = Path()) -> None:
        self._file, self._path = file, path
        self._writer: TraceWriter | None = None

    def start(self, model: Model, seed: int, settings: Mapping[str, Any]) -> None:
        """Write the header."""
        if self._file is None:
            return
        from dataclasses import asdict

        from dgemma.trace import TraceWriter

        chosen = {name: value for name, value in settings.items() if value not in (None, (), False)}
        header = {**asdict(model.origin), "seed": seed, "settings": chosen}
        tokenizer = model.tokenizer
        self._writer = TraceWriter(self._write, lambda token: tokenizer.decode([token], skip_special=False), header)

    def event(self, event: Event) -> None:
        """Write one event."""
        if self._writer:
            self._writer.event(event)

    def _write(self, line: str) -> None:
        assert self._file is not None
        with writing(self._path):
            self._file.write(line)


@contextmanager
def recorder(path: Path | None) -> Iterator[Recorder]:
    """A recorder into `path`, line by line, so that a killed process leaves what it had."""
    if path is None:
        yield Recorder()
        return
    with writing(path):
        file = path.open("w", encoding="utf-8", newline="\n", buffering=1)
    try:
        yield Recorder(file, path)
    finally:
        with writing(path):
            file.close()
