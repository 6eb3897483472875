"""Finishing a canvas sooner, as values around a stop rule. Each may cost accuracy; docs/quality.md has the numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dgemma.backend import Float32s, Int32s
from dgemma.errors import UsageError, require
from dgemma.schedule import Denoising, LinearTemperature, Stop, mean


@dataclass(frozen=True, slots=True)
class UntilEnd:
    """Apply `inner` to what stands before the answer's end, once the first end token has held its place.

    That is: once the first of `ends` in the argmax canvas stood at the same position for `stability` steps before, too.
    A canvas with pinned positions is judged whole.
    """

    inner: Stop
    ends: Collection[int]
    stability: int = 1

    def __call__(self, canvases: Sequence[Int32s], entropy: Float32s) -> bool:
        """Whether to stop."""
        end = self._end(canvases) if entropy.size == canvases[-1].size else None
        if end is None:
            return self.inner(canvases, entropy)
        return self.inner([canvas[: end + 1] for canvas in canvases], entropy[: end + 1])

    def _end(self, canvases: Sequence[Int32s]) -> int | None:
        places = {_first(canvas, self.ends) for canvas in canvases[-self.stability - 1 :]}
        return places.pop() if len(places) == 1 and len(canvases) > self.stability else None


@dataclass(frozen=True, slots=True)
class Plateau:
    """Stop, too, once the argmax canvas has not changed for `steps` steps and the mean entropy is at most `bound`.

    More steps would then still lower the entropy, but what is left of it hardly changes which tokens win.
    """

    inner: Stop
    steps: int
    bound: float

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"A plateau takes at least 1 step, not {self.steps}.")

    def __call__(self, canvases: Sequence[Int32s], entropy: Float32s) -> bool:
        """Whether to stop."""
        newest, before = canvases[-1], canvases[-self.steps - 1 : -1]
        flat = len(before) == self.steps and all(np.array_equal(newest, canvas) for canvas in before)
        return (flat and bool(mean(entropy) <= np.float32(self.bound))) or self.inner(canvases, entropy)


@dataclass(frozen=True, slots=True)
class Guards:
    """A setting: how much entropy a plateau may have and how long it must last, and the most steps a canvas gets."""

    plateau: int
    bound: float
    steps: int

    def around(self, denoising: Denoising, ends: Collection[int]) -> Denoising:
        """`denoising` with these guards; a falling temperature falls over the steps that are left."""
        stop = UntilEnd(Plateau(denoising.stop, self.plateau, self.bound), ends)
        steps, temperature = min(self.steps, denoising.steps), denoising.temperature
        if isinstance(temperature, LinearTemperature):
            temperature = replace(temperature, steps=min(steps, temperature.steps))
        return replace(denoising, stop=stop, steps=steps, temperature=temperature)


GUARDS = {"balanced": Guards(plateau=2, bound=0.05, steps=32), "fast": Guards(plateau=1, bound=0.3, steps=16)}


def guarded(denoising: Denoising, quality: str | None, ends: Collection[int]) -> Denoising:
    """`denoising` under a setting's guards; None and "reference" change nothing."""
    if quality in (None, "reference"):
        return denoising
    if quality not in GUARDS:
        raise UsageError(f"Unknown quality {quality!r}.", f"Choose one of: reference, {', '.join(GUARDS)}.")
    return GUARDS[quality].around(denoising, ends)


def _first(canvas: Int32s, ends: Collection[int]) -> int | None:
    places = np.flatnonzero(np.isin(canvas, list(ends)))
    return int(places[0]) if places.size else None
