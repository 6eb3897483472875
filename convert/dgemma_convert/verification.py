"""Whether a result is what it should be: read as any reader would read it, and compared with the source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgemma.errors import DgemmaError, UnsupportedError
from dgemma_convert import readers
from dgemma_convert.deviation import Deviation
from dgemma_convert.floats import Array
from dgemma_convert.meter import RUN, Meter
from dgemma_convert.naming import named
from dgemma_convert.pieces import EXACT, STORAGE_EXACT, Piece
from dgemma_convert.plan import Item, Plan
from dgemma_convert.source import Run, Weight

Errors = Mapping[str, Mapping[str, Any]]
# In float32 code * scale + bias rounds three times by at most 2^-24 of 255 steps, and weights are several steps large.
_ROUNDING = 1e-5
# Another machine may add up the squares in another order, in float64.
_SUMMING = 1e-9


def verified(folder: Path, plan: Plan, recorded: Errors, meter: Meter) -> dict[str, Any]:
    """The errors of what lies in `folder`; `recorded` has those of the time of writing, where anything was rounded.

    Raises DgemmaError for a tensor that is further from the source than its label or the record says.
    """
    written = readers.open_source(folder).weights
    found: dict[str, Any] = {}
    for item in plan.items:
        name = item.weight.name
        deviation, same = _compared(item, _counterpart(item, written))
        _check(item, deviation, recorded.get(name, {}))
        if item.keeps and not same:
            raise _ruined(f"{name} does not hold what the source holds.")
        found[name] = deviation.as_dict()
        meter.add(item.nbytes, name)
    return found


def _counterpart(item: Item, written: Mapping[str, Weight]) -> Piece:
    """What was written for `item`."""
    found = written.get(item.weight.name)
    if found is None or found.shape != item.weight.shape or (found.kind, found.form) != (item.target, item.form):
        raise _ruined(f"{item.weight.name} is not there as {item.target}.")
    (piece,) = found.pieces
    return piece


def _compared(item: Item, written: Piece) -> tuple[Deviation, bool]:
    """How far `written` is from the source, and of what was copied whether it is the same to the bit."""
    total, same = Deviation(), True
    for run in item.weight.runs(RUN):
        with named(item.weight.name):
            original = run.piece.values(run.first, run.stop)
        try:
            with np.errstate(all="ignore"):
                total.merge(Deviation.between(original, written.values(*_rows(run))))
        except UnsupportedError:
            raise _ruined(f"{item.weight.name} has numbers that are not finite.") from None
        same = same and (not item.keeps or _same_parts(run, written))
    return total, same


def _same_parts(run: Run, written: Piece) -> bool:
    ours = run.piece.parts(run.first, run.stop)
    theirs = written.parts(*_rows(run))
    return ours.keys() == theirs.keys() and all(_same(ours[name], theirs[name]) for name in ours)


def _check(item: Item, found: Deviation, recorded: Mapping[str, Any]) -> None:
    name = item.weight.name
    if item.label == EXACT and found.largest:
        raise _ruined(f"{name} should be exact, but is off by up to {found.largest:.3g}.")
    if item.label == STORAGE_EXACT and found.relative > _ROUNDING:
        raise _ruined(f"{name} should be storage exact, but has a relative RMS error of {found.relative:.3g}.")
    if not item.keeps and not _as_recorded(found, recorded):
        raise _ruined(
            f"{name} is off by a relative RMS error of {found.relative:.3g}, which is not that of its writing."
        )


def _as_recorded(found: Deviation, recorded: Mapping[str, Any]) -> bool:
    def same(value: float, said: Any) -> bool:
        return isinstance(said, float | int) and math.isclose(value, said, rel_tol=_SUMMING)

    return all(same(value, recorded.get(key)) for key, value in found.as_dict().items())


def _rows(run: Run) -> tuple[int, int]:
    return run.row, run.row + run.stop - run.first


def _same(one: Array, other: Array) -> bool:
    return np.array_equal(np.ascontiguousarray(one).view(np.uint8), np.ascontiguousarray(other).view(np.uint8))


def _ruined(message: str) -> DgemmaError:
    return DgemmaError(message, "Convert again.")
