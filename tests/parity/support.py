"""What the parity tests share: inputs, opening a backend in float32 on the CPU, and comparisons."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dgemma.backend import Backend, BackendOptions, Context, DenoiseJob, EncodeJob, load_backend
from tests.parity import tiny
from tests.parity.oracle import Floats, Ids

TOLERANCE = 1e-4
FIRST_TEMPERATURE = 0.8
LIBRARY = {"cuda": "torch", "mlx": "mlx"}


def open_cpu(name: str, folder: Path) -> Backend:
    """The backend called `name` on the CPU in float32; skips the test where its tensor library is missing."""
    library = LIBRARY.get(name)
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return load_backend(name, folder, BackendOptions(device="cpu", dtype="float32"))


def prompt(length: int, seed: int = 0) -> Ids:
    """Random prompt ids, none of them special."""
    return np.random.default_rng([seed, length]).integers(3, 490, length).astype(np.int32)


def canvas(seed: int = 0, vocab: int = tiny.VOCAB) -> Ids:
    """Random canvas ids from the whole vocabulary."""
    return np.random.default_rng([seed, 7]).integers(0, vocab, tiny.CANVAS).astype(np.int32)


def uniforms(count: int, seed: int = 0) -> Floats:
    """Uniform numbers in [0, 1), as the core draws them: multiples of 2^-24."""
    return (np.random.default_rng([seed, 11]).integers(0, 1 << 24, count) / (1 << 24)).astype(np.float32)


def gap(left: NDArray, right: NDArray) -> float:
    """Largest absolute difference; infinite where shapes differ or a number is not finite."""
    if left.shape != right.shape:
        return float("inf")
    difference = np.abs(np.asarray(left, np.float64) - np.asarray(right, np.float64))
    return float(difference.max()) if np.isfinite(difference).all() else float("inf")


def encode(backend: Backend, context: Context, tokens: Ids) -> Floats:
    """Final-normed hidden states of a causal pass that extends `context`."""
    return backend.inspect(EncodeJob(context, tokens)).hidden


def denoise(backend: Backend, context: Context, tokens: Ids, temperature: float = FIRST_TEMPERATURE) -> Floats:
    """Softcapped logits of a canvas pass; leaves its self-conditioning signal in `context`."""
    return backend.inspect(DenoiseJob(context, tokens, temperature)).logits


def prepared(backend: Backend, tokens: Ids) -> Context:
    """A fresh context that holds `tokens`."""
    context = backend.open()
    backend.forward([EncodeJob(context, tokens)])
    return context


def probabilities(logits: Floats, temperature: float) -> NDArray[np.float64]:
    """softmax(logits / temperature) in float64."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def entropies(logits: Floats, temperature: float) -> NDArray[np.float64]:
    """Entropy in nats of softmax(logits / temperature), in float64."""
    p = probabilities(logits, temperature)
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)


def edge_distance(logits: Floats, temperature: float, numbers: Floats, sampled: Ids) -> NDArray[np.float64]:
    """How far each number lies outside the CDF interval [F(v - 1), F(v)) of the sampled id; 0 inside."""
    cumulative = np.cumsum(probabilities(logits, temperature), axis=-1)
    rows = np.arange(len(sampled))
    above = cumulative[rows, sampled]
    below = np.where(sampled > 0, cumulative[rows, sampled - 1], 0.0)
    return np.maximum(np.maximum(below - numbers, numbers - above), 0.0)
