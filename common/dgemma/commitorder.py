"""In which order a canvas settles: statistics over a trace.

A position settles at the first step from which its token stays what it becomes. Following arXiv 2606.14620, the order
is compared with left to right by Kendall's tau-b, over positions and over the mean of bins of neighbouring positions:
1 is left to right, -1 right to left, 0 neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgemma.events import Block, Draft
from dgemma.trace import Trace

BINS = (1, 4, 16, 64)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """`tau` by bin size (None where no pair can be compared), over all canvases; the rest are means and counts.

    `accepted` and `settled` are positions a step; `revisions` are changes of a token that had been accepted before.
    """

    canvases: int
    steps: int
    tau: dict[int, float | None]
    accepted: float
    settled: float
    revisions: int

    @classmethod
    def of(cls, trace: Trace) -> CommitOrder:
        """The statistics of `trace`; of each canvas only the positions that became text count."""
        canvases = [(steps, _size(steps, block)) for steps, block in trace.canvases()]
        canvases = [(steps, size) for steps, size in canvases if size]
        settled = [settle_steps(steps)[:size] for steps, size in canvases]
        total = sum(len(steps) for steps, _ in canvases)
        accepted = sum(sum(step.accepted[:size]) for steps, size in canvases for step in steps)
        return cls(
            canvases=len(canvases),
            steps=total,
            tau={size: _tau(settled, size) for size in BINS},
            accepted=accepted / total if total else 0.0,
            settled=sum(each.size for each in settled) / total if total else 0.0,
            revisions=sum(revisions(steps, size) for steps, size in canvases),
        )


def settle_steps(steps: Sequence[Draft]) -> Floats:
    """The step (from 1) at which each position took the token that it kept."""
    tokens = np.array([step.tokens for step in steps])
    differs = tokens != tokens[-1]
    last = len(steps) - np.argmax(differs[::-1], axis=0)
    return np.where(differs.any(axis=0), last + 1, 1).astype(np.float64)


def revisions(steps: Sequence[Draft], size: int) -> int:
    """How often a position among the first `size` changed after it had been accepted."""
    tokens = np.array([step.tokens[:size] for step in steps])
    accepted = np.array([step.accepted[:size] for step in steps], dtype=np.bool_)
    before = np.logical_or.accumulate(accepted, axis=0)[:-1]
    return int((before & (tokens[1:] != tokens[:-1])).sum())


def pairs(order: Floats) -> tuple[int, int, int]:
    """Concordant minus discordant pairs against left to right, pairs that differ in place, and in `order`."""
    signs = np.sign(order[None, :] - order[:, None])[np.triu_indices(order.size, 1)]
    return int(signs.sum()), signs.size, int(np.abs(signs).sum())


def _tau(canvases: Sequence[Floats], size: int) -> float | None:
    """Tau-b with the pairs of all canvases, never across two."""
    binned = [np.array([each[i : i + size].mean() for i in range(0, each.size, size)]) for each in canvases]
    counted = [pairs(each) for each in binned]
    score, places, orders = (sum(each[index] for each in counted) for index in range(3))
    return score / float(np.sqrt(places * orders)) if places and orders else None


def _size(steps: Sequence[Draft], block: Block | None) -> int:
    return len(steps[-1].tokens) if block is None else len(block.tokens)
