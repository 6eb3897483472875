"""A running generation and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from dgemma.answer import Answer
from dgemma.engine import Engine, Request
from dgemma.events import Block, Event, Finish, FinishReason
from dgemma.stats import Stats
from dgemma.toolcalls import ToolCall


@dataclass(frozen=True, slots=True)
class Origin:
    """What produced a generation: enough, with the seed, to produce it again."""

    model: str
    revision: str | None
    backend: str
    device: str
    kernels: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation; `str()` is its text. `tokens` end before the stop token.

    With a stop string, `tokens` hold the one that completed it, `text` ends before it.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    origin: Origin
    stats: Stats
    unsettled_canvases: int = 0

    def __str__(self) -> str:
        return self.text

    @property
    def model(self) -> str:
        """The model's name."""
        return self.origin.model

    @property
    def revision(self) -> str | None:
        """The commit of a hub repository."""
        return self.origin.revision

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.origin.backend

    @property
    def device(self) -> str:
        """What it ran on."""
        return self.origin.device


class Stream(Iterator[Event]):
    """The events of one or several generations as they happen; closing it frees their memory.

    After the last event `generations` holds a result per prompt, in the order of the prompts.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[Request],
        answers: Sequence[Answer],
        origin: Origin,
        finished: Callable[[Generation], None] = lambda generation: None,
    ) -> None:
        self._engine, self._answers, self._origin, self._finished = engine, answers, origin, finished
        self._handles = [engine.submit(request) for request in requests]
        self.seeds = [request.seed for request in requests]
        self._unsettled = [0] * len(answers)
        self._results: dict[int, Generation] = {}
        self._events: Iterator[Event] = iter(())

    def __next__(self) -> Event:
        for event in self._events:
            return self._complete(event)
        if self._engine.idle:
            raise StopIteration
        self._events = iter(self._engine.step())
        return self.__next__()

    def cancel(self) -> None:
        """Stop as soon as possible; the remaining events are the `Finish` of each unfinished generation."""
        for handle in self._handles:
            self._engine.cancel(handle)

    def close(self) -> None:
        """Stop at once, without further events."""
        self._events = iter(())
        self._engine.close()

    @property
    def generations(self) -> list[Generation]:
        """The finished ones, in the order of their prompts."""
        return [self._results[index] for index in sorted(self._results)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.close()

    def _complete(self, event: Event) -> Event:
        index = self._handles.index(event.handle)
        if isinstance(event, Block):
            self._unsettled[index] += not event.converged
            return replace(event, handle=index, pieces=self._answers[index].push(event.tokens))
        if isinstance(event, Finish):
            event = replace(event, handle=index, pieces=self._answers[index].flush())
            self._results[index] = self._result(index, event)
            self._finished(self._results[index])
        return replace(event, handle=index)

    def _result(self, index: int, finish: Finish) -> Generation:
        answer = self._answers[index]
        return Generation(
            text=answer.text,
            reasoning=answer.reasoning,
            tool_calls=answer.tool_calls,
            tokens=tuple(answer.tokens),
            finish_reason=finish.reason,
            seed=self.seeds[index],
            origin=self._origin,
            stats=finish.stats,
            unsettled_canvases=self._unsettled[index],
        )
