"""The values of a GGUF file's metadata, one after the other, none longer than what is there and what a model needs."""

from __future__ import annotations

from typing import Any, BinaryIO, cast

import numpy as np

_MOST_STRINGS, _MOST_NUMBERS = 2_000_000, 4_000_000
_MOST_LISTS, _DEEPEST = 100_000, 8
_LONGEST_STRING = 16_000_000
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}


class Cursor:
    """Reads on from a place in a file; ValueError where it ends or a limit is passed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._strings, self._numbers, self._lists = _MOST_STRINGS, _MOST_NUMBERS, _MOST_LISTS

    def tell(self) -> int:
        """Bytes read."""
        return self._file.tell()

    def take(self, count: int) -> bytes:
        """The next bytes."""
        found = self._file.read(count)
        if len(found) < count:
            raise ValueError("it ends inside its header")
        return found

    def whole(self, size: int) -> int:
        """An unsigned integer of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def string(self, most: int = _LONGEST_STRING) -> str:
        """A string behind its length."""
        length = int.from_bytes(self.take(8), "little")
        if length > most:
            raise ValueError(f"it has a string of {length} bytes")
        return self.take(length).decode("utf-8")

    def value(self, kind: int) -> Any:
        """A value of a metadata type."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._items(self.whole(4), self.whole(8))
        return self._scalars(kind, 1)[0]

    def _items(self, kind: int, count: int, depth: int = 1) -> list[Any]:
        """A list; this model needs none that holds lists, but files may carry them for others."""
        left = {_STRING: self._strings, _ARRAY: self._lists}.get(kind, self._numbers)
        if count > left or depth > _DEEPEST:
            raise ValueError(f"it has a list of {count} items, {depth} deep")
        if kind == _ARRAY:
            self._lists -= count
            return [self._items(self.whole(4), self.whole(8), depth + 1) for _ in range(count)]
        if kind == _STRING:
            self._strings -= count
            return [self.string() for _ in range(count)]
        self._numbers -= count
        return self._scalars(kind, count)

    def _scalars(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMBERS:
            raise ValueError(f"it has a value of the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        return cast(list[Any], np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist())
