"""Fill the holes of a text, and rewrite a span of it, with everything else pinned."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from dgemma.backend import Backend
from dgemma.engine import Engine
from dgemma.errors import require
from dgemma.events import Block, Draft, Event, Finish
from dgemma.generation import Origin
from dgemma.holes import Hole, Layout, Part, lay_out, parse, unknown
from dgemma.request import Request
from dgemma.settings import Settings
from dgemma.stats import Stats
from dgemma.tokenizer import Tokenizer

if TYPE_CHECKING:
    from dgemma.config import GenerationDefaults

LENGTHS = range(1, 17)
_MOST_LENGTHS = 64
_NEAR, _DOUBT, _TOKEN = 16, 4.0, 0.02
_SHARES = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
_GAP = "___"
_END = "<turn|>"


Listen = Callable[[Draft | Block], object]


def ignore(event: Draft | Block) -> None:
    """Listen to nothing."""


class Filler(Protocol):
    """What filling needs of a loaded model."""

    tokenizer: Tokenizer
    defaults: GenerationDefaults
    backend: Backend

    @property
    def origin(self) -> Origin:
        """What it is and where it runs."""

    def prompt_text(self, prompt: str, settings: Settings) -> str:
        """What the model reads."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A text whose holes are filled: `parts` with `fills`, decoded from `tokens`.

    `entropy` is the mean over the holes' positions at the last step, in nats.
    """

    parts: tuple[Part, ...]
    fills: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    entropy: float
    seed: int
    origin: Origin
    stats: Stats

    @property
    def text(self) -> str:
        """The whole text."""
        return self.join()

    @property
    def empty(self) -> tuple[int, ...]:
        """The holes, counted from 1, that the model filled with nothing: with ends of a turn, for example."""
        return tuple(number for number, text in enumerate(self.fills, 1) if not text)

    def join(self, adapt: Callable[[str], str] = str) -> str:
        """The whole text, each fill passed through `adapt`."""
        fills = iter(self.fills)
        return "".join(adapt(next(fills)) if isinstance(part, Hole) else part for part in self.parts)

    def __str__(self) -> str:
        return self.text


def fill(
    model: Filler,
    text: str,
    instruction: str | None,
    lengths: Iterable[int] | None,
    settings: Settings,
    listen: Listen = ignore,
) -> Filled:
    """Fill every `<fill>` and `<fill:N>` of `text`.

    `instruction` is the prompt that the whole text answers (by default: to fill its gaps). A hole without a length gets
    the one of `lengths`, all of them tried in one batch, at which the model is most certain of what it writes and would
    keep most of the text around it. `listen` hears every event but the ends; its handle is the number of the length.
    """
    parts = parse(text)
    shown = "".join(_GAP if isinstance(part, Hole) else part for part in parts)
    wanted = f"Fill each gap, marked {_GAP}, and answer with the whole text:\n\n{shown}"
    return _Job(model, settings, instruction or wanted, listen).fill(parts, _few(lengths or LENGTHS))


def edit(
    model: Filler,
    text: str,
    lines: tuple[int, int],
    instruction: str | None,
    lengths: Iterable[int] | None,
    warm: bool,
    settings: Settings,
    listen: Listen = ignore,
) -> Filled:
    """Rewrite the lines `lines` (first and last, from 1) of `text` with the others pinned.

    Without `lengths` the span may become about half to one and a half times as long, or with `warm`, where the canvases
    start from the old span instead of noise, keeps its number of tokens. `listen` as in `fill`.
    """
    before, span, behind = span_of(text, lines)
    size = max(1, len(model.tokenizer.encode(span)))
    tried = sorted({max(1, round(size * share)) for share in ((1.0,) if warm else _SHARES)})
    wanted = f"Change only lines {lines[0]} to {lines[1]} and answer with the whole text:"
    prompt = f"{instruction or 'Improve this text.'}\n\n{wanted}\n\n{text}"
    parts = tuple(part for part in (before, Hole(text=span if warm else ""), behind) if part != "")
    return _Job(model, settings, prompt, listen).fill(parts, _few(lengths or tried))


def span_of(text: str, lines: tuple[int, int]) -> tuple[str, str, str]:
    """The text before, in and behind lines A to B; the end of line B is behind."""
    first, last = lines
    require(1 <= first <= last, f"Lines {first}:{last} are no span.", "Count from 1, the first before the last.")
    found = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
    require(last <= len(found), f"The text has {len(found)} lines, not {last}.")
    start, end = len("".join(found[: first - 1])), len("".join(found[:last]))
    end = start + len(text[start:end].removesuffix("\n").removesuffix("\r"))
    return text[:start], text[start:end], text[end:]


def _few(lengths: Iterable[int]) -> tuple[int, ...]:
    found = tuple(itertools.islice(lengths, _MOST_LENGTHS + 1))
    require(len(found) <= _MOST_LENGTHS, f"At most {_MOST_LENGTHS} lengths can be tried.", "Give fewer.")
    require(bool(found) and min(found) >= 1, "Lengths to try must be at least 1.")
    return found


class _Job:
    """One text being filled."""

    def __init__(self, model: Filler, settings: Settings, instruction: str, listen: Listen) -> None:
        require(settings.mode == "diffusion", "Only block diffusion can keep pinned positions.", "Leave --mode out.")
        self._model, self._settings, self._listen = model, settings.seeded(), listen
        prompt = model.prompt_text("" if settings.raw else instruction, settings)
        self._prompt = model.tokenizer.encode(prompt)
        self._canvas = settings.canvas_length or model.backend.config.canvas_length

    def fill(self, parts: Sequence[Part], lengths: Sequence[int]) -> Filled:
        """Find the lengths from left to right, each with what lies before the next hole of unknown length."""
        found: _Result | None = None
        while open_holes := unknown(parts):
            index, *later = open_holes
            tried = [_sized(parts, index, length) for length in lengths]
            results = self._run([each[: later[0] if later else None] for each in tried], whole=not later)
            hole = sum(isinstance(part, Hole) for part in parts[:index])
            best = min(range(len(tried)), key=lambda number: results[number].doubt(hole, self._spelled))
            parts, found = tried[best], results[best]
        return self._filled(parts, found or self._run([parts], whole=True)[0])

    def _run(self, texts: Sequence[Sequence[Part]], whole: bool) -> list[_Result]:
        layouts = [self._layout(parts, whole) for parts in texts]
        requests = [self._request(parts, layout) for parts, layout in zip(texts, layouts, strict=True)]
        self._check(max(layout.size for layout in layouts))
        results = [_Result(layout, self._canvas) for layout in layouts]
        for event in Engine(self._model.backend).stream(requests):
            results[event.handle].hear(event)
            if not isinstance(event, Finish):
                self._listen(event)
        return results

    def _check(self, size: int) -> None:
        limit, canvases = self._model.backend.config.max_position_embeddings, -(-size // self._canvas)
        needed = len(self._prompt) + canvases * self._canvas
        text = f"The prompt ({len(self._prompt)} tokens) and the text up to its last hole ({canvases} canvases) need"
        require(needed <= limit, f"{text} {needed} positions; the model has {limit}.", "Fill a part of it.")

    def _layout(self, parts: Sequence[Part], whole: bool) -> Layout:
        """Where the parts lie, as far as the last hole's canvas; behind the whole text stands the end of the turn."""
        layout, end = lay_out(parts, self._model.tokenizer.encode), self._model.tokenizer.id(_END)
        if whole and end is not None and not self._settings.raw:
            layout = layout.closed(end)
        return layout.cut(self._canvas)

    def _request(self, parts: Sequence[Part], layout: Layout) -> Request:
        return Request(
            prompt=self._prompt,
            max_tokens=layout.size,
            denoising=self._settings.denoising(self._model.defaults),
            seed=self._settings.seed or 0,
            canvas_length=self._settings.canvas_length,
            pins=layout.pins,
            warm_start=_start(parts, self._model.tokenizer),
        )

    def _spelled(self, token: int) -> bool:
        return self._model.tokenizer.decode([token]) != ""

    def _filled(self, parts: Sequence[Part], result: _Result) -> Filled:
        fills = [self._model.tokenizer.decode(tokens) for tokens in result.fills]
        assert result.stats is not None
        entropy = sum(result.entropy(hole) for hole in range(len(fills))) / len(fills)
        origin, seed = self._model.origin, self._settings.seed or 0
        return Filled(tuple(parts), tuple(fills), result.fills, entropy, seed, origin, result.stats)


