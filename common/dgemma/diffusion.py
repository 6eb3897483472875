"""The default mode: encode the prompt, denoise a canvas, commit it, denoise the next."""

from __future__ import annotations

import numpy as np

from dgemma.backend import Backend, DenoiseJob, Job, Prediction
from dgemma.canvas import Canvas
from dgemma.errors import DgemmaError
from dgemma.events import Block, Draft, Event
from dgemma.noise import Noise
from dgemma.request import Request
from dgemma.sequence import Transcript


class Diffusion:
    """State machine of one block-diffusion sequence.

    A finished canvas stays pending and is committed to the cache by the pass that starts the next one; the last canvas
    of an answer never is.
    """

    def __init__(self, handle: int, request: Request, backend: Backend) -> None:
        self.transcript = Transcript(handle, request, request.open(backend))
        self._noise = Noise(request.seed, request.sequence)
        self._length = request.length(backend.config)
        self._vocab = backend.config.vocab_size
        self._limit = backend.config.max_position_embeddings
        self._canvas = self._start_canvas(0)

    def jobs(self, room: int) -> list[Job]:
        """A chunk of the prompt; then a step of the canvas, together with the commit of the one before."""
        pending = self.transcript.pending
        if self.transcript.prefilling or pending > self._length:
            return [self.transcript.encode(room)] if room > 0 else []
        commit = [self.transcript.encode(pending)] if pending else []
        return [*commit, self._denoise_job()]

    def advance(self, results: list[Prediction | None]) -> list[Event]:
        """Settle what was encoded, take the denoising step, and deliver every canvas that is finished."""
        self.transcript.settle()
        prediction = results[-1]
        events: list[Event] = [] if prediction is None else [self._step(prediction)]
        while self._canvas.finished and not self.transcript.prefilling and self.transcript.reason is None:
            events.append(self._deliver())
        return events

    def _denoise_job(self) -> DenoiseJob:
        canvas, denoising = self._canvas, self.transcript.request.denoising
        uniforms = None if denoising.greedy else self._noise.uniforms(canvas.index, canvas.step, self._length)
        return DenoiseJob(self.transcript.context, canvas.tokens, denoising.temperature(canvas.remaining), uniforms)

    def _step(self, prediction: Prediction) -> Draft:
        canvas, denoising = self._canvas, self.transcript.request.denoising
        check_finite(prediction, canvas)
        renoise = self._noise.renoise(canvas.index, canvas.step, self._length, self._vocab)
        self._canvas = canvas.advance(prediction, renoise, denoising)
        self.transcript.meter.denoising_steps += 1
        self.transcript.meter.forwards += 1
        return draft_of(self.transcript.handle, self._canvas)

    def _deliver(self) -> Block:
        transcript, canvas = self.transcript, self._canvas
        tokens = transcript.append(canvas.committed())
        transcript.meter.block(len(tokens), canvas.step)
        if transcript.reason is None and len(transcript.ids) + self._length > self._limit:
            transcript.reason = "length"
        if transcript.reason is None:
            self._canvas = self._start_canvas(canvas.index + 1)
        return Block(transcript.handle, canvas.index, tokens, canvas.step, canvas.converged)

    def _start_canvas(self, index: int) -> Canvas:
        request, first = self.transcript.request, index * self._length
        last = first + self._length
        self.transcript.context.start_canvas()
        return Canvas.noise(
            self._noise.initial(index, self._length, self._vocab),
            index,
            request.denoising.steps,
            {position - first: token for position, token in request.pins.items() if first <= position < last},
            request.warm_start[first:last],
        )


def check_finite(prediction: Prediction, canvas: Canvas) -> None:
    """Raise DgemmaError where a step's numbers make no sense."""
    if not np.isfinite(prediction.entropy).all():
        where = f"canvas {canvas.index}, step {canvas.step + 1}"
        raise DgemmaError(f"The model's output is not finite ({where}).", "Try a wider dtype.")


def draft_of(handle: int, canvas: Canvas) -> Draft:
    """The event that shows `canvas` after its newest step."""
    return Draft(
        handle=handle,
        canvas=canvas.index,
        step=canvas.step,
        steps=canvas.step + canvas.remaining,
        tokens=tuple(canvas.argmax.tolist()),
        accepted=tuple(canvas.accepted.tolist()),
        changed=tuple(canvas.changed.tolist()),
        mean_entropy=canvas.mean_entropy,
        entropy=tuple(canvas.entropy.tolist()),
        doubted=() if canvas.doubted is None else tuple(canvas.doubted.tolist()),
    )
