"""A generation's every step in a file, one JSON object a line; docs/trace.md describes it.

Writing listens to events and reading gives them back, so tracing cannot change what is generated.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgemma.errors import UsageError
from dgemma.events import Block, Draft, Event

FORMAT, VERSION = "dgemma-trace", 1
_LARGEST = 14.0
_LEVELS = 255


class TraceWriter:
    """Turns the events of one sequence into lines; `spell` gives the text of a token."""

    def __init__(self, write: Callable[[str], object], spell: Callable[[int], str], header: Mapping[str, Any]) -> None:
        self._write, self._spell = write, spell
        self._known: set[int] = set()
        self._last: tuple[int, ...] = ()
        self._line({"format": FORMAT, "version": VERSION, **header})

    def event(self, event: Event) -> None:
        """Write one event."""
        if isinstance(event, Draft):
            self._draft(event)
        elif isinstance(event, Block):
            fields = {"c": event.canvas, "s": event.steps, "ok": event.converged, "b": list(event.tokens)}
            self._line(fields | self._new(event.tokens))
        else:
            self._line({"reason": event.reason, "stats": asdict(event.stats)})

    def _draft(self, draft: Draft) -> None:
        fields: dict[str, Any] = {
            "c": draft.canvas,
            "s": draft.step,
            "n": draft.steps,
            "h": draft.mean_entropy,
        }
        if draft.step == 1:
            fields |= {"i": list(draft.tokens), "u": _bits(draft.changed)}
        else:
            pairs = enumerate(zip(self._last, draft.tokens, strict=True))
            fields["d"] = [number for place, (old, new) in pairs if old != new for number in (place, new)]
        self._last = draft.tokens
        fields |= {"e": _levels(draft.entropy), "a": _bits(draft.accepted)}
        self._line(fields | self._new(draft.tokens))

    def _new(self, tokens: Iterable[int]) -> dict[str, dict[str, str]]:
        fresh = sorted(set(tokens) - self._known)
        self._known |= set(fresh)
        return {"t": {str(token): self._spell(token) for token in fresh}} if fresh else {}

    def _line(self, fields: Mapping[str, Any]) -> None:
        self._write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace read back: its header, the text of every token, its events, and its lines as they stand in the file."""

    header: Mapping[str, Any]
    texts: Mapping[int, str]
    events: tuple[Draft | Block, ...]
    end: Mapping[str, Any] | None
    lines: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether its generation came to its end; otherwise the file was cut or the process ended before."""
        return self.end is not None

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Raises UsageError where `path` is no trace of a version that is known; a cut last line is left out."""
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
        objects = list(_objects(lines))
        header = objects[0] if objects else {}
        if header.get("format") != FORMAT:
            raise UsageError(f"{path} is not a trace.", "Write one with: dgemma generate --trace FILE")
        if header.get("version") != VERSION:
            raise UsageError(f"{path} has version {header.get('version')}; this dgemma reads {VERSION}.", "Upgrade it.")
        if any(line.strip() for line in lines[len(objects) + 1 :]):
            raise UsageError(f"{path} is damaged in line {len(objects) + 1}.", "Record it again.")
        return cls._of(path, header, objects[1:], [line.decode() for line in lines[: len(objects)]])

    @classmethod
    def _of(
        cls, path: Path, header: Mapping[str, Any], objects: Sequence[Mapping[str, Any]], lines: Sequence[str]
    ) -> Trace:
        texts: dict[int, str] = {}
        events: list[Draft | Block] = []
        last: tuple[int, ...] = ()
        end = objects[-1] if objects and "reason" in objects[-1] else None
        for number, each in enumerate(objects, 2):
            with _reading(path, number):
                if each is end:
                    _text(end["reason"]), _count(end["stats"]["completion_tokens"])
                    continue
                texts |= {int(token): _text(text) for token, text in each.get("t", {}).items()}
                events.append(_as_block(each) if "b" in each else _as_draft(each, last))
                last = events[-1].tokens if isinstance(events[-1], Draft) else last
        return cls(header, texts, tuple(events), end, tuple(lines))

    def canvases(self) -> list[tuple[list[Draft], Block | None]]:
        """The steps of each canvas with the block that it became; None where it never did."""
        steps: dict[int, list[Draft]] = {}
        blocks: dict[int, Block] = {}
        for event in self.events:
            if isinstance(event, Draft):
                steps.setdefault(event.canvas, []).append(event)
            else:
                blocks[event.canvas] = event
        return [(found, blocks.get(canvas)) for canvas, found in sorted(steps.items())]


@contextmanager
def _reading(path: Path, number: int) -> Iterator[None]:
    """Say which line is damaged; whatever its fields hold in place of what belongs there."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise UsageError(f"{path} is damaged in line {number}.", "Record it again.") from error


def _as_block(fields: Mapping[str, Any]) -> Block:
    tokens = tuple(map(_count, fields["b"]))
    return Block(0, _count(fields["c"]), tokens, _count(fields["s"]), bool(fields["ok"]))


def _as_draft(fields: Mapping[str, Any], last: tuple[int, ...]) -> Draft:
    tokens = np.array([*map(_count, fields["i"])] if "i" in fields else last, dtype=np.int64)
    size, changed = tokens.size, np.zeros(tokens.size, dtype=np.bool_)
    if "i" in fields:
        changed = _from_bits(fields["u"], size)
    else:
        numbers = [*map(_count, fields["d"])]
        places, ids = numbers[::2], numbers[1::2]
        tokens[places], changed[places] = ids, True
    return Draft(
        handle=0,
        canvas=_count(fields["c"]),
        step=_count(fields["s"]),
        steps=_count(fields["n"]),
        tokens=tuple(tokens.tolist()),
        accepted=tuple(_from_bits(fields["a"], size).tolist()),
        changed=tuple(changed.tolist()),
        mean_entropy=float(fields["h"]),
        entropy=_from_levels(fields["e"], size),
    )


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number from 0")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _objects(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict):
            return
        yield found


def _levels(entropy: Sequence[float]) -> str:
    """One byte a position: 255 * sqrt(entropy / 14 nats), in base64."""
    scaled = np.sqrt(np.clip(np.array(entropy, dtype=np.float64), 0, _LARGEST) / _LARGEST) * _LEVELS
    return base64.b64encode(np.rint(scaled).astype(np.uint8).tobytes()).decode()


def _from_levels(text: str, count: int) -> tuple[float, ...]:
    levels = _unpacked(text, count).astype(np.float64)
    return tuple(((levels / _LEVELS) ** 2 * _LARGEST).tolist())


def _bits(flags: Sequence[bool]) -> str:
    """One bit a position, the first the highest of its byte, in base64."""
    return base64.b64encode(np.packbits(np.array(flags, dtype=np.bool_)).tobytes()).decode()


def _from_bits(text: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.unpackbits(_unpacked(text, -(-count // 8)), count=count).astype(np.bool_)


def _unpacked(text: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    packed = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    if packed.size != count:
        raise ValueError(f"{packed.size} bytes where {count} belong")
    return packed
