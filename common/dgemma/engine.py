"""The loop: one pass of the backend over every open sequence, then each takes its step."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable

from dgemma.backend import Backend, EncodeJob, Job
from dgemma.diffusion import Diffusion
from dgemma.errors import require
from dgemma.events import Event, Finish, FinishReason
from dgemma.request import Request, StopTokens
from dgemma.sequence import Sequence

__all__ = ["Engine", "Request", "StopTokens"]


class Engine:
    """Generates for several requests at once; a pass encodes at most about `prefill_chunk` tokens of prompt."""

    def __init__(self, backend: Backend, prefill_chunk: int = 2048) -> None:
        require(prefill_chunk >= 1, f"prefill_chunk must be at least 1, not {prefill_chunk}.")
        self._backend = backend
        self._prefill_chunk = prefill_chunk
        self._handles = itertools.count()
        self._open: dict[int, Sequence] = {}
        self._undelivered: list[Event] = []

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._open and not self._undelivered

    def submit(self, request: Request) -> int:
        """Take in a request and return its handle. Raises UsageError where the model cannot serve it."""
        request.check(self._backend.config)
        handle = next(self._handles)
        start = request.mode.start if request.mode else Diffusion
        self._open[handle] = start(handle, request, self._backend)
        return handle

    def cancel(self, handle: int) -> None:
        """End a sequence and free its cache; the next step reports it. One that has ended already is left alone."""
        if handle in self._open:
            self._undelivered.append(self._finish(handle, "cancelled"))

    def step(self) -> list[Event]:
        """One pass over every open sequence; any error closes them all."""
        try:
            return self._step()
        except BaseException:
            self.close()
            raise

    def stream(self, requests: Iterable[Request]) -> Generator[Event, None, None]:
        """The events of `requests`, whose handles are 0, 1, ... in order. Closing the generator frees everything.

        The engine must be idle; to let requests join a running engine use `submit` and `step`.
        """
        requests = tuple(requests)
        for request in requests:
            request.check(self._backend.config)
        return self._stream(requests)

    def close(self) -> None:
        """Drop every sequence and free its cache."""
        for sequence in self._open.values():
            sequence.transcript.release(whole=False)
        self._open.clear()
        self._undelivered.clear()

    def _stream(self, requests: tuple[Request, ...]) -> Generator[Event, None, None]:
        require(self.idle, "The engine is busy.", "Finish or close its other stream first.")
        self._handles = itertools.count()
        try:
            for request in requests:
                self.submit(request)
            while not self.idle:
                yield from self.step()
        finally:
            self.close()

    def _step(self) -> list[Event]:
        batch = self._batch()
        results = iter(self._backend.forward([job for jobs in batch.values() for job in jobs]) if batch else ())
        events, self._undelivered = self._undelivered, []
        for handle, jobs in batch.items():
            sequence = self._open[handle]
            events += sequence.advance(list(itertools.islice(results, len(jobs))))
            if sequence.transcript.reason is not None:
                events.append(self._finish(handle, sequence.transcript.reason))
        return events

    def _batch(self) -> dict[int, list[Job]]:
        """The jobs of this pass by handle; earlier sequences have the first claim on room for their prompts."""
        batch: dict[int, list[Job]] = {}
        room = self._prefill_chunk
        for handle, sequence in self._open.items():
            if jobs := sequence.jobs(room):
                batch[handle] = jobs
                room -= sum(job.tokens.size for job in jobs if isinstance(job, EncodeJob))
        return batch

    def _finish(self, handle: int, reason: FinishReason) -> Finish:
        transcript = self._open.pop(handle).transcript
        transcript.release()
        return Finish(handle, reason, transcript.meter.stats(self._backend.memory().peak))
