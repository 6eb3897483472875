"""What a generation tells its caller, in the order draft* block ... finish for each sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dgemma.channels import Piece
from dgemma.stats import Stats

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Draft:
    """The canvas after one denoising step: `tokens` are the current best guess, of which any may still change.

    `step` counts from 1 to at most `steps`; `accepted` were kept by this step; `changed` differ from the step before.
    `entropy` is that of each position in nats; `doubted` are pinned, but the model would have written something else.
    """

    handle: int
    canvas: int
    step: int
    steps: int
    tokens: tuple[int, ...]
    accepted: tuple[bool, ...]
    changed: tuple[bool, ...]
    mean_entropy: float
    entropy: tuple[float, ...] = field(default=(), compare=False, repr=False)
    doubted: tuple[bool, ...] = field(default=(), compare=False, repr=False)

    @property
    def summary(self) -> tuple[str, ...]:
        """How far the canvas is, in words, the most important first."""
        settled = f"{sum(self.accepted)}/{len(self.accepted)} settled"
        step = f"step {self.step}/{self.steps}"
        return f"block {self.canvas + 1}", step, settled, f"entropy {self.mean_entropy:.3f}"


@dataclass(frozen=True, slots=True)
class Block:
    """Final tokens of one canvas, cut at stop and budget; `converged` is False where the step cap ended it.

    `pieces` is the text they settle; the engine, which knows no text, leaves it empty.
    """

    handle: int
    canvas: int
    tokens: tuple[int, ...]
    steps: int
    converged: bool
    pieces: tuple[Piece, ...] = ()

    @property
    def text(self) -> str:
        """The answer's part of `pieces`."""
        return _answer(self.pieces)


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of a sequence; `pieces` is the text that was held back until now."""

    handle: int
    reason: FinishReason
    stats: Stats
    pieces: tuple[Piece, ...] = ()

    @property
    def text(self) -> str:
        """The answer's part of `pieces`."""
        return _answer(self.pieces)


Event = Draft | Block | Finish


def _answer(pieces: tuple[Piece, ...]) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == "answer")
