"""Texts with holes, and where their tokens come to lie: pinned literals, free positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dgemma.errors import UsageError, require

_MARK = re.compile(r"<fill(?::([0-9]{1,9}))?>")
_MALFORMED = re.compile(r"<fill:(?![0-9]{1,9}>)[^\s<>]*>?")
Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Hole:
    """A gap of `length` tokens; None where the length is to be found. `text` is what stood there before."""

    length: int | None = None
    text: str = ""


Part = str | Hole


def parse(text: str) -> tuple[Part, ...]:
    """Split at every `<fill>` and `<fill:N>`; raises UsageError where there is none, or one that cannot be."""
    if wrong := _MALFORMED.search(text):
        line = text.count("\n", 0, wrong.start()) + 1
        raise UsageError(f"{wrong[0][:40]} in line {line} is no gap.", "Write <fill> or, for N tokens, <fill:N>.")
    parts: list[Part] = []
    start = 0
    for mark in _MARK.finditer(text):
        length = None if mark[1] is None else int(mark[1])
        require(length != 0, f"{mark[0]} has room for no token.", "Give at least 1.")
        parts += [text[start : mark.start()], Hole(length)]
        start = mark.end()
    require(bool(parts), "There is nothing to fill.", "Mark each gap with <fill> or, for N tokens, <fill:N>.")
    return tuple(part for part in (*parts, text[start:]) if part != "")


def unknown(parts: Sequence[Part]) -> list[int]:
    """The indexes of holes whose length is to be found."""
    return [index for index, part in enumerate(parts) if isinstance(part, Hole) and part.length is None]


@dataclass(frozen=True, slots=True)
class Layout:
    """Token positions of the parts: `pins` hold the literals, `holes` are ranges, `size` is the end of the text."""

    pins: dict[int, int]
    holes: tuple[range, ...]
    size: int

    def cut(self, canvas: int) -> Layout:
        """Without what lies behind the canvas of the last hole: it has no bearing on the holes."""
        last = max(hole.stop for hole in self.holes)
        size = min(self.size, -(-last // canvas) * canvas)
        return Layout({place: token for place, token in self.pins.items() if place < size}, self.holes, size)

    def closed(self, end: int) -> Layout:
        """With the token `end` pinned behind the text."""
        return Layout(self.pins | {self.size: end}, self.holes, self.size + 1)


def lay_out(parts: Sequence[Part], encode: Encode) -> Layout:
    """Place `parts` from position 0 on; every literal is encoded alone, every hole must have a length."""
    pins: dict[int, int] = {}
    holes: list[range] = []
    place = 0
    for part in parts:
        if isinstance(part, Hole):
            assert part.length is not None
            holes.append(range(place, place + part.length))
            place += part.length
            continue
        ids = encode(part)
        pins |= dict(enumerate(ids, place))
        place += len(ids)
    return Layout(pins, tuple(holes), place)
