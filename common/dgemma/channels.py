"""Answer, reasoning and tool calls told apart in a text that arrives in pieces.

Knows Gemma's markers and nothing about tokens: feed it text in which the markers are spelled out. A marker may be cut
anywhere between two pieces; what could still become one is held back. Reasoning never reaches the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dgemma.toolcalls import QUOTE, ToolCall, parse_call

Kind = Literal["answer", "reasoning", "tool_call"]
_State = Literal["answer", "header", "reasoning"]
CHANNEL, CHANNEL_END, CALL, CALL_END = "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"
MARKERS = (CHANNEL, CHANNEL_END, CALL, CALL_END, QUOTE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one kind; a tool call comes whole, with `call` set."""

    kind: Kind
    text: str
    call: ToolCall | None = None


class Channels:
    """The incremental parser. `prompt` is what the model continues: its last turn may leave a channel open."""

    def __init__(self, prompt: str = "") -> None:
        self._state: _State = "answer"
        self._call: str | None = None
        self._held = ""
        self.push(prompt.rpartition("<|turn>")[2])
        self._call, self._held = None, ""

    def push(self, text: str) -> list[Piece]:
        """Take more text; return what it settles."""
        return list(_merged(self._pieces(self._held + text, final=False)))

    def flush(self) -> list[Piece]:
        """Return what is held back, markers cut short and tool calls left open included; the stream ends here."""
        pieces = list(_merged(self._pieces(self._held, final=True)))
        if self._call is not None:
            pieces.append(Piece("tool_call", self._call, ToolCall(None, None, self._call)))
        self._call = None
        return pieces

    def _pieces(self, text: str, final: bool) -> Iterator[Piece]:
        while found := _first_marker(text):
            start, marker = found
            yield from self._text(text[:start])
            yield from self._mark(marker)
            text = text[start + len(marker) :]
        keep = 0 if final else _partial_marker(text)
        self._held = text[len(text) - keep :]
        yield from self._text(text[: len(text) - keep])

    def _text(self, text: str) -> Iterator[Piece]:
        if self._call is not None:
            self._call += text
            return
        if self._state == "header" and "\n" in text:
            text, self._state = text.partition("\n")[2], "reasoning"
        if text and self._state != "header":
            yield Piece("answer" if self._state == "answer" else "reasoning", text)

    def _mark(self, marker: str) -> Iterator[Piece]:
        if marker == CALL:
            self._call = ""
        elif marker == CALL_END and self._call is not None:
            yield Piece("tool_call", self._call, parse_call(self._call))
            self._call = None
        elif self._call is not None:
            self._call += marker
        elif marker in (CHANNEL, CHANNEL_END):
            self._state = "header" if marker == CHANNEL else "answer"


def _first_marker(text: str) -> tuple[int, str] | None:
    places = [(text.find(marker), marker) for marker in MARKERS]
    return min((place for place in places if place[0] >= 0), default=None)


def _partial_marker(text: str) -> int:
    """How many characters at the end of `text` could be the beginning of a marker."""
    longest = max(map(len, MARKERS)) - 1
    tails = range(min(longest, len(text)), 0, -1)
    return next((n for n in tails if any(marker.startswith(text[-n:]) for marker in MARKERS)), 0)


def _merged(pieces: Iterator[Piece]) -> Iterator[Piece]:
    last: Piece | None = None
    for piece in pieces:
        if last and last.call is None and piece.call is None and last.kind == piece.kind:
            last = Piece(last.kind, last.text + piece.text)
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last
