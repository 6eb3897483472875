"""A benchmark row: one engine on one profile at one setting. The field order is the column order everywhere.

`metrics` defines every number. A row about random weights cannot carry a speed that depends on convergence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from dgemma.errors import UsageError

SCHEMA = 1
CONVERGENCE = (
    "e2e_tok_s",
    "e2e_tok_s_p10",
    "e2e_tok_s_p90",
    "decode_tok_s",
    "tok_per_cpu_s",
    "tokens_per_forward",
    "tokens_per_pass",
    "steps_per_canvas_p50",
    "steps_per_canvas_p90",
    "steps_per_canvas_max",
    "energy_j_per_token",
    "quality",
)
NESTED = ("components_ms", "settings", "environment", "samples")


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run of `sequences` prompts at once; times in seconds from its start.

    `tokens` are those the caller received, without stop tokens and padding; `block_s` when each block arrived;
    `steps_per_canvas` denoising steps of every canvas; `correct` of `checkable` answers were right.
    """

    prompt: str
    repetition: int
    sequences: int
    prompt_tokens: int
    tokens: int
    canvas_tokens: int | None
    total_s: float
    prefill_s: float | None
    block_s: tuple[float, ...]
    steps_per_canvas: tuple[int, ...]
    commit_passes: int | None
    step_ms: tuple[float, ...]
    cpu_s: float | None
    energy_j: float | None
    correct: int
    checkable: int
    answer_sha256: str

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from parsed JSON."""
        values: dict[str, Any] = {name: _frozen(value) for name, value in raw.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Row:
    """Everything about one measurement; None is "not measured here", never zero."""

    schema: int
    label: Literal["measured", "smoke"]
    weights: Literal["trained", "random"]
    standard: bool
    engine: str
    engine_version: str | None
    backend: str | None
    device: str
    machine: str
    model: str
    revision: str | None
    model_hash: str | None
    weight_format: str | None
    dtype: str | None
    kernels: str | None
    sampler: str
    profile: str
    profile_version: int
    profile_hash: str
    mode: Literal["adaptive", "fixed"]
    prompts: int
    repetitions: int
    batch: int
    prompt_tokens: int
    max_tokens: int
    canvas_length: int | None
    steps: int | None
    entropy_bound: float | None
    seed: int
    e2e_tok_s: float | None
    e2e_tok_s_p10: float | None
    e2e_tok_s_p90: float | None
    decode_tok_s: float | None
    prefill_tok_s: float | None
    ttfb_s: float | None
    interblock_s: float | None
    total_s: float
    step_ms_p10: float | None
    step_ms_p50: float | None
    step_ms_p90: float | None
    steps_per_canvas_p50: float | None
    steps_per_canvas_p90: float | None
    steps_per_canvas_max: int | None
    tokens_per_forward: float | None
    tokens_per_pass: float | None
    tok_per_cpu_s: float | None
    quality: float | None
    quality_prompts: int
    peak_memory_bytes: int | None
    energy_j_per_token: float | None
    copy_gb_s: float | None
    matmul_tflop_s: float | None
    bandwidth_share: float | None
    compute_share: float | None
    spread: float | None
    busy: bool
    load_s: float | None
    warmup_s: float | None
    components_ms: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        carried = [name for name in CONVERGENCE if getattr(self, name) is not None]
        if self.weights == "random" and carried:
            raise UsageError(f"A row of random weights cannot carry {carried[0]}: such a model never converges.")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from parsed JSON. Raises UsageError on another schema, a missing or an unknown field."""
        if raw.get("schema") != SCHEMA:
            raise UsageError(f"A row of schema {raw.get('schema')!r}; this version reads {SCHEMA}.")
        samples = tuple(Sample.from_dict(each) for each in raw.get("samples", ()))
        try:
            return cls(**{**raw, "samples": samples})
        except TypeError as error:
            raise UsageError(f"Not a benchmark row: {error}.") from error

    def as_dict(self) -> dict[str, Any]:
        """All fields in order, ready for JSON."""
        return asdict(self)

    def dump(self) -> str:
        """One line of JSON."""
        return json.dumps(self.as_dict(), ensure_ascii=False) + "\n"

    @property
    def name(self) -> str:
        """Engine and backend, as tables show them."""
        return self.engine if self.backend is None else f"{self.engine} ({self.backend})"


def columns() -> list[str]:
    """The flat columns in order; nested fields are only in JSON."""
    return [each.name for each in fields(Row) if each.name not in NESTED]


def read_rows(path: Path) -> list[Row]:
    """The rows of a .jsonl file, or of a .json file that holds a list of them. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8")
        return [Row.from_dict(each) for each in _objects(text)]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    except ValueError as error:
        raise UsageError(f"{path} does not hold benchmark rows: {error}.") from error


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _objects(text: str) -> Iterable[Mapping[str, Any]]:
    if text.lstrip().startswith("["):
        yield from json.loads(text)
    else:
        yield from (json.loads(line) for line in text.splitlines() if line.strip())