class _Result:
    """Collects one generation: its tokens, and the entropies of each canvas at its last step."""

    def __init__(self, layout: Layout, canvas: int) -> None:
        self._layout, self._canvas = layout, canvas
        self._tokens: list[int] = []
        self._entropy: dict[int, float] = {}
        self._doubted: dict[int, bool] = {}
        self.stats: Stats | None = None

    def hear(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Draft):
            first = event.canvas * self._canvas
            self._entropy |= dict(enumerate(event.entropy, first))
            self._doubted |= dict(enumerate(event.doubted, first))
        elif isinstance(event, Block):
            self._tokens += event.tokens
        else:
            self.stats = event.stats

    @property
    def fills(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each hole."""
        return tuple(tuple(self._tokens[hole.start : hole.stop]) for hole in self._layout.holes)

    def doubt(self, hole: int, spelled: Callable[[int], bool]) -> float:
        """How little the model believes in a hole, in nats: its entropy, a nat for each of its tokens that spells
        nothing, and the estimated share of the given tokens behind it that the model would have written otherwise.

        A hole one too long often repeats what stands behind it, as certainly: every token costs a little.
        """
        empty = sum(not spelled(token) for token in self.fills[hole])
        places = range(self._layout.holes[hole].stop, self._layout.size)
        behind = [self._doubted[place] for place in places if place in self._layout.pins and place in self._doubted]
        share = (sum(behind[:_NEAR]) + 1) / (len(behind[:_NEAR]) + 2)
        return self.entropy(hole) + empty + _DOUBT * share + _TOKEN * len(self._layout.holes[hole])

    def entropy(self, hole: int) -> float:
        """Mean entropy over a hole's positions."""
        places = self._layout.holes[hole]
        return sum(self._entropy[place] for place in places) / len(places)


def _sized(parts: Sequence[Part], index: int, length: int) -> tuple[Part, ...]:
    hole = parts[index]
    assert isinstance(hole, Hole)
    return (*parts[:index], replace(hole, length=length), *parts[index + 1 :])


def _start(parts: Sequence[Part], tokenizer: Tokenizer) -> list[int]:
    """The tokens up to the end of the first hole, which holds what stood there before; nothing where that is empty."""
    index = next(index for index, part in enumerate(parts) if isinstance(part, Hole))
    hole = parts[index]
    assert isinstance(hole, Hole)
    before = [token for part in parts[:index] if isinstance(part, str) for token in tokenizer.encode(part)]
    return before + tokenizer.encode(hole.text)[: hole.length] if hole.text else []
