"""Next-token sampling of the causal pass, keyed by the absolute position of the token it draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgemma.backend import EncodeJob, Float32s, Predict, Prediction
from dgemma.errors import DgemmaError
from dgemma.noise import Noise
from dgemma.sequence import Transcript

ROUNDINGS = 4
_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclass(frozen=True, slots=True)
class CausalSampler:
    """Temperature 0 takes the likeliest token; above 0 one number per position decides, whatever pass asks for it."""

    noise: Noise
    temperature: float

    def job(self, transcript: Transcript, tokens: list[int], predict: Predict) -> EncodeJob:
        """The pass that encodes `tokens` behind the cache and predicts what follows the last or each of them."""
        context = transcript.context
        count = 1 if predict == "last" else len(tokens)
        first = context.length + len(tokens) - count + 1
        uniforms = self.noise.causal(first, count) if self.temperature else None
        return EncodeJob(context, np.array(tokens, dtype=np.int32), predict, self.temperature or 1.0, uniforms)


def near_ties(margin: Float32s, dtype: str) -> NDArray[np.bool_]:
    """Where a few roundings of `dtype` may decide between the two likeliest tokens; nowhere in float32.

    There a pass over many rows, which sums in another order, may choose otherwise than a pass over one.
    """
    return margin <= ROUNDINGS * _ROUNDOFF.get(dtype, -np.inf)


def check_finite(prediction: Prediction, position: int) -> None:
    """Raise DgemmaError where the numbers of a causal pass make no sense."""
    if not np.isfinite(prediction.entropy).all():
        raise DgemmaError(f"The model's output is not finite (position {position}).", "Try a wider dtype.")
