"""SVG plots from rows and nothing else. matplotlib is imported only here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dgemma.bench.formats import setting
from dgemma.bench.row import Row
from dgemma.errors import UnsupportedError
from dgemma.outputs import writing

_HASH_SALT = "dgemma"
_WIDTH, _BAR = 7.0, 0.45


def plot_all(rows: Sequence[Row], folder: Path, stem: str) -> list[tuple[str, Path]]:
    """Draw every plot that the rows have numbers for; titles with their files. Raises UnsupportedError."""
    pyplot = _pyplot()
    drawn = []
    for name, (title, draw) in PLOTS.items():
        figure, axes = pyplot.subplots(figsize=(_WIDTH, 3.6))
        if draw(axes, rows):
            path = folder / f"{stem}-{name}.svg"
            axes.set_title(title)
            figure.tight_layout()
            with writing(path):
                figure.savefig(path, metadata={"Date": None})
            drawn.append((title, path))
        pyplot.close(figure)
    return drawn


def _speed_and_quality(axes: Any, rows: Sequence[Row]) -> bool:
    found = [row for row in rows if row.quality is not None and row.e2e_tok_s is not None]
    for row in found:
        axes.scatter(row.e2e_tok_s, row.quality, label=f"{_name(row)} {setting(row)}")
    axes.set(xlabel="delivered tokens per second, end to end", ylabel="right answers", ylim=(-0.05, 1.05))
    if found:
        axes.set_xlim(left=0)
        axes.legend(fontsize=7)
    return bool(found)


def _components(axes: Any, rows: Sequence[Row]) -> bool:
    """Parts where an engine tells them, its whole median step otherwise."""
    found = [row for row in rows if row.components_ms or row.step_ms_p50 is not None]
    shown: set[str] = set()
    colours: dict[str, str] = {}
    for index, row in enumerate(found):
        left = 0.0
        for part, value in (row.components_ms or {"whole step": row.step_ms_p50 or 0.0}).items():
            colour = colours.setdefault(part, f"C{len(colours)}")
            axes.barh(index, value, _BAR, left=left, color=colour, label=None if part in shown else part)
            shown.add(part)
            left += value
    _label(axes, found)
    axes.set(xlabel="milliseconds per denoising step")
    axes.set_xlim(right=1.3 * axes.get_xlim()[1])
    if found:
        axes.legend(fontsize=7, loc="center right")
    return bool(found)


def _by_machine(axes: Any, rows: Sequence[Row]) -> bool:
    found = [row for row in rows if row.e2e_tok_s is not None]
    axes.barh(range(len(found)), [row.e2e_tok_s or 0 for row in found], _BAR, xerr=_whiskers(found))
    _label(axes, found, lambda row: f"{_name(row)}\n{row.machine[:28]}, {row.weight_format or '?'}")
    axes.set(xlabel="delivered tokens per second, end to end, p10 to p90")
    return bool(found)


def _steps(axes: Any, rows: Sequence[Row]) -> bool:
    """Only where the stop rule decides: fixed steps have no distribution."""
    found = [row for row in rows if row.mode == "adaptive" and row.weights == "trained" and _all_steps(row)]
    if found:
        axes.boxplot([_all_steps(row) for row in found], orientation="horizontal", whis=(10, 90))
        axes.set_yticks(range(1, len(found) + 1), [_name(row) for row in found], fontsize=7)
        axes.invert_yaxis()
    axes.set(xlabel="denoising steps per canvas")
    return bool(found)


PLOTS: dict[str, tuple[str, Callable[[Any, Sequence[Row]], bool]]] = {
    "quality": ("Speed against quality", _speed_and_quality),
    "components": ("A denoising step by component", _components),
    "machines": ("Tokens per second by machine and format", _by_machine),
    "steps": ("Steps per canvas", _steps),
}


def _label(axes: Any, rows: Sequence[Row], text: Callable[[Row], str] | None = None) -> None:
    axes.set_yticks(range(len(rows)), [(text or _name)(row) for row in rows], fontsize=7)
    axes.invert_yaxis()


def _whiskers(rows: Sequence[Row]) -> list[list[float]]:
    low = [(row.e2e_tok_s or 0) - (row.e2e_tok_s_p10 or 0) for row in rows]
    return [low, [(row.e2e_tok_s_p90 or 0) - (row.e2e_tok_s or 0) for row in rows]]


def _all_steps(row: Row) -> list[int]:
    return [steps for sample in row.samples for steps in sample.steps_per_canvas]


def _name(row: Row) -> str:
    return f"{row.name} · {row.profile} {row.mode}"


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise UnsupportedError("Plots need matplotlib.", "pip install 'dgemma[bench]'") from error
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = _HASH_SALT
    return importlib.import_module("matplotlib.pyplot")
