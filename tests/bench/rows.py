"""Rows and samples for tests, whole and valid, with what a test wants changed."""

from typing import Any

from dgemma.bench.metrics import summarise
from dgemma.bench.row import SCHEMA, Row, Sample


def make_sample(prompt: str = "a", repetition: int = 0, total_s: float = 2.0, **changes: Any) -> Sample:
    values: dict[str, Any] = {
        "prompt": prompt,
        "repetition": repetition,
        "sequences": 1,
        "prompt_tokens": 10,
        "tokens": 40,
        "canvas_tokens": 64,
        "total_s": total_s,
        "prefill_s": 0.5,
        "block_s": (1.0, total_s),
        "steps_per_canvas": (4, 6),
        "commit_passes": 1,
        "step_ms": (100.0,) * 8,
        "cpu_s": 3.0,
        "energy_j": None,
        "correct": 1,
        "checkable": 1,
        "answer_sha256": "0" * 16,
    }
    return Sample(**values | changes)


def make_row(samples: list[Sample] | None = None, weights: str = "trained", **changes: Any) -> Row:
    samples = samples or [make_sample(repetition=index) for index in range(3)]
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "label": "measured",
        "weights": weights,
        "standard": True,
        "engine": "dgemma",
        "engine_version": "0.1.0",
        "backend": "cuda",
        "device": "gpu",
        "machine": "H100",
        "model": "google/diffusiongemma-26B-A4B-it",
        "revision": None,
        "model_hash": "f" * 16,
        "weight_format": "bf16",
        "dtype": "bfloat16",
        "kernels": None,
        "sampler": "entropy bound",
        "profile": "chat",
        "profile_version": 1,
        "profile_hash": "a" * 16,
        "mode": "adaptive",
        "prompts": 1,
        "repetitions": 3,
        "batch": 1,
        "prompt_tokens": 10,
        "max_tokens": 64,
        "canvas_length": 32,
        "steps": None,
        "entropy_bound": None,
        "seed": 0,
        "peak_memory_bytes": 1_000_000,
        "copy_gb_s": None,
        "matmul_tflop_s": None,
        "bandwidth_share": None,
        "compute_share": None,
        "load_s": 1.0,
        "warmup_s": 1.0,
        "environment": {"cores": 2, "command": "dgemma bench run -m /home/me/model"},
        "samples": tuple(samples),
    }
    return Row(**values | summarise(samples, weights == "random") | changes)
