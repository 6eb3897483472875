"""What every decoding mode shares: the tokens of one sequence, its cache, and where its answer ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dgemma.backend import Backend, Context, EncodeJob, Int32s, Job, Prediction
from dgemma.events import Event, FinishReason
from dgemma.request import Request
from dgemma.stats import Meter


class Sequence(Protocol):
    """The state machine of one sequence: it asks for passes, consumes their results and turns them into events."""

    transcript: Transcript

    def jobs(self, room: int) -> list[Job]:
        """What the next pass should compute, with at most `room` tokens of prompt; nothing if there is no room."""

    def advance(self, results: list[Prediction | None]) -> list[Event]:
        """Consume the results of the jobs just computed, one each."""


@dataclass(slots=True)
class Transcript:
    """Prompt and answer of one sequence, and how far the cache has them; `reason` is set once the answer has ended."""

    handle: int
    request: Request
    context: Context
    ids: list[int] = field(init=False)
    meter: Meter = field(init=False)
    delivered: int = 0
    reason: FinishReason | None = None
    _settled: int = field(init=False)

    def __post_init__(self) -> None:
        self.ids = list(self.request.prompt)
        self._settled = self.context.length
        self.meter = Meter(len(self.ids), cached_tokens=self._settled)

    @property
    def prefilling(self) -> bool:
        """Whether part of the prompt is not in the cache yet."""
        return self.context.length < len(self.request.prompt)

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet."""
        return len(self.ids) - self.context.length

    def encode(self, count: int) -> EncodeJob:
        """The job that puts the next `count` pending tokens into the cache."""
        start = self.context.length
        return EncodeJob(self.context, np.array(self.ids[start : start + count], dtype=np.int32))

    @property
    def generated(self) -> list[int]:
        """The answer's tokens so far, whatever is delivered of them."""
        return self.ids[len(self.request.prompt) :]

    def keep(self, length: int, backend: Backend) -> None:
        """Roll the cache back to `length` tokens and declare them final; where that fails it starts over, empty."""
        if self.context.truncate(length):
            self.settle()
            return
        self.context.close()
        self.context, self._settled = backend.open(), 0

    def settle(self) -> None:
        """Count what the last pass added to the cache, and declare it final; in a session it may be taken back."""
        if self.context.length == self._settled:
            return
        self.meter.encoded(self._settled, self.context.length)
        self._settled = self.context.length
        if self.request.session is None or self.prefilling:
            self.context.settle()

    def release(self, whole: bool = True) -> None:
        """Free the cache, or return it to its session; `whole` is False where a pass may have been cut short."""
        session = self.request.session
        if session is None:
            self.context.close()
        elif whole:
            session.give_back(self.context, self.ids)
        else:
            session.drop(self.context)

    def append(self, tokens: Int32s) -> tuple[int, ...]:
        """Add generated tokens and return those to deliver; the answer ends at a stop or when the budget is used up.

        The reason is "stop" wherever the budget cut nothing off. What was delivered before is never taken back.
        """
        self.ids += tokens.tolist()
        generated, budget = self.generated, self.request.max_tokens
        stop = self.request.stop(generated)
        keep = min(budget, len(generated) if stop is None else stop)
        if stop is not None and stop <= budget:
            self.reason = "stop"
        elif len(generated) >= budget:
            self.reason = "length"
        block = tuple(generated[self.delivered : keep])
        self.delivered += len(block)
        return block

    def useful(self, tokens: Int32s) -> int:
        """How many of `tokens`, if they came next, the answer could still keep."""
        generated = self.generated
        stop = self.request.stop([*generated, *tokens.tolist()])
        keep = min(len(generated) + tokens.size if stop is None else stop, self.request.max_tokens)
        return max(0, keep - len(generated))

    def ends_with(self, token: int) -> bool:
        """Whether the answer ends if `token` comes next."""
        generated = [*self.generated, token]
        return len(generated) >= self.request.max_tokens or self.request.stop(generated) is not None

    def end_at(self, limit: int) -> None:
        """End the answer where the model has no position left."""
        if self.reason is None and len(self.ids) >= limit:
            self.reason = "length"
