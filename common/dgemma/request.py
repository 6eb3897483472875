"""What a caller asks the engine for, and when its text ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dgemma.config import ModelConfig
from dgemma.errors import require
from dgemma.noise import Noise
from dgemma.schedule import Denoising
from dgemma.session import Session

if TYPE_CHECKING:
    import dgemma.sequence as machines
    from dgemma.backend import Backend, Context

StopRule = Callable[[Sequence[int]], int | None]


@dataclass(frozen=True, slots=True)
class StopTokens:
    """Stop before the first of `ids`. As every stop rule: generated ids so far -> how many to keep, None to go on."""

    ids: Collection[int]

    def __call__(self, generated: Sequence[int]) -> int | None:
        """The index of the first stop token, or None."""
        return next((index for index, token in enumerate(generated) if token in self.ids), None)


class Mode(Protocol):
    """A way of decoding as a value: it checks what it is asked for and makes the state machine that does it."""

    def check(self, request: Request) -> None:
        """Raise UsageError where the request asks for what this mode cannot do."""

    def room(self, canvas: int) -> int:
        """Positions that must be free behind the prompt, canvases having `canvas` tokens."""

    def start(self, handle: int, request: Request, backend: Backend) -> machines.Sequence:
        """The state machine of one sequence."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    `sequence` keys the noise beside `seed`; requests that share both draw the same numbers. `pins` maps a position of
    the answer (0 = behind the prompt) to the token it must hold; `warm_start` are the tokens the answer starts from
    instead of noise, as far as they reach. `canvas_length` None is the model's, `mode` None block diffusion. A
    `session` lends the cache of its last generation and keeps this one's.
    """

    prompt: Sequence[int]
    max_tokens: int
    denoising: Denoising
    seed: int = 0
    sequence: int = 0
    canvas_length: int | None = None
    stop: StopRule = StopTokens(())
    pins: Mapping[int, int] = field(default_factory=dict)
    warm_start: Sequence[int] = ()
    mode: Mode | None = None
    session: Session | None = None

    def length(self, config: ModelConfig) -> int:
        """Tokens a canvas of this request."""
        return config.canvas_length if self.canvas_length is None else self.canvas_length

    def open(self, backend: Backend) -> Context:
        """The cache to generate with: a fresh one, or what the session has of the prompt."""
        return backend.open() if self.session is None else self.session.borrow(self.prompt)

    def check(self, config: ModelConfig) -> None:
        """Raise UsageError where this model cannot serve the request."""
        Noise(self.seed, self.sequence)
        require(len(self.prompt) > 0, "The prompt has no tokens.")
        require(self.max_tokens >= 1, f"max_tokens must be at least 1, not {self.max_tokens}.")
        length, limit = self.length(config), config.max_position_embeddings
        require(length >= 1, f"The canvas length must be at least 1, not {length}.")
        room = self.mode.room(length) if self.mode else length
        needed = f"The prompt ({len(self.prompt)} tokens) and a canvas ({room}) need {len(self.prompt) + room}"
        require(len(self.prompt) + room <= limit, f"{needed} positions; the model has {limit}.")
        if self.mode:
            self.mode.check(self)
        inside = all(0 <= position < self.max_tokens for position in self.pins)
        require(inside, f"Pinned positions must lie in [0, max_tokens), max_tokens being {self.max_tokens}.")
        for name, ids in (("prompt", self.prompt), ("pins", self.pins.values()), ("warm start", self.warm_start)):
            require(
                all(0 <= token < config.vocab_size for token in ids), f"The {name} holds ids outside the vocabulary."
            )
