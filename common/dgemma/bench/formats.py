"""Rows as a table for people, Markdown, CSV, JSON or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from dgemma.bench.row import Row, columns

_SHORT = (
    ("engine", lambda row: row.name),
    ("profile", lambda row: f"{row.profile} {row.mode}"),
    ("at", lambda row: setting(row)),
    ("e2e tok/s", lambda row: row.e2e_tok_s),
    ("decode tok/s", lambda row: row.decode_tok_s),
    ("prefill tok/s", lambda row: row.prefill_tok_s),
    ("first block s", lambda row: row.ttfb_s),
    ("ms/step", lambda row: row.step_ms_p50),
    ("steps/canvas", lambda row: row.steps_per_canvas_p50),
    ("tok/step", lambda row: row.tokens_per_forward),
    ("quality", lambda row: row.quality),
    ("peak GB", lambda row: row.peak_memory_bytes and row.peak_memory_bytes / 1e9),
    ("spread", lambda row: row.spread),
    ("label", lambda row: label(row)),
)


def render(rows: Sequence[Row], form: str) -> str:
    """The rows in one of `FORMATS`."""
    return FORMATS[form](rows)


def setting(row: Row) -> str:
    """What distinguishes a row from its profile's own limits."""
    parts = {
        "batch": row.batch if row.batch > 1 else None,
        "prompt": row.settings.get("prompt_tokens"),
        "canvas": row.settings.get("canvas_length"),
        "steps": row.settings.get("steps"),
        "bound": row.entropy_bound,
    }
    return " ".join(f"{name} {value:g}" for name, value in parts.items() if value is not None) or "default"


def label(row: Row) -> str:
    """Everything that limits what a row may be taken for."""
    weights = "random weights" if row.weights == "random" else ""
    parts = ("smoke" if row.label == "smoke" else "", weights, "busy machine" if row.busy else "")
    return ", ".join(part for part in parts if part)


def number(value: Any) -> str:
    """A cell: three significant digits, a dash for what was not measured."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def markdown_table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns behind the first three are right-aligned."""
    rule = ["---" if index < 3 else "--:" for index in range(len(heads))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *cells)) + "\n"


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    return [[number(value(row)) for _, value in _SHORT] for row in rows]


def _heads() -> list[str]:
    return [name for name, _ in _SHORT]


def _table(rows: Sequence[Row]) -> str:
    lines = [_heads(), *_cells(rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def _markdown(rows: Sequence[Row]) -> str:
    return markdown_table(_heads(), _cells(rows))


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns())
    writer.writerows([getattr(row, name) for name in columns()] for row in rows)
    return text.getvalue()


def _json(rows: Sequence[Row]) -> str:
    return json.dumps([row.as_dict() for row in rows], indent=1, ensure_ascii=False) + "\n"


def _jsonl(rows: Sequence[Row]) -> str:
    return "".join(row.dump() for row in rows)


FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    "table": _table,
    "md": _markdown,
    "csv": _csv,
    "json": _json,
    "jsonl": _jsonl,
}
