"""The points a run visits: a profile's own limits, changed and swept as the caller asks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dgemma.bench.engines import Limits
from dgemma.bench.prompts import Profile
from dgemma.errors import require


@dataclass(frozen=True, slots=True)
class Point:
    """One setting of everything that can be swept."""

    limits: Limits
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Sweep:
    """Values to visit, in every combination; an empty one keeps the profile's or the checkpoint's."""

    steps: Sequence[int] = ()
    entropy_bounds: Sequence[float] = ()
    canvas_lengths: Sequence[int] = ()
    prompt_tokens: Sequence[int] = ()
    batches: Sequence[int] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is swept."""
        return not any((self.steps, self.entropy_bounds, self.canvas_lengths, self.prompt_tokens, self.batches))


def points(
    profile: Profile,
    sweep: Sweep,
    seed: int,
    mode: Literal["adaptive", "fixed"] | None = None,
    max_tokens: int | None = None,
) -> list[Point]:
    """Every combination of the sweep's values over the profile's limits."""
    base = Limits(
        mode=mode or profile.mode,
        max_tokens=max_tokens or profile.max_tokens,
        seed=seed,
        steps=profile.steps,
        prompt_tokens=profile.prompt_tokens,
    )
    everything = itertools.product(
        sweep.batches or (1,),
        sweep.prompt_tokens or (base.prompt_tokens,),
        sweep.canvas_lengths or (None,),
        sweep.steps or (base.steps,),
        sweep.entropy_bounds or (None,),
    )
    found = [
        Point(
            replace(base, steps=steps, entropy_bound=bound, canvas_length=canvas, prompt_tokens=length),
            batch,
        )
        for batch, length, canvas, steps, bound in everything
    ]
    for point in found:
        _check(point)
    return found


def _check(point: Point) -> None:
    limits = point.limits
    require(
        limits.mode == "adaptive" or limits.steps is not None, "Fixed mode needs a number of steps.", "Add --steps 16."
    )
    positive = (limits.steps, limits.canvas_length, limits.prompt_tokens, point.batch, limits.max_tokens)
    require(all(each is None or each >= 1 for each in positive), "Swept values must be at least 1.")
