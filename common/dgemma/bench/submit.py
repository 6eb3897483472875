"""A file of rows to share: nothing of this machine but its hardware and software, and nothing is sent anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dgemma.bench.row import Row
from dgemma.errors import UsageError
from dgemma.outputs import write_file

_PRIVATE = ("command", "power")


def prepare(rows: Sequence[Row]) -> list[Row]:
    """Rows fit for sharing. Raises UsageError where there are none: smoke rows and busy machines are left out."""
    kept = [_without_private(row) for row in rows if row.label == "measured" and not row.busy]
    if not kept:
        raise UsageError(
            "Nothing to submit: rows of a CPU (smoke) and of a busy machine are not for publication.",
            "Measure on an accelerator that does nothing else.",
        )
    return kept


def write(rows: Sequence[Row], target: Path | None) -> Path:
    """Write the rows to `target`, or to a file named after machine and engine. Never overwrites."""
    kept = prepare(rows)
    first = kept[0]
    target = target or Path(f"dgemma-bench-{_slug(first.machine)}-{_slug(first.name)}.jsonl")
    if target.exists():
        raise UsageError(f"{target} exists.", "Name another file with -o.")
    write_file(target, "".join(row.dump() for row in kept).encode("utf-8"))
    return target


def _without_private(row: Row) -> Row:
    return replace(row, environment={name: value for name, value in row.environment.items() if name not in _PRIVATE})


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
