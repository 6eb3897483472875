"""Running converted folders, and comparing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dgemma.backend import BackendOptions, DenoiseJob, EncodeJob, load_backend
from dgemma_convert import Options, convert


def converted(source: Path, target: Path, **options: Any) -> dict[str, Any]:
    """Convert with verification; the report by name of tensor, and the whole under ""."""
    report = convert(source, target, Options(**options), verify=True)
    return {each["name"]: each for each in report["tensors"]} | {"": report}


def logits(folder: Path, backend: str, steps: int = 3) -> list[np.ndarray]:
    """Logits of denoising steps over one canvas, each conditioned on the one before."""
    opened = load_backend(backend, folder, BackendOptions(device="cpu", dtype="float32"))
    context = opened.open()
    opened.forward([EncodeJob(context, ids(30, 0))])
    return [opened.inspect(DenoiseJob(context, ids(16, 1), 0.8)).logits for _ in range(steps)]


def close(ours: list[np.ndarray], theirs: list[np.ndarray], first: float) -> bool:
    """Whether runs agree; self-conditioning multiplies a rounding difference step by step."""
    limits = [first * 10**step for step in range(len(ours))]
    return all(np.abs(a - b).max() < limit for a, b, limit in zip(ours, theirs, limits, strict=True))


def ids(count: int, seed: int) -> Any:
    """Random token ids."""
    return np.random.default_rng(seed).integers(3, 90, count).astype(np.int32)
