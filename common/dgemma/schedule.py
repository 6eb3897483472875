"""The rules of denoising as values: at which temperature, what to accept, when to stop.

They see numbers per free (not pinned) position and decide in float32, as the reference implementation does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgemma.backend import Float32s, Int32s
from dgemma.config import GenerationDefaults
from dgemma.errors import require

Bools = NDArray[np.bool_]
Temperature = Callable[[int], float]
Accept = Callable[[Float32s], Bools]
Stop = Callable[[Sequence[Int32s], Float32s], bool]


# Beyond, float32 logits divided by a temperature overflow, or every token is as likely as any other.
COLDEST, HOTTEST = 0.001, 1000.0


def is_temperature(value: float) -> bool:
    """Whether float32 logits can be divided by `value`."""
    return COLDEST <= value <= HOTTEST


def check_temperature(value: float) -> None:
    """Raise UsageError for one that can neither be sampled at nor is 0, which takes the likeliest token."""
    require(value == 0 or is_temperature(value), f"A temperature is 0 or {COLDEST} to {HOTTEST}, not {value}.")


@dataclass(frozen=True, slots=True)
class LinearTemperature:
    """From nearly `t_max` at the first of `steps` steps down to just above `t_min` at the last."""

    t_min: float
    t_max: float
    steps: int

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"The number of denoising steps must be at least 1, not {self.steps}.")
        ordered = (self.t_min == 0 or is_temperature(self.t_min)) and self.t_min <= self.t_max
        wanted = f"min <= max, max from {COLDEST} to {HOTTEST}, min also or 0"
        require(
            ordered and is_temperature(self.t_max), f"Temperatures must be {wanted}; not {self.t_min}, {self.t_max}."
        )

    def __call__(self, remaining: int) -> float:
        """Temperature with `remaining` steps to go, this one included: `steps` at the first, 1 at the last."""
        share = np.float32(remaining) / np.float32(self.steps)
        return float(np.float32(self.t_min) + np.float32(self.t_max - self.t_min) * share)


@dataclass(frozen=True, slots=True)
class ConstantTemperature:
    """The same temperature at every step."""

    value: float

    def __post_init__(self) -> None:
        require(is_temperature(self.value), f"A temperature is {COLDEST} to {HOTTEST}, not {self.value}.")

    def __call__(self, remaining: int) -> float:
        """The temperature, whatever remains."""
        return self.value


@dataclass(frozen=True, slots=True)
class EntropyBound:
    """Accept the most certain positions while the entropies of those before them sum to at most `bound` nats.

    At least one position is accepted. The sum before a position is the sum up to it minus its own entropy, in float32
    as in the reference; that rounding may decide at the bound. Origin: arXiv 2505.24857.
    """

    bound: float

    def __post_init__(self) -> None:
        finite = bool(0 <= self.bound <= float(np.finfo(np.float32).max))
        require(finite, f"The entropy bound must be a float32 from 0, not {self.bound}.")

    def __call__(self, entropy: Float32s) -> Bools:
        """Which positions to accept. Sums run in double and round to float32 at each position, as torch's on a CPU."""
        order = np.argsort(entropy, kind="stable")
        ascending = entropy[order]
        sums = np.cumsum(ascending, dtype=np.float64).astype(np.float32)
        accepted = np.zeros(entropy.shape, dtype=np.bool_)
        accepted[order] = sums - ascending <= np.float32(self.bound)
        return accepted


@dataclass(frozen=True, slots=True)
class StableAndConfident:
    """Stop once the argmax canvas equals those of the `stability` steps before and the mean entropy < `confidence`.

    Either being None switches the rule off.
    """

    stability: int | None
    confidence: float | None

    def __post_init__(self) -> None:
        require(self.stability is None or self.stability >= 0, f"Stability must be >= 0, not {self.stability}.")

    def __call__(self, canvases: Sequence[Int32s], entropy: Float32s) -> bool:
        """Whether to stop, given the argmax canvases of all steps so far (the newest last) and the newest entropies."""
        if self.stability is None or self.confidence is None:
            return False
        return self._stable(canvases, self.stability) and bool(mean(entropy) < np.float32(self.confidence))

    @staticmethod
    def _stable(canvases: Sequence[Int32s], stability: int) -> bool:
        *before, newest = canvases[-stability - 1 :]
        return len(before) == stability and all(np.array_equal(newest, canvas) for canvas in before)


@dataclass(frozen=True, slots=True)
class Denoising:
    """How a canvas is denoised. `greedy` makes the sample the argmax and changes nothing else."""

    temperature: Temperature
    accept: Accept
    stop: Stop
    steps: int
    greedy: bool = False

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"The number of denoising steps must be at least 1, not {self.steps}.")

    @classmethod
    def from_defaults(
        cls,
        defaults: GenerationDefaults,
        *,
        steps: int | None = None,
        entropy_bound: float | None = None,
        temperature: float | None = None,
        temperature_range: tuple[float, float] | None = None,
        stability: int | None = None,
        confidence: float | None = None,
        early_stop: bool = True,
    ) -> Denoising:
        """The checkpoint's settings; None keeps one. Temperature 0 samples greedily, one above 0 is constant."""
        both = temperature is not None and temperature_range is not None
        require(not both, "A temperature and a temperature range exclude one another.", "Give one of them.")
        steps = defaults.max_denoising_steps if steps is None else steps
        t_min, t_max = temperature_range or (defaults.t_min, defaults.t_max)
        stop = StableAndConfident(
            defaults.stability_threshold if stability is None else stability,
            defaults.confidence_threshold if confidence is None else confidence,
        )
        return cls(
            temperature=ConstantTemperature(temperature) if temperature else LinearTemperature(t_min, t_max, steps),
            accept=EntropyBound(defaults.entropy_bound if entropy_bound is None else entropy_bound),
            stop=stop if early_stop else StableAndConfident(None, None),
            steps=steps,
            greedy=temperature == 0,
        )


def mean(entropy: Float32s) -> np.float32:
    """Mean entropy rounded to float32; 0 for none."""
    return np.float32(np.mean(entropy, dtype=np.float64)) if entropy.size else np.float32(0)
