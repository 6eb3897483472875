"""Which of several ways to compute the same thing is the fastest here: timed once, then read from a file.

An entry holds for one device, one release of the tensor library and of dgemma, and one shape and format.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_ROUNDS = 5
_MARGIN = 0.97
_LINE = 120
Candidates = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be timed (`work`: operation, shape, format) and on what."""

    work: str
    device: str
    library: str
    version: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidate, the median seconds of those that ran, and why others cannot run."""

    name: str
    seconds: Mapping[str, float]
    failures: Mapping[str, str]


def fastest(
    question: Question,
    candidates: Candidates,
    agree: Callable[[Any, Any], bool],
    clock: Callable[[], float] = time.perf_counter,
    path: Path | None = None,
) -> Choice:
    """The fastest candidate, timed unless `path` knows it; the first one is the incumbent.

    A call of a candidate computes to the end and returns the result. One that raises, or whose result does not `agree`
    with the incumbent's, is left out; one that is not 3 % faster than the incumbent is not worth a change. Where there
    is nothing to choose from, nothing is timed and nothing is written.
    """
    if len(candidates) == 1:
        return Choice(next(iter(candidates)), {}, {})
    path = choices_file() if path is None else path
    known = _known(path, question)
    if known is not None and set(known.seconds) | set(known.failures) == set(candidates):
        return known
    choice = _timed(candidates, agree, clock)
    _remember(path, question, choice)
    return choice


def choices_file() -> Path:
    """Where the choices of this user are."""
    from platformdirs import user_cache_path

    return user_cache_path("dgemma") / "kernels.json"


def remembered(path: Path | None = None) -> list[tuple[Question, Choice]]:
    """All choices on file; what cannot be read counts as absent."""
    path = choices_file() if path is None else path
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [_parsed(row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _known(path: Path, question: Question) -> Choice | None:
    return next((choice for asked, choice in remembered(path) if asked == question), None)


def _timed(candidates: Candidates, agree: Callable[[Any, Any], bool], clock: Callable[[], float]) -> Choice:
    incumbent, *others = candidates
    expected = candidates[incumbent]()
    failures = {name: failure for name in others if (failure := _failure(candidates[name], expected, agree))}
    running = [name for name in candidates if name not in failures]
    laps: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(_ROUNDS):
        for name in running:
            start = clock()
            candidates[name]()
            laps[name].append(clock() - start)
    seconds = {name: statistics.median(each) for name, each in laps.items()}
    best = min(running, key=lambda name: seconds[name])
    return Choice(best if seconds[best] < _MARGIN * seconds[incumbent] else incumbent, seconds, failures)


def _failure(candidate: Callable[[], Any], expected: Any, agree: Callable[[Any, Any], bool]) -> str | None:
    """Why `candidate` is out; its first call, in which kernels are compiled, is not timed."""
    try:
        return None if agree(expected, candidate()) else "its result differs"
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:_LINE]


def _remember(path: Path, question: Question, choice: Choice) -> None:
    """Put a choice on file, in place of what an older release left; a folder that cannot be written changes nothing."""
    same = (question.work, question.device)
    rows = [(asked, old) for asked, old in remembered(path) if (asked.work, asked.device) != same]
    text = json.dumps([asdict(asked) | asdict(each) for asked, each in [*rows, (question, choice)]], indent=1)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=path.parent, suffix=".new")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            Path(fresh).replace(path)
        except OSError:
            Path(fresh).unlink(missing_ok=True)
            raise


def _parsed(row: Mapping[str, Any]) -> tuple[Question, Choice]:
    question = Question(*(_text(row[name]) for name in ("work", "device", "library", "version")))
    seconds = {_text(name): float(value) for name, value in row["seconds"].items()}
    failures = {_text(name): _text(value) for name, value in row["failures"].items()}
    name = _text(row["name"])
    if name not in seconds:
        raise ValueError(f"{name!r} was never timed")
    return question, Choice(name, seconds, failures)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
