"""What a generation cost: counters, and a clock that never divides by the time after the first block."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and seconds of one sequence, from its submission on; stop tokens are not completion tokens.

    `tokens_per_forward` is completion tokens over denoising steps, `tokens_per_pass` counts encoder passes behind the
    prompt too. `forwards` are the passes behind the prompt as they were run, a shared one counting once;
    `forwards_per_token` is just below 1 in mode `ar`. `accepted_lengths` are the tokens that each verified canvas gave.
    `near_ties` are the places in the answer where a verified token at temperature 0 lies within the rounding of a
    16-bit run of another one, so that mode `ar` may go on differently from there; there are none in float32.
    `decode_s` runs from the end of the prefill to the end, `decode_tok_s` is completion tokens over it.
    `cached_tokens` of the prompt were in a session's cache already.
    """

    prompt_tokens: int
    completion_tokens: int
    canvases: int
    denoising_steps: int
    steps_per_canvas: tuple[int, ...]
    encoder_passes: int
    tokens_per_forward: float
    tokens_per_pass: float
    prefill_s: float
    time_to_first_block_s: float
    decode_s: float
    total_s: float
    decode_tok_s: float
    e2e_tok_s: float
    peak_memory_bytes: int
    forwards: int = 0
    accepted_lengths: tuple[int, ...] = ()
    cached_tokens: int = 0
    forwards_per_token: float = 0.0
    near_ties: tuple[int, ...] = ()


@dataclass(slots=True)
class Meter:
    """Counts one sequence while it runs; its clock starts when it is made."""

    prompt_tokens: int
    clock: Clock = time.perf_counter
    cached_tokens: int = 0
    completion_tokens: int = 0
    denoising_steps: int = 0
    steps_per_canvas: list[int] = field(default_factory=list)
    prompt_passes: int = 0
    commit_passes: int = 0
    forwards: int = 0
    accepted_lengths: list[int] = field(default_factory=list)
    near_ties: list[int] = field(default_factory=list)
    _start: float = field(init=False)
    _prefilled: float | None = field(init=False, default=None)
    _first_block: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._start = self.clock()

    def encoded(self, start: int, stop: int) -> None:
        """A pass put the tokens `start` to `stop` into the cache."""
        if start >= self.prompt_tokens:
            self.commit_passes += 1
            return
        self.prompt_passes += 1
        if stop >= self.prompt_tokens:
            self._prefilled = self.clock()

    def block(self, tokens: int, steps: int) -> None:
        """A canvas is final and `tokens` of it were delivered."""
        self.steps_per_canvas.append(steps)
        self.delivered(tokens)

    def delivered(self, tokens: int) -> None:
        """So many more tokens were delivered."""
        self.completion_tokens += tokens
        if self._first_block is None:
            self._first_block = self.clock()

    def stats(self, peak_memory_bytes: int) -> Stats:
        """Everything so far."""
        now = self.clock()
        prefilled = now if self._prefilled is None else self._prefilled
        first_block = now if self._first_block is None else self._first_block
        return Stats(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            canvases=len(self.steps_per_canvas),
            denoising_steps=self.denoising_steps,
            steps_per_canvas=tuple(self.steps_per_canvas),
            encoder_passes=self.prompt_passes + self.commit_passes,
            tokens_per_forward=_ratio(self.completion_tokens, self.denoising_steps),
            tokens_per_pass=_ratio(self.completion_tokens, self.denoising_steps + self.commit_passes),
            prefill_s=prefilled - self._start,
            time_to_first_block_s=first_block - self._start,
            decode_s=now - prefilled,
            total_s=now - self._start,
            decode_tok_s=_ratio(self.completion_tokens, now - prefilled),
            e2e_tok_s=_ratio(self.completion_tokens, now - self._start),
            peak_memory_bytes=peak_memory_bytes,
            forwards=self.forwards,
            accepted_lengths=tuple(self.accepted_lengths),
            cached_tokens=self.cached_tokens,
            forwards_per_token=_ratio(self.forwards, self.completion_tokens),
            near_ties=tuple(self.near_ties),
        )


def _ratio(count: int, over: float) -> float:
    return count / over if over > 0 else 0.0
