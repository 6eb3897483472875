"""What a generation tells its caller, in the order draft* block ... finish for each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dgemma.stats import Stats

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Draft:
    """The canvas after one denoising step: `tokens` are the current best guess, of which any may still change.

    `step` counts from 1 to at most `steps`; `accepted` were kept by this step; `changed` differ from the step before.
    """

    handle: int
    canvas: int
    step: int
    steps: int
    tokens: tuple[int, ...]
    accepted: tuple[bool, ...]
    changed: tuple[bool, ...]
    mean_entropy: float


@dataclass(frozen=True, slots=True)
class Block:
    """Final tokens of one canvas, cut at stop and budget; `converged` is False where the step cap ended it."""

    handle: int
    canvas: int
    tokens: tuple[int, ...]
    steps: int
    converged: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of a sequence."""

    handle: int
    reason: FinishReason
    stats: Stats


Event = Draft | Block | Finish
