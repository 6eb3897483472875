"""Whole denoising steps at real shapes with random weights on the device, and where their time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks import step_weights
from benchmarks.engines import Ours, tokens
from benchmarks.ops.measure import device, machine, seconds
from benchmarks.ops.shapes import FORMATS
from dgemma.backend import EncodeJob
from dgemma.canvas import Canvas
from dgemma.noise import Noise
from dgemma.schedule import ConstantTemperature, Denoising, EntropyBound, StableAndConfident
from dgemma_cuda.backend import Backend, steps_for
from dgemma_cuda.kernels import choose

_PARTS = ("rms_norm", "add_norm", "norm_rotate", "store", "attend", "experts", "head")


def row(name: str, context: int, repeats: int, choice: str = "auto") -> dict[str, object]:
    """One format: the median step in milliseconds, and what each part takes when the device waits for each.

    `eager_ms` is a step without a recorded graph, where there is one.
    """
    kernels = choose(device(), choice)
    spent: dict[str, float] = defaultdict(float)
    made = step_weights.model(_config(), FORMATS[name], kernels)
    engine = _engine(made, context)
    took = seconds(engine.step, repeats)
    recorded = engine.backend.kernels["step"] == "recorded"
    eager = seconds(_engine(made, context, eager=True).step, repeats) if recorded else took
    clocked = {part: _clocked(getattr(kernels, part), part, spent) for part in _PARTS}
    watched = _engine(replace(made, kernels=replace(kernels, **clocked, unfinished_head=None)), context)
    spent.clear()
    begin = time.perf_counter()
    watched.step()
    total = time.perf_counter() - begin
    parts = {part: round(1e3 * spent[part], 3) for part in _PARTS}
    return {
        "format": name,
        "machine": machine(),
        "context": context,
        "kernels": dict(engine.backend.kernels),
        "step_ms": round(1e3 * took, 3),
        "eager_ms": round(1e3 * eager, 3),
        "watched_ms": round(1e3 * total, 3),
        "parts_ms": parts | {"linear and rest": round(1e3 * (total - sum(spent.values())), 3)},
        "mean_entropy": round(engine.entropy, 3),
        "peak_gb": round(engine.backend.memory().peak / 1e9, 2),
    }


class _Steps(Ours):
    """`Ours` over a model that no checkpoint holds."""

    def __init__(self, made: step_weights.Model, context: int, eager: bool) -> None:
        self.entropy = 0.0
        if made.kernels.names["linear"] == "triton":
            from dgemma_cuda.kernels.binding import bound

            made = bound(made)
        passes = steps_for(made, "auto")
        self.backend = Backend(made, passes.without_recording("benchmark") if eager else passes)
        self.context = self.backend.open()
        self._length, self._vocab = made.config.canvas_length, made.config.vocab_size
        self.backend.forward([EncodeJob(self.context, tokens(context, self._vocab))])
        self._noise = Noise(0)
        stop = StableAndConfident(None, None)
        self._denoising = Denoising(ConstantTemperature(0.6), EntropyBound(0.1), stop, 1 << 20)
        self._canvas = Canvas.noise(self._noise.initial(0, self._length, self._vocab), 0, 1 << 20)

    def step(self) -> float:
        """See `Engine`."""
        self._canvas = replace(self._canvas, history=())
        self.entropy = super().step()
        return self.entropy


def _engine(made: step_weights.Model, context: int, eager: bool = False) -> _Steps:
    engine = _Steps(made, context, eager)
    engine.step()
    return engine


def _config() -> step_weights.ModelConfig:
    return step_weights.config(small=device().type == "cpu")


def _clocked(call: Callable[..., object], part: str, spent: dict[str, float]) -> Callable[..., object]:
    def clocked(*arguments: object) -> object:
        _wait()
        begin = time.perf_counter()
        result = call(*arguments)
        _wait()
        spent[part] += time.perf_counter() - begin
        return result

    return clocked


def _wait() -> None:
    if device().type == "cuda":
        torch.cuda.synchronize()
