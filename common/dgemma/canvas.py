"""The block of tokens being denoised, as a value: each step makes the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dgemma.backend import Float32s, Int32s, Prediction
from dgemma.schedule import Bools, Denoising, mean


@dataclass(frozen=True, slots=True, eq=False)
class Canvas:
    """Canvas number `index` after `step` steps, with `remaining` to go at most.

    `tokens` [L] go into the next step; `accepted` [L] of them were kept by the last one; `pinned` [L] are the caller's
    and never change. `history` holds the argmax canvas of every step so far; `entropy` [L] is the newest, 0 at pins;
    `doubted` [L] are the pins that the last step would have written otherwise.
    """

    tokens: Int32s
    accepted: Bools
    pinned: Bools
    index: int
    step: int
    remaining: int
    entropy: Float32s
    history: tuple[Int32s, ...] = ()
    mean_entropy: float = 0.0
    converged: bool = False
    doubted: Bools | None = None

    @classmethod
    def noise(
        cls, noise: Int32s, index: int, steps: int, pins: Mapping[int, int] | None = None, start: Sequence[int] = ()
    ) -> Canvas:
        """A canvas of `noise`, overlaid with `start` from its first position on and with the pinned tokens."""
        tokens, pinned = noise.copy(), np.zeros(noise.shape, dtype=np.bool_)
        tokens[: len(start)] = start
        for position, token in (pins or {}).items():
            tokens[position], pinned[position] = token, True
        entropy = np.zeros(noise.shape, dtype=np.float32)
        return cls(tokens, np.zeros_like(pinned), pinned, index, 0, steps, entropy, converged=bool(pinned.all()))

    @property
    def argmax(self) -> Int32s:
        """The most probable tokens at the last step, pins laid over; before the first step the starting tokens."""
        return self.history[-1] if self.history else self.tokens

    @property
    def changed(self) -> Bools:
        """Where the argmax differs from that of the step before; at the first step every free position."""
        return self.history[-1] != self.history[-2] if len(self.history) > 1 else ~self.pinned

    @property
    def finished(self) -> bool:
        """Whether no step follows: the stop rule fired, all is pinned, or the step cap is reached."""
        return self.converged or self.remaining == 0

    def advance(self, prediction: Prediction, renoise: Int32s, denoising: Denoising) -> Canvas:
        """The canvas one step on: accepted positions take the sample, the other free ones take `renoise`."""
        free = ~self.pinned
        entropy = prediction.entropy[free]
        accepted = np.zeros_like(free)
        accepted[free] = denoising.accept(entropy)
        history = (*self.history, np.where(free, prediction.argmax, self.tokens))
        fresh = np.where(accepted, prediction.sampled, renoise)
        return replace(
            self,
            tokens=np.where(free, fresh, self.tokens),
            accepted=accepted,
            step=self.step + 1,
            remaining=self.remaining - 1,
            entropy=np.where(free, prediction.entropy, np.float32(0)),
            history=history,
            mean_entropy=float(mean(entropy)),
            converged=denoising.stop(history, entropy),
            doubted=self.pinned & (prediction.argmax != self.tokens),
        )

    def pin(self, position: int, token: int) -> Canvas:
        """The canvas with one more position that is not to be decided any more."""
        tokens, pinned = self.tokens.copy(), self.pinned.copy()
        tokens[position], pinned[position] = token, True
        return replace(self, tokens=tokens, pinned=pinned)

    def committed(self) -> Int32s:
        """The tokens to keep once finished: the argmax, not the sample."""
        return self.argmax
