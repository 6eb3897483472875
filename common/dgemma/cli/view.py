"""One frame of the canvas being denoised: a header, then the end of the text, as much as fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from dgemma.cli.visible import visible
from dgemma.events import Draft
from dgemma.tokenizer import Tokenizer

SETTLED, CHANGED, MUTED = Style(), Style(underline=True), Style(dim=True)
_UNDECIDED = "·"
_TAB = "    "
Run = tuple[str, Style]


@dataclass(frozen=True, slots=True)
class Frame:
    """`runs` are what is shown of the canvas, `head` parts of the header, the most important first."""

    head: tuple[str, ...]
    runs: tuple[Run, ...]

    def rows(self, width: int, height: int) -> list[list[Segment]]:
        """At most `height` rows of at most `width` cells; of the text the last ones."""
        head = [Segment(_fitted(self.head, width), MUTED)]
        text = folded(self.runs, width)
        return [head, *text[-max(1, height - 1) :]][:height]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = console.size
        for index, row in enumerate(self.rows(width, max(2, height - 1))):
            if index:
                yield Segment.line()
            yield from row


@dataclass(slots=True)
class Spelling:
    """Ids to what a person sees of them."""

    tokenizer: Tokenizer
    _known: dict[int, str] = field(default_factory=dict)

    def frame(self, draft: Draft, before: Iterable[Run] = ()) -> Frame:
        """The frame of `draft`; `before` is the unfinished line that the canvas continues."""
        groups = groupby(self._runs(draft), key=itemgetter(1))
        return Frame(draft.summary, (*before, *(("".join(text for text, _ in runs), style) for style, runs in groups)))

    def _runs(self, draft: Draft) -> Iterator[Run]:
        bytes_: list[int] = []
        for token, accepted, changed in zip(draft.tokens, draft.accepted, draft.changed, strict=True):
            if accepted and token in self.tokenizer.stop_ids:
                break
            text = self._text(token) if accepted else _UNDECIDED
            if text == "\ufffd":
                bytes_.append(token)
                continue
            if bytes_:
                yield self._together(bytes_), SETTLED
                bytes_ = []
            if text:
                yield text, (CHANGED if changed else SETTLED) if accepted else MUTED
        if bytes_:
            yield self._together(bytes_), SETTLED

    def _text(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._together([token])
        return self._known[token]

    def _together(self, tokens: list[int]) -> str:
        return visible(self.tokenizer.decode(tokens)).replace("\t", _TAB)


def folded(runs: Iterable[Run], width: int) -> list[list[Segment]]:
    """Rows of at most `width` cells, broken where a terminal would break them."""
    rows: list[list[Segment]] = [[]]
    room = width
    for text, style in runs:
        start = 0
        for index, character in enumerate(text):
            size = 0 if character == "\n" else 1 if character.isascii() else cell_len(character)
            if character != "\n" and size <= room:
                room -= size
                continue
            rows[-1].append(Segment(text[start:index], style))
            rows.append([])
            start, room = (index + 1, width) if character == "\n" else (index, width - size)
        rows[-1].append(Segment(text[start:], style))
    return rows


def _fitted(parts: tuple[str, ...], width: int) -> str:
    """As many of the parts as fit."""
    fitting = (" · ".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((text for text in fitting if cell_len(text) <= width), parts[0][:width])
