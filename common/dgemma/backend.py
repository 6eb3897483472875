"""What the core asks of a backend: one pass over a batch of ragged jobs, and one cache per sequence.

The core owns every decision and every random number; a backend only computes. Nothing here imports a tensor library.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from dgemma.config import ModelConfig
from dgemma.errors import UnsupportedError, UsageError

Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]
Predict = Literal["none", "last", "all"]

REGISTRY = {"mlx": "dgemma_mlx.backend:open_backend", "cuda": "dgemma_cuda.backend:open_backend"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a pass says about N positions; the only numbers that leave the device.

    `sampled` [N] is the inverse-CDF draw (equal to `argmax` when the job is greedy), `argmax` [N] the lowest id among
    the largest logits, `entropy` [N] in nats of softmax(softcapped logits / temperature). `margin` [N] is how far the
    two largest softcapped logits lie apart, over the larger magnitude of the two.
    """

    sampled: Int32s
    argmax: Int32s
    entropy: Float32s
    margin: Float32s


class Context(Protocol):
    """One sequence's key/value cache and self-conditioning state."""

    @property
    def length(self) -> int:
        """Tokens in the cache; the next token encoded stands at this position."""

    def settle(self) -> None:
        """Declare that what is cached will not be rolled back: older keys may go (sliding layers keep W - 1)."""

    def truncate(self, length: int) -> bool:
        """Roll back to `length` tokens, exactly; False (and unchanged) where the keys needed are gone."""

    def start_canvas(self) -> None:
        """Forget the self-conditioning signal."""

    def close(self) -> None:
        """Free the device memory; the context must not be used afterwards."""


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """Causal pass over `tokens` [T], written to the cache behind `context.length`.

    `predict` asks for next-token predictions of the last or of all T positions, at `temperature`, with one number of
    `uniforms` ([1] or [T], float32 in [0, 1)) each; without `uniforms` the prediction is greedy.
    """

    context: Context
    tokens: Int32s
    predict: Predict = "none"
    temperature: float = 1.0
    uniforms: Float32s | None = None


@dataclass(frozen=True, slots=True)
class DenoiseJob:
    """Canvas pass over `tokens` [L] at positions length..length+L-1 against a read-only cache.

    Uses the self-conditioning signal that the previous denoise left in `context` (none after `start_canvas`) and leaves
    its own: softcapped logits / `temperature`. Without `uniforms` ([L], float32 in [0, 1)) the sample is the argmax.
    """

    context: Context
    tokens: Int32s
    temperature: float
    uniforms: Float32s | None = None


Job = EncodeJob | DenoiseJob


@dataclass(frozen=True, slots=True)
class Inspection:
    """For parity tests: `hidden` [T, H] behind the final norm; `logits` [T, V] softcapped, before temperature."""

    hidden: Float32s
    logits: Float32s


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on the device: weights, open caches, and the peak since the backend was opened."""

    weights: int
    caches: int
    peak: int


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """How to open a backend. `dtype` None: the checkpoint's on an accelerator, float32 on a CPU.

    `kernels` "reference" computes with the naive twins only. `self_conditioning` "auto" is sparse where that is within
    the rounding of the dtype.
    """

    device: Literal["auto", "cpu", "gpu"] = "auto"
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    kernels: Literal["auto", "reference"] = "auto"
    self_conditioning: Literal["auto", "exact", "sparse"] = "auto"


class Backend(Protocol):
    """A loaded model on one device; `kernels` says which implementation computes what, `dtype` the matmuls' type."""

    name: str
    device: str
    dtype: str
    config: ModelConfig
    kernels: Mapping[str, str]

    def open(self) -> Context:
        """A fresh, empty context."""

    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        """One pass over all jobs as one batch without padding; a result per job, None where none was asked for.

        Encode jobs write their keys before any attention of the same layer, so a sequence may be encoded and denoised
        in one pass (commit of a canvas with the first step of the next). A context appears in at most one encode and
        one denoise job. A job's result does not depend on the others beyond float rounding.
        """

    def inspect(self, job: Job) -> Inspection:
        """One pass over one job with every hidden state and logit brought to the host; otherwise as `forward`."""

    def memory(self) -> MemoryUse:
        """Bytes in use on the device."""


class OpenBackend(Protocol):
    """The function a registry entry names."""

    def __call__(self, folder: Path, options: BackendOptions) -> Backend:
        """Load the checkpoint in `folder`. Raises CheckpointError, UnsupportedError, OutOfMemoryError."""


def load_backend(name: str, folder: Path, options: BackendOptions) -> Backend:
    """Import and open the backend called `name` ("mlx" or "cuda")."""
    return _resolve(name)(folder, options)


def _resolve(name: str) -> OpenBackend:
    if name not in REGISTRY:
        raise UsageError(f"Unknown backend {name!r}.", f"Choose one of: {', '.join(REGISTRY)}.")
    module, function = REGISTRY[name].split(":")
    try:
        return cast(OpenBackend, getattr(importlib.import_module(module), function))
    except ImportError as error:
        raise UnsupportedError(
            f"The {name} backend is not installed: {error}.", f"pip install 'dgemma[{name}]'"
        ) from error
