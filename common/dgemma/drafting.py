"""How many denoising steps a draft gets before the causal model checks it, as values that look at earlier rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dgemma.errors import require

_DECAY = 0.9
_REVISIT = 8


@dataclass(frozen=True, slots=True)
class Round:
    """One draft: the denoising steps it took and the tokens that its verification gave."""

    steps: int
    tokens: int


DraftSteps = Callable[[Sequence[Round]], int]


@dataclass(frozen=True, slots=True)
class FixedSteps:
    """Always the same number; a draft that settles sooner takes fewer."""

    count: int

    def __post_init__(self) -> None:
        require(self.count >= 1, f"The number of draft steps must be at least 1, not {self.count}.")

    def __call__(self, rounds: Sequence[Round]) -> int:
        """The number of steps for the next draft."""
        return self.count


@dataclass(frozen=True, slots=True)
class AutoSteps:
    """The number that has taken the least time a token lately; a round costs its steps and one verification.

    Time is counted, not measured, so that a seed decides the text of `hybrid`, too: a verification costs `check` times
    a step, which streams the same weights over about as many rows. The neighbours of the best number are tried where
    they are unknown, and again every few rounds; older rounds fade.
    """

    first: int = 3
    most: int = 16
    check: float = 1.0

    def __post_init__(self) -> None:
        require(1 <= self.first <= self.most, f"Draft steps must satisfy 1 <= {self.first} <= {self.most}.")
        require(self.check >= 0, f"A verification cannot cost {self.check} steps.")

    def __call__(self, rounds: Sequence[Round]) -> int:
        """The number of steps for the next draft."""
        rates = _rates(rounds, self.check)
        if not rates:
            return self.first
        best = max(rates, key=lambda steps: rates[steps])
        neighbours = [steps for steps in (best - 1, best + 1) if 1 <= steps <= self.most]
        unknown = [steps for steps in neighbours if steps not in rates]
        if unknown:
            return unknown[0]
        if len(rounds) % _REVISIT == 0 and neighbours:
            return neighbours[len(rounds) // _REVISIT % len(neighbours)]
        return best


AUTO: DraftSteps = AutoSteps()


def _rates(rounds: Sequence[Round], check: float) -> dict[int, float]:
    """Tokens in the time of a step by number of steps, the newest rounds weighing most."""
    tokens: dict[int, float] = {}
    times: dict[int, float] = {}
    for age, each in enumerate(reversed(rounds)):
        weight = _DECAY**age
        tokens[each.steps] = tokens.get(each.steps, 0.0) + weight * each.tokens
        times[each.steps] = times.get(each.steps, 0.0) + weight * (each.steps + check)
    return {steps: tokens[steps] / times[steps] for steps in tokens}
