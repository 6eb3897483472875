"""From the settings of a caller to a decoding mode."""

from __future__ import annotations

from collections.abc import Mapping

from dgemma.autoregressive import Autoregressive
from dgemma.config import GenerationDefaults
from dgemma.drafting import AUTO, DraftSteps, FixedSteps
from dgemma.errors import UsageError, require
from dgemma.request import Mode
from dgemma.settings import Settings
from dgemma.tokenizer import Tokenizer
from dgemma.verified import AnyOf, Hybrid, Unsettled, Verified, Verify, WhileThinking

_MEANINGLESS = {
    "diffusion": ("draft_steps",),
    "ar": ("draft_steps", "steps", "entropy_bound", "temperature_range", "canvas_length", "quality", "warm_start"),
    "verified": ("steps", "quality"),
    "hybrid": (),
}


def mode_of(settings: Settings, tokenizer: Tokenizer, defaults: GenerationDefaults) -> Mode | None:
    """The mode that `settings` name; None is block diffusion. Raises UsageError as `check_mode`."""
    check_mode(settings)
    temperature = settings.temperature or 0.0
    if settings.mode == "diffusion":
        return None
    if settings.mode == "ar":
        return Autoregressive(temperature)
    steps = draft_steps_of(settings.draft_steps)
    if settings.mode == "verified":
        return Verified(temperature, steps)
    return Hybrid(hybrid_policy(tokenizer, defaults, settings.think), temperature, steps)


def check_mode(settings: Settings) -> None:
    """Raise UsageError where `settings` name no mode, or hold a setting that it would ignore."""
    if settings.mode not in _MEANINGLESS:
        raise UsageError(f"Unknown mode {settings.mode!r}.", f"Choose one of: {', '.join(_MEANINGLESS)}.")
    given: Mapping[str, object] = {name: getattr(settings, name) for name in _MEANINGLESS[settings.mode]}
    for name, value in given.items():
        require(value is None, f"{name} means nothing in mode {settings.mode}.", "Leave it out.")
    draft_steps_of(settings.draft_steps)


def draft_steps_of(wanted: int | str | None) -> DraftSteps:
    """A number, or "auto" (also None)."""
    if isinstance(wanted, int):
        return FixedSteps(wanted)
    require(wanted in (None, "auto"), f"Draft steps are a number or auto, not {wanted!r}.")
    return AUTO


def hybrid_policy(tokenizer: Tokenizer, defaults: GenerationDefaults, think: bool) -> Verify:
    """The default of `hybrid`: verify the reasoning, and whatever of the answer did not settle; diffuse the rest."""
    opens, closes = tokenizer.id("<|channel>"), tokenizer.id("<channel|>")
    unsettled = Unsettled(defaults.confidence_threshold or 0.0)
    if opens is None or closes is None:
        return unsettled
    return AnyOf((WhileThinking(opens, closes, expected=think), unsettled))
