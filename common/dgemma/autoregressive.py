"""One token a pass: the encoder as a causal model with the tied head. The baseline of speed and quality."""

from __future__ import annotations

from dataclasses import dataclass

from dgemma.backend import Backend, Job, Prediction
from dgemma.causal import CausalSampler, check_finite
from dgemma.errors import require
from dgemma.events import Block, Event
from dgemma.noise import Noise
from dgemma.request import Request
from dgemma.schedule import check_temperature
from dgemma.sequence import Transcript


@dataclass(frozen=True, slots=True)
class Autoregressive:
    """The mode: tokens from left to right at `temperature`; canvases and their schedule play no part."""

    temperature: float = 0.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def check(self, request: Request) -> None:
        """See `dgemma.request.Mode`."""
        remedy = "Use block diffusion."
        require(not request.pins, "Autoregressive decoding cannot keep pinned positions.", remedy)
        require(not request.warm_start, "Autoregressive decoding has no canvas to start from a text.", remedy)

    def room(self, canvas: int) -> int:
        """See `dgemma.request.Mode`."""
        return 1

    def start(self, handle: int, request: Request, backend: Backend) -> AutoregressiveSequence:
        """See `dgemma.request.Mode`."""
        return AutoregressiveSequence(handle, request, backend, self.temperature)


class AutoregressiveSequence:
    """State machine of one autoregressive sequence; its newest token is always pending."""

    def __init__(self, handle: int, request: Request, backend: Backend, temperature: float) -> None:
        self.transcript = Transcript(handle, request, request.open(backend))
        self._sampler = CausalSampler(Noise(request.seed, request.sequence), temperature)
        self._limit = backend.config.max_position_embeddings
        self._blocks = 0

    def jobs(self, room: int) -> list[Job]:
        """A chunk of the prompt, or the newest token."""
        transcript, pending = self.transcript, self.transcript.pending
        if transcript.prefilling and pending > room:
            return [transcript.encode(room)] if room > 0 else []
        return [self._sampler.job(transcript, transcript.ids[-pending:], "last")]

    def advance(self, results: list[Prediction | None]) -> list[Event]:
        """Settle what was encoded and deliver the token it predicts."""
        transcript, [prediction] = self.transcript, results
        transcript.settle()
        if prediction is None:
            return []
        check_finite(prediction, len(transcript.ids))
        transcript.meter.forwards += len(transcript.ids) > len(transcript.request.prompt)
        tokens = transcript.append(prediction.sampled)
        transcript.meter.delivered(len(tokens))
        transcript.end_at(self._limit)
        self._blocks += 1
        return [Block(transcript.handle, self._blocks - 1, tokens, steps=0, converged=True)] if tokens else []
