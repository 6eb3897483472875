"""Events of a running answer to what a user sees: text, JSON, progress, warnings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dgemma.api import Model
from dgemma.channels import Piece
from dgemma.cli.jsonline import dump
from dgemma.cli.report import as_event, as_object, stats_line
from dgemma.cli.terminal import Terminal
from dgemma.events import Draft, Event
from dgemma.generation import Generation, Stream


@dataclass(frozen=True, slots=True)
class Output:
    """What goes to standard output and when; `at_end` keeps the answer back until it is whole."""

    json: bool = False
    jsonl: bool = False
    stats: bool = False
    at_end: bool = False


class Printer:
    """Prints one answer."""

    def __init__(self, terminal: Terminal, output: Output, model: Model) -> None:
        self._terminal, self._output, self._model = terminal, output, model

    def event(self, event: Event, stream: Stream) -> None:
        """Show one event of `stream`."""
        if self._output.jsonl:
            done = stream.generations[0] if stream.generations else None
            self._terminal.write(dump(as_event(event, done, self._model.tokenizer)))
        if isinstance(event, Draft):
            self._terminal.canvas(event, self._model.tokenizer)
        elif not (self._output.json or self._output.jsonl):
            self._pieces(event.pieces)

    def finish(self, generation: Generation, max_tokens: int) -> None:
        """Show what is only known at the end."""
        if self._output.json:
            self._terminal.write(dump(as_object(generation)))
        elif not self._output.jsonl:
            self._terminal.write((generation.text if self._output.at_end else "") + "\n")
        for warning in _warnings(generation, max_tokens):
            self._terminal.note(warning)
        if self._output.stats:
            self._terminal.note(stats_line(generation), always=True)

    def _pieces(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if piece.call:
                self._terminal.note(f"tool call: {dump(piece.call.as_dict()).strip()}")
            elif piece.kind == "reasoning":
                self._terminal.talk(piece.text)
            elif not self._output.at_end:
                self._terminal.write(piece.text)


def _warnings(generation: Generation, max_tokens: int) -> Iterable[str]:
    stats = generation.stats
    if unsettled := generation.unsettled_canvases:
        yield f"Warning: {unsettled} of {stats.canvases} blocks reached the step cap before they settled (--steps)."
    if generation.finish_reason == "length":
        full = len(generation.tokens) < max_tokens
        yield "Stopped where the model's context ends." if full else f"Stopped at {max_tokens} tokens (-n)."
