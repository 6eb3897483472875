"""What a caller may set for one generation; None keeps what the checkpoint ships."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dgemma.config import GenerationDefaults
from dgemma.errors import require
from dgemma.quality import guarded
from dgemma.schedule import Denoising, EntropyBound, LinearTemperature, check_temperature

_SEED_BITS = 32


@dataclass(frozen=True, slots=True)
class Settings:
    """One generation's settings.

    `temperature` is constant (0: the sample is the argmax), `temperature_range` runs from (min, max) over the steps;
    both lie in 0.001 to 1000.
    `raw` gives the prompt to the model without the chat template and returns the text with its markers in place.
    `mode` is "diffusion", "ar", "verified" or "hybrid"; in the last three `temperature` is that of the causal model (0
    where absent) and canvases keep their own. `draft_steps` is a number or "auto", `quality` "reference", "balanced" or
    "fast" (see `dgemma.quality`). `warm_start` is a text that the answer's canvases start from instead of noise.
    """

    max_tokens: int = 1024
    seed: int | None = None
    steps: int | None = None
    entropy_bound: float | None = None
    temperature: float | None = None
    temperature_range: tuple[float, float] | None = None
    canvas_length: int | None = None
    stop: tuple[str, ...] = ()
    system: str | None = None
    think: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    raw: bool = False
    mode: str = "diffusion"
    draft_steps: int | str | None = None
    quality: str | None = None
    warm_start: str | None = None

    def with_(self, **overrides: Any) -> Settings:
        """A copy with some settings changed; raises TypeError on a name that is not a setting."""
        known = {field.name for field in fields(self)}
        if unknown := sorted(overrides.keys() - known):
            raise TypeError(f"Unknown setting {unknown[0]!r}. Known: {', '.join(sorted(known))}.")
        return replace(self, **overrides)

    def seeded(self) -> Settings:
        """A copy whose seed is a number: its own, or one drawn from the operating system."""
        return self if self.seed is not None else replace(self, seed=secrets.randbits(_SEED_BITS))

    def denoising(self, defaults: GenerationDefaults) -> Denoising:
        """How canvases are denoised under these settings."""
        denoising = Denoising.from_defaults(
            defaults,
            steps=self.steps,
            entropy_bound=self.entropy_bound,
            temperature=self.temperature if self.mode == "diffusion" else None,
            temperature_range=self.temperature_range,
        )
        return guarded(denoising, self.quality, defaults.eos_token_ids)

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        require(all(self.stop), "A stop string must not be empty.")
        require(not (self.raw and self.system), "A raw prompt has no system message.", "Put it into the prompt.")
        require(
            not (self.raw and self.think), "A raw prompt cannot switch thinking on.", "Put <|think|> into the prompt."
        )
        self._check_numbers()
        require(self.seed is None or 0 <= self.seed < 2**64, f"A seed lies in [0, 2**64), not {self.seed}.")

    def _check_numbers(self) -> None:
        for name in ("max_tokens", "steps", "canvas_length"):
            count = getattr(self, name)
            require(count is None or count >= 1, f"{name} must be at least 1, not {count}.")
        if self.entropy_bound is not None:
            EntropyBound(self.entropy_bound)
        if self.temperature is not None:
            check_temperature(self.temperature)
        if self.temperature_range is not None:
            LinearTemperature(*self.temperature_range, steps=1)
        twice = self.mode == "diffusion" and self.temperature is not None and self.temperature_range is not None
        require(not twice, "A temperature and a temperature range exclude one another.", "Give one of them.")
