"""JSON as the command line prints it."""

from __future__ import annotations

import json
from typing import Any


def dump(value: dict[str, Any]) -> str:
    """One line of JSON, with its newline."""
    return json.dumps(value, ensure_ascii=False) + "\n"
