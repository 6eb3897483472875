"""JSON that comes with a model: its size is checked before it is parsed.

The header of the largest published checkpoint (47,000 tensors, were it one file) has 6 MB and 430,000 values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dgemma.errors import CheckpointError

MOST_BYTES = 32_000_000
_MOST_VALUES = 1_000_000
_AGAIN = "Download the model again."


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object from `path`. Raises CheckpointError when it is missing, damaged, too large or no object."""
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a file.", _AGAIN)
        if path.stat().st_size > MOST_BYTES:
            raise CheckpointError(f"{path} is larger than any model's {path.name}.", _AGAIN)
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}.", "Is it a model folder?") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.", _AGAIN) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object.", _AGAIN)
    return value


def parse_json(raw: bytes, unique: bool = False) -> Any:
    """The value of `raw`; ValueError where it is no JSON or absurdly large, and with `unique` where a name repeats."""
    if sum(raw.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise ValueError("it has more values than any model's")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_without_repeats if unique else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found
