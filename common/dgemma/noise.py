"""Every random number of a generation, drawn on the host so that all backends consume the same ones.

Stateless: a draw depends only on (seed, sequence, canvas, step, purpose), or on (seed, sequence, position) for causal
passes. The first k of L draws equal the draws of length k.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dgemma.backend import Float32s, Int32s
from dgemma.errors import UsageError

_WORDS_PER_BLOCK = 4


class _Purpose(IntEnum):
    INITIAL = 0
    SAMPLE = 1
    RENOISE = 2
    CAUSAL = 3


@dataclass(frozen=True, slots=True)
class Noise:
    """The numbers of one sequence: Philox-4x64 with key (seed, purpose) and counter (block, step, canvas, sequence)."""

    seed: int
    sequence: int = 0

    def __post_init__(self) -> None:
        for name, value in (("seed", self.seed), ("noise sequence", self.sequence)):
            if not 0 <= value < 2**64:
                raise UsageError(f"The {name} must lie in [0, 2**64), not {value}.")

    def initial(self, canvas: int, length: int, vocab: int) -> Int32s:
        """Token ids that a canvas starts from."""
        return _ids(self._words(_Purpose.INITIAL, canvas, 0, length), vocab)

    def uniforms(self, canvas: int, step: int, length: int) -> Float32s:
        """One number in [0, 1) per position, for sampling at `step`."""
        return _units(self._words(_Purpose.SAMPLE, canvas, step, length))

    def renoise(self, canvas: int, step: int, length: int, vocab: int) -> Int32s:
        """Token ids that replace what `step` did not accept."""
        return _ids(self._words(_Purpose.RENOISE, canvas, step, length), vocab)

    def causal(self, position: int, count: int) -> Float32s:
        """One number in [0, 1) for each absolute position from `position` on, the same whatever range asks for it."""
        block, skip = divmod(position, _WORDS_PER_BLOCK)
        return _units(self._words(_Purpose.CAUSAL, 0, 0, skip + count, block)[skip:])

    def _words(self, purpose: _Purpose, canvas: int, step: int, count: int, block: int = 0) -> NDArray[np.uint64]:
        key = np.array([self.seed, purpose], dtype=np.uint64)
        counter = np.array([block, step, canvas, self.sequence], dtype=np.uint64)
        return np.asarray(np.random.Philox(key=key, counter=counter).random_raw(count), dtype=np.uint64)


def _units(words: NDArray[np.uint64]) -> Float32s:
    """Top 24 bits as a float32 in [0, 1)."""
    return (words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _ids(words: NDArray[np.uint64], vocab: int) -> Int32s:
    """Top 32 bits mapped to [0, vocab) by multiply-shift."""
    return ((words >> np.uint64(32)) * np.uint64(vocab) >> np.uint64(32)).astype(np.int32)
