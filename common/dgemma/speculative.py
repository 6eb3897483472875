"""Drafts from the canvas, verdicts from the causal pass: the state machine of the verified and hybrid modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dgemma import causal
from dgemma.backend import Backend, DenoiseJob, Int32s, Job, Prediction
from dgemma.canvas import Canvas
from dgemma.diffusion import check_finite, draft_of
from dgemma.drafting import DraftSteps, Round
from dgemma.events import Block, Event
from dgemma.noise import Noise
from dgemma.request import Request
from dgemma.sequence import Transcript


@dataclass(frozen=True, slots=True)
class Moment:
    """What a policy may look at: the answer so far, and a canvas before its first step or when it is finished."""

    answer: Sequence[int]
    canvas: int
    step: int
    mean_entropy: float
    converged: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The causal temperature, how long to draft, and which canvases to verify."""

    temperature: float
    draft_steps: DraftSteps
    verify: Callable[[Moment], bool]


class Speculative:
    """One sequence. A round is: a pass that encodes what is pending and takes the canvas's first step, more steps, and
    for a canvas to be verified one causal pass over it, of which the cache keeps the agreed prefix.

    The first pass also samples the causal model's own token for the first position (`_own`), so that a verified round
    yields two tokens at least. The newest token stays pending, as in autoregressive decoding.
    """

    def __init__(self, handle: int, request: Request, backend: Backend, plan: Plan) -> None:
        self.transcript = Transcript(handle, request, request.open(backend))
        self._backend, self._plan = backend, plan
        self._noise = Noise(request.seed, request.sequence)
        self._sampler = causal.CausalSampler(self._noise, plan.temperature)
        self._limit = backend.config.max_position_embeddings
        self._rounds: list[Round] = []
        self._draft: Int32s | None = None
        self._own: int | None = None
        self._own_margin = 0.0
        self._verifying = False
        self._canvas = self._start_canvas(0)

    def jobs(self, room: int) -> list[Job]:
        """A chunk of what is pending, a step of the canvas, or the verification of a draft."""
        transcript, pending = self.transcript, self.transcript.pending
        if self._draft is not None:
            return [self._sampler.job(transcript, self._draft.tolist(), "all")]
        if pending > max(room, self._canvas.tokens.size):
            return [transcript.encode(room)] if room > 0 else []
        first = [self._sampler.job(transcript, transcript.ids[-pending:], "last")] if pending else []
        return [*first, self._denoise_job()]

    def advance(self, results: list[Prediction | None]) -> list[Event]:
        """Take the step or the verdict just computed, and deliver what has become final."""
        if self._draft is not None:
            assert results[0] is not None
            self.transcript.meter.forwards += 1
            return self._judge(self._draft, results[0])
        self.transcript.settle()
        *encoded, step = results
        if step is None:
            return []
        self.transcript.meter.forwards += 1
        if encoded and encoded[0] is not None:
            self._hear(encoded[0])
        return self._step(step)

    def _hear(self, prediction: Prediction) -> None:
        causal.check_finite(prediction, len(self.transcript.ids))
        self._own, self._own_margin = int(prediction.sampled[-1]), float(prediction.margin[-1])

    def _step(self, prediction: Prediction) -> list[Event]:
        canvas, denoising = self._canvas, self.transcript.request.denoising
        check_finite(prediction, canvas)
        renoise = self._noise.renoise(canvas.index, canvas.step, canvas.tokens.size, self._backend.config.vocab_size)
        self._canvas = canvas.advance(prediction, renoise, denoising)
        self.transcript.meter.denoising_steps += 1
        event = draft_of(self.transcript.handle, self._canvas)
        if self._verifying and canvas.step == 0 and self._own is not None:
            self._canvas = self._canvas.pin(0, self._own)
        return [event, *self._decide()]

    def _decide(self) -> list[Event]:
        """What to do with the canvas: denoise on, commit, verify, or take the causal model's token alone."""
        canvas, transcript = self._canvas, self.transcript
        assert self._own is not None
        if self._verifying and transcript.ends_with(self._own):
            return [self._keep([self._own])]
        if not canvas.finished:
            return []
        if not (self._verifying or self._plan.verify(self._moment())):
            return [self._deliver(canvas.committed())]
        draft = canvas.committed().copy()
        draft[0] = self._own if self._verifying else draft[0]
        if draft[0] != self._own or transcript.ends_with(self._own):
            return [self._keep([self._own])]
        self._draft = draft[: max(1, transcript.useful(draft))]
        return []

    def _judge(self, draft: Int32s, verdict: Prediction) -> list[Event]:
        """Keep the drafted tokens up to the first that the causal model would not have sampled, and its own there."""
        transcript = self.transcript
        causal.check_finite(verdict, len(transcript.ids))
        agreed = 1 + _common(draft[1:], verdict.sampled)
        transcript.keep(len(transcript.ids) + agreed, self._backend)
        tokens = [*draft[:agreed].tolist(), int(verdict.sampled[agreed - 1])]
        return [self._keep(tokens, verdict.margin[:agreed].tolist())]

    def _keep(self, tokens: list[int], margins: Sequence[float] = ()) -> Block:
        """Deliver what the causal model agreed to, as autoregressive decoding would end it.

        The first token is its own for the canvas's first position, `margins` are those of the others.
        """
        transcript, canvas = self.transcript, self._canvas
        left = min(transcript.request.max_tokens - len(transcript.generated), self._limit - len(transcript.ids))
        tokens = tokens[:left]
        self._count_ties([self._own_margin, *margins][:left])
        transcript.meter.accepted_lengths.append(len(tokens))
        if self._verifying:
            self._rounds.append(Round(canvas.step, len(tokens)))
        return self._deliver(np.array(tokens, dtype=np.int32), checked=True)

    def _count_ties(self, margins: Sequence[float]) -> None:
        if self._plan.temperature == 0:
            near = causal.near_ties(np.array(margins, dtype=np.float32), self._backend.dtype)
            place = len(self.transcript.generated)
            self.transcript.meter.near_ties += (place + np.flatnonzero(near)).tolist()

    def _deliver(self, tokens: Int32s, checked: bool = False) -> Block:
        transcript, canvas = self.transcript, self._canvas
        delivered = transcript.append(tokens)
        transcript.meter.block(len(delivered), canvas.step)
        transcript.end_at(self._limit)
        if transcript.reason is None:
            self._canvas = self._start_canvas(canvas.index + 1)
        return Block(transcript.handle, canvas.index, delivered, canvas.step, checked or canvas.converged)

    def _start_canvas(self, index: int) -> Canvas:
        transcript, plan = self.transcript, self._plan
        request, first = transcript.request, len(transcript.generated)
        length = min(request.length(self._backend.config), self._limit - len(transcript.ids))
        self._verifying = plan.verify(Moment(transcript.generated, index, 0, 0.0, False))
        self._draft, self._own = None, None
        transcript.context.start_canvas()
        return Canvas.noise(
            self._noise.initial(index, length, self._backend.config.vocab_size),
            index,
            plan.draft_steps(self._rounds) if self._verifying else request.denoising.steps,
            start=request.warm_start[first : first + length],
        )

    def _moment(self) -> Moment:
        canvas = self._canvas
        return Moment(self.transcript.generated, canvas.index, canvas.step, canvas.mean_entropy, canvas.converged)

    def _denoise_job(self) -> DenoiseJob:
        canvas, denoising = self._canvas, self.transcript.request.denoising
        uniforms = None if denoising.greedy else self._noise.uniforms(canvas.index, canvas.step, canvas.tokens.size)
        return DenoiseJob(self.transcript.context, canvas.tokens, denoising.temperature(canvas.remaining), uniforms)


def _common(left: Int32s, right: Int32s) -> int:
    """Length of the longest common prefix."""
    count = min(left.size, right.size)
    differ = np.flatnonzero(left[:count] != right[:count])
    return int(differ[0]) if differ.size else count
