"""Stop strings: when a text ends, and the text without them.

Tokens are kept up to the one that completes a stop string; the text ends before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dgemma.request import StopTokens
from dgemma.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StopText:
    """A stop rule of the engine: the first stop token (excluded), or the first of `strings` (its tokens kept)."""

    tokenizer: Tokenizer
    strings: tuple[str, ...]
    keep: Collection[str] | None = None

    def __call__(self, generated: Sequence[int]) -> int | None:
        """How many of the generated ids to keep; None to go on."""
        end = StopTokens(self.tokenizer.stop_ids)(generated)
        ids = generated[:end]
        if not self.strings or not self._found(ids):
            return end
        low, high = 1, len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._found(ids[:middle]) else (middle + 1, high)
        return low

    def _found(self, ids: Sequence[int]) -> bool:
        detokenizer = self.tokenizer.detokenizer(self.keep)
        text = detokenizer.push(ids) + detokenizer.flush()
        return any(string in text for string in self.strings)


class StopFilter:
    """Text in, text out: ends before the first of `strings`, and holds back what could be the beginning of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self._done = False

    def push(self, text: str) -> str:
        """Take more text; return what is certain to stand before any stop string."""
        if self._done:
            return ""
        text = self._held + text
        places = [place for string in self._strings if (place := text.find(string)) >= 0]
        self._done = bool(places)
        cut = min(places) if places else len(text) - self._partial(text)
        self._held = "" if places else text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """Return what is held back; the stream ends here."""
        held, self._held = self._held, ""
        return held

    def _partial(self, text: str) -> int:
        longest = max(map(len, self._strings), default=1) - 1
        tails = range(min(longest, len(text)), 0, -1)
        return next((n for n in tails if any(string.startswith(text[-n:]) for string in self._strings)), 0)
