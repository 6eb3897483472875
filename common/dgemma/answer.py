"""One sequence's tokens becoming text: detokenized across canvas edges, cut at stop strings, told apart by channel."""

from __future__ import annotations

from collections.abc import Iterable

from dgemma.channels import MARKERS, Channels, Piece
from dgemma.stopping import StopFilter, StopText
from dgemma.tokenizer import Tokenizer
from dgemma.toolcalls import ToolCall


class Answer:
    """Collects what was committed so far; `raw` keeps every marker in the text and tells nothing apart."""

    def __init__(self, tokenizer: Tokenizer, prompt: str, stop: tuple[str, ...] = (), raw: bool = False) -> None:
        keep = None if raw else MARKERS
        self.rule = StopText(tokenizer, stop, keep)
        self.tokens: list[int] = []
        self._detokenizer = tokenizer.detokenizer(keep)
        self._filter = StopFilter(stop)
        self._channels = None if raw else Channels(prompt)
        self._pieces: list[Piece] = []

    def push(self, tokens: Iterable[int]) -> tuple[Piece, ...]:
        """Take the tokens of a block; return the text they settle."""
        tokens = list(tokens)
        self.tokens += tokens
        return self._keep(self._split(self._filter.push(self._detokenizer.push(tokens))))

    def flush(self) -> tuple[Piece, ...]:
        """Return what was held back; the sequence ends here."""
        text = self._filter.push(self._detokenizer.flush()) + self._filter.flush()
        rest = self._channels.flush() if self._channels else []
        return self._keep(self._split(text) + rest)

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(piece.text for piece in self._pieces if piece.kind == "answer")

    @property
    def reasoning(self) -> str:
        """What was thought, without its markers and outer white space."""
        return "".join(piece.text for piece in self._pieces if piece.kind == "reasoning").strip()

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls in order."""
        return tuple(piece.call for piece in self._pieces if piece.call)

    def _split(self, text: str) -> list[Piece]:
        if self._channels:
            return self._channels.push(text)
        return [Piece("answer", text)] if text else []

    def _keep(self, pieces: list[Piece]) -> tuple[Piece, ...]:
        self._pieces += pieces
        return tuple(pieces)
