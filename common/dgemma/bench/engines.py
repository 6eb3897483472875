"""What can be measured, and by which name. An engine is opened from a registry string, so nothing heavy loads early."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, cast

from dgemma.bench.prompts import Prompt
from dgemma.errors import DgemmaError, UsageError

REGISTRY = {
    "dgemma": "dgemma.bench.ours:open_engine",
    "server": "dgemma.bench.server:open_engine",
    "transformers": "benchmarks.peers.torch_diffusion:open_engine",
    "mlx-vlm": "benchmarks.peers.mlx_vlm_diffusion:open_engine",
    "ar-transformers": "benchmarks.peers.torch_causal:open_engine",
    "ar-mlx": "benchmarks.peers.mlx_causal:open_engine",
}
_INSTALL = {"ar-transformers": "transformers torch", "transformers": "transformers torch", "ar-mlx": "mlx-lm"}


class EngineMissingError(DgemmaError):
    """An engine that this installation lacks; the run goes on without it."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """How one run decodes. `mode` fixed: exactly `steps` steps a canvas and `max_tokens` tokens, no stop of any kind.

    `prompt_tokens` cuts or repeats the prompt's text to that many tokens; None leaves it. The other None values are
    the checkpoint's.
    """

    mode: Literal["adaptive", "fixed"] = "adaptive"
    max_tokens: int = 256
    seed: int = 0
    steps: int | None = None
    entropy_bound: float | None = None
    canvas_length: int | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine measured of one run; the meaning of each number is `Sample`'s and `metrics`'."""

    prompt_tokens: int
    tokens: int
    total_s: float
    texts: tuple[str, ...]
    canvas_tokens: int | None = None
    prefill_s: float | None = None
    block_s: tuple[float, ...] = ()
    steps_per_canvas: tuple[int, ...] = ()
    commit_passes: int | None = None
    step_ms: tuple[float, ...] = ()
    components_ms: Mapping[str, float] = field(default_factory=dict)
    cpu_s: float | None = None
    energy_j: float | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from parsed JSON."""
        values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in raw.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who an engine is: the columns of a row that do not change between runs."""

    engine: str
    model: str
    device: str
    sampler: str
    engine_version: str | None = None
    backend: str | None = None
    revision: str | None = None
    model_hash: str | None = None
    weight_format: str | None = None
    dtype: str | None = None
    kernels: str | None = None
    canvas_length: int | None = None
    random_weights: bool = False
    obeys_steps: bool = True
    copy_gb_s: float | None = None
    matmul_tflop_s: float | None = None
    step_bytes: float | None = None
    step_flops: float | None = None


class Engine(Protocol):
    """A loaded model that answers prompts and takes the time."""

    identity: Identity

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        """Answer all prompts as one batch. Raises UnsupportedError where it has no batches or no such limit."""

    def peak_memory(self) -> int | None:
        """The most bytes so far: what was allocated on an accelerator, the whole resident process on a CPU."""

    def close(self) -> None:
        """Let everything go."""


@dataclass(frozen=True, slots=True)
class Target:
    """An engine's name with its argument (`dgemma:mlx`, `server:URL`, `ar-mlx:MODEL`), and how to load the model."""

    name: str
    argument: str | None
    model: str
    device: Literal["auto", "cpu", "gpu"] = "auto"
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    offline: bool = False

    @property
    def spelling(self) -> str:
        """As the user wrote it."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"

    @property
    def is_foreign(self) -> bool:
        """Whether it runs another project's code, which may print wherever it likes."""
        return REGISTRY[self.name].startswith("benchmarks.")


class OpenEngine(Protocol):
    """The function that a registry entry names."""

    def __call__(self, target: Target) -> Engine:
        """Load the model. Raises DgemmaError."""


def parse(text: str) -> tuple[str, str | None]:
    """Split an engine's name from its argument. Raises UsageError on an unknown name."""
    name, _, argument = text.partition(":")
    if name not in REGISTRY:
        raise UsageError(f"No engine called {name!r}.", f"Choose of: {', '.join(REGISTRY)}.")
    return name, argument or None


def open_engine(target: Target) -> Engine:
    """Open an engine. Raises EngineMissingError where a library it needs is not installed."""
    module, function = REGISTRY[target.name].split(":")
    try:
        return cast(OpenEngine, getattr(importlib.import_module(module), function))(target)
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        if missing == "benchmarks":
            raise EngineMissingError(f"{target.name} is part of the repository.", "Run from a checkout.") from error
        package = _INSTALL.get(target.name, target.name)
        raise EngineMissingError(f"{missing or error} is not installed.", f"pip install {package}") from error
