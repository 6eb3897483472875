"""A prompt of an exact number of tokens."""

from __future__ import annotations

from collections.abc import Sequence


def fit(ids: Sequence[int], count: int | None) -> list[int]:
    """`ids` with its middle cut or repeated until there are `count`; head and tail, where a template stands, stay."""
    found = list(ids)
    if count is None or len(found) == count:
        return found
    edge = min(len(found), count) // 4
    head, middle, tail = found[:edge], found[edge : len(found) - edge], found[len(found) - edge :]
    wanted = count - 2 * edge
    return head + (middle * (wanted // len(middle) + 1))[:wanted] + tail
