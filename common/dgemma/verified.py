"""Modes that draft a canvas by denoising and let the causal model decide what of it to keep, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dgemma.backend import Backend
from dgemma.drafting import AUTO, DraftSteps
from dgemma.errors import require
from dgemma.request import Request
from dgemma.schedule import check_temperature
from dgemma.speculative import Moment, Plan, Speculative

Verify = Callable[[Moment], bool]


@dataclass(frozen=True, slots=True)
class Verified:
    """Every canvas is verified: the text is that of `Autoregressive(temperature)`, in fewer passes.

    A drafted token is kept if and only if it equals the token that the causal pass samples at its position.
    """

    temperature: float = 0.0
    draft_steps: DraftSteps = AUTO

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def check(self, request: Request) -> None:
        """See `dgemma.request.Mode`."""
        _refuse_pins(request)

    def room(self, canvas: int) -> int:
        """See `dgemma.request.Mode`."""
        return 1

    def start(self, handle: int, request: Request, backend: Backend) -> Speculative:
        """See `dgemma.request.Mode`."""
        return Speculative(handle, request, backend, Plan(self.temperature, self.draft_steps, _always))


@dataclass(frozen=True, slots=True)
class WhileThinking:
    """Verify canvases that begin inside the reasoning: behind a token `opens` that no `closes` has followed yet.

    `expected` verifies the first canvas, too, of an answer that should begin with reasoning.
    """

    opens: int
    closes: int
    expected: bool = False

    def __call__(self, moment: Moment) -> bool:
        """Whether to verify."""
        marks = [token for token in moment.answer if token in (self.opens, self.closes)]
        thinking = marks[-1] == self.opens if marks else self.expected and not moment.answer
        return moment.step == 0 and thinking


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Verify a canvas that met its step cap with a mean entropy above `entropy` nats."""

    entropy: float

    def __call__(self, moment: Moment) -> bool:
        """Whether to verify."""
        return moment.step > 0 and not moment.converged and moment.mean_entropy > self.entropy


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Verify where one of `rules` says so."""

    rules: Sequence[Verify]

    def __call__(self, moment: Moment) -> bool:
        """Whether to verify."""
        return any(rule(moment) for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Diffusion, except where `verify` sends a canvas to the causal model.

    `verify` is asked before a canvas's first step (then it gets `draft_steps` only) and again when it is finished.
    """

    verify: Verify
    temperature: float = 0.0
    draft_steps: DraftSteps = AUTO

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def check(self, request: Request) -> None:
        """See `dgemma.request.Mode`."""
        _refuse_pins(request)

    def room(self, canvas: int) -> int:
        """See `dgemma.request.Mode`."""
        return 1

    def start(self, handle: int, request: Request, backend: Backend) -> Speculative:
        """See `dgemma.request.Mode`."""
        return Speculative(handle, request, backend, Plan(self.temperature, self.draft_steps, self.verify))


def _always(moment: Moment) -> bool:
    return True


def _refuse_pins(request: Request) -> None:
    require(not request.pins, "Verified decoding cannot keep pinned positions.", "Use block diffusion.")
