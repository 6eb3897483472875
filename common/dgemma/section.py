"""A part of a configuration file whose fields have types: a gap or another type is an error that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dgemma.errors import CheckpointError

_SHOWN = 40
_MOST = 1 << 48


class Section:
    """The object `raw`, called `name` in errors. Fields that are null count as missing."""

    def __init__(self, raw: object, name: str) -> None:
        if not isinstance(raw, Mapping):
            raise CheckpointError(f"{name} is missing or not an object.", "Is config.json that of a DiffusionGemma?")
        self._raw, self._name = raw, name

    def get(self, field: str, default: Any = None) -> Any:
        """Whatever is there."""
        value = self._raw.get(field)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self._name} lacks {field}.", "The folder is incomplete or of another model.")
        return value

    def has(self, field: str) -> bool:
        """Whether it is there."""
        return self._raw.get(field) is not None

    def whole(self, field: str, least: int = 1, default: int | None = None) -> int:
        """An integer of at least `least`, which may be written as a float."""
        value = self.get(field, default)
        found = as_whole(value)
        if found is None or not least <= found <= _MOST:
            raise self.wrong(field, "a positive integer" if least == 1 else f"an integer from {least} on", value)
        return found

    def is_null(self, field: str) -> bool:
        """Whether it is there and says nothing."""
        return field in self._raw and self._raw[field] is None

    def number(self, field: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise self.wrong(field, "a number", value)
        return float(value)

    def text(self, field: str, default: str | None = None) -> str:
        """A string."""
        value = self.get(field, default)
        if not isinstance(value, str):
            raise self.wrong(field, "a string", value)
        return value

    def items(self, field: str) -> list[Any]:
        """A list."""
        value = self.get(field)
        if not isinstance(value, list):
            raise self.wrong(field, "a list", value)
        return value

    def section(self, field: str, default: Mapping[str, Any] | None = None) -> Section:
        """An object of its own."""
        value = self.get(field, default)
        if not isinstance(value, Mapping):
            raise self.wrong(field, "an object", value)
        return Section(value, f"{self._name}.{field}")

    def wrong(self, field: str, wanted: str, value: object) -> CheckpointError:
        """The error for a `value` that is not `wanted`."""
        shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
        shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
        return CheckpointError(f"{self._name}: {field} must be {wanted}, not {shown}.")


def as_whole(value: object) -> int | None:
    """The integer that `value` is; some tools write every number as a float."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
