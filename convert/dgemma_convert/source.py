"""A model as its reader presents it: every canonical tensor as pieces, and everything that is not a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgemma import names
from dgemma.checkpoint import join_shapes, stack_shapes
from dgemma.config import ModelConfig
from dgemma.shards import Shape
from dgemma_convert.pieces import EXACT, STORAGE_EXACT, Cut, Form, Piece


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored weight with its logical shape."""

    piece: Piece
    shape: Shape


@dataclass(frozen=True, slots=True)
class Run:
    """Some rows of a weight: `first` to `stop` of `piece`, which begin at row `row` of the whole."""

    piece: Piece
    first: int
    stop: int
    row: int


@dataclass(frozen=True, slots=True)
class Weight:
    """A canonical tensor, its rows in order; a vector is one row."""

    name: str
    shape: Shape
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """How many rows."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """How many columns."""
        return self.shape[-1] if self.shape else 1

    @property
    def count(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """The stored formats."""
        return " + ".join(sorted({piece.kind for piece in self.pieces}))

    @property
    def form(self) -> Form | None:
        """The format of the MLX layout that holds all of it without requantization, if there is one.

        None where rows are no whole number of its groups, however the source may store them.
        """
        forms = {piece.form for piece in self.pieces}
        form = forms.pop() if len(forms) == 1 else None
        return form if form and self.columns % form.spec.group_size == 0 else None

    @property
    def label(self) -> str:
        """What a repacking into `form` is."""
        return EXACT if all(piece.label == EXACT for piece in self.pieces) else STORAGE_EXACT

    def runs(self, numbers: int) -> Iterator[Run]:
        """The rows in order, about `numbers` numbers at a time."""
        step, row = max(1, numbers // max(1, self.columns)), 0
        for piece in self.pieces:
            for first in range(0, piece.rows, step):
                stop = min(piece.rows, first + step)
                yield Run(piece, first, stop, row + first)
            row += piece.rows


@dataclass(frozen=True, slots=True)
class Source:
    """A model to convert. `files` are copied: names with their content or where it lies."""

    path: Path
    format: str
    config: Mapping[str, Any]
    weights: Mapping[str, Weight]
    duplicates: Mapping[str, Weight]
    files: Mapping[str, Path | bytes]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def model(self) -> ModelConfig:
        """The configuration, checked."""
        return ModelConfig.from_dict(self.config)


def assemble(stored: Mapping[str, Stored], config: Mapping[str, Any]) -> tuple[dict[str, Weight], dict[str, Weight]]:
    """Canonical weights and the stored copies of tied ones, by name.

    `stored` has the published names of unquantized weights. Raises CheckpointError unless they are exactly `config`'s.
    """
    plan = names.plan(stored)
    weights = {name: _weight(name, source, stored) for name, source in plan.sources.items()}
    names.check_strict({name: weight.shape for name, weight in weights.items()}, ModelConfig.from_dict(config))
    weights |= {name: _single(name, stored[name]) for name in plan.skipped}
    return weights, {twin: _single(copy, stored[copy]) for copy, twin in plan.duplicates.items()}


def _single(name: str, stored: Stored) -> Weight:
    return Weight(name, stored.shape, (stored.piece,))


def _weight(name: str, source: names.Source, stored: Mapping[str, Stored]) -> Weight:
    parts = [stored[part] for part in source.parts]
    shape = source.assemble(lambda part: stored[part].shape, join_shapes, stack_shapes)
    if len(parts) == 1 or source.experts:
        return Weight(name, shape, tuple(part.piece for part in parts))
    return Weight(name, shape, tuple(_interleaved(parts)))


def _interleaved(parts: list[Stored]) -> Iterator[Piece]:
    """Stacks that are joined along axis 1: the rows of each expert from every stack in turn."""
    for expert in range(parts[0].shape[0]):
        for part in parts:
            height = part.shape[1]
            yield Cut(part.piece, expert * height, (expert + 1) * height)
