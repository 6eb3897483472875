"""transformers behind the backend protocol, one job at a time: a check of the parity tests themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from dgemma.backend import Backend, BackendOptions, EncodeJob, Job, MemoryUse, Prediction
from dgemma.config import ModelConfig
from tests.parity.oracle import Floats, Ids, Oracle, OracleContext


class Seen(NamedTuple):
    hidden: Floats
    logits: Floats


@dataclass
class ReferenceContext:
    """A cache that is rebuilt from the token history when it is rolled back."""

    oracle: Oracle
    cache: OracleContext
    tokens: Ids
    window: int
    settled: int = 0
    signal: Floats | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    def settle(self) -> None:
        self.settled = self.length

    def truncate(self, length: int) -> bool:
        if length < self.settled and self.settled >= self.window:
            return False
        self.tokens, self.cache = self.tokens[:length], self.oracle.open()
        if length:
            self.cache.encode(self.tokens)
        self.settled = min(self.settled, length)
        return True

    def start_canvas(self) -> None:
        self.signal = None

    def close(self) -> None:
        pass


class ReferenceBackend:
    name = "reference"
    device = "cpu"
    dtype = "float32"

    def __init__(self, folder: Path) -> None:
        self.config = ModelConfig.from_folder(folder)
        self._oracle = Oracle(folder)

    def open(self) -> ReferenceContext:
        return ReferenceContext(self._oracle, self._oracle.open(), np.zeros(0, np.int32), self.config.sliding_window)

    def inspect(self, job: Job) -> Seen:
        context = cast(ReferenceContext, job.context)
        if isinstance(job, EncodeJob):
            context.tokens = np.concatenate([context.tokens, job.tokens])
            hidden = context.cache.encode(job.tokens)
            return Seen(hidden, self._oracle.head(hidden))
        hidden, logits = context.cache.denoise(job.tokens, context.signal)
        context.signal = logits / np.float32(job.temperature)
        return Seen(hidden, logits)

    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        encodes_first = sorted(range(len(jobs)), key=lambda index: not isinstance(jobs[index], EncodeJob))
        results = {index: self._predict(jobs[index]) for index in encodes_first}
        return [results[index] for index in range(len(jobs))]

    def memory(self) -> MemoryUse:
        return MemoryUse(0, 0, 0)

    def _predict(self, job: Job) -> Prediction | None:
        logits = self.inspect(job).logits
        if isinstance(job, EncodeJob):
            if job.predict == "none":
                return None
            logits = logits if job.predict == "all" else logits[-1:]
        scaled = logits / np.float32(job.temperature)
        weights = np.exp(scaled - scaled.max(-1, keepdims=True))
        p = weights / weights.sum(-1, keepdims=True)
        argmax = logits.argmax(-1).astype(np.int32)
        sampled = argmax if job.uniforms is None else _draw(p, job.uniforms)
        second, first = np.sort(logits)[:, -2:].T
        margin = (first - second) / np.maximum(np.maximum(abs(first), abs(second)), 1e-37)
        return Prediction(sampled, argmax, -(p * np.log(np.where(p > 0, p, 1))).sum(-1), margin)


def _draw(p: Floats, numbers: Floats) -> Ids:
    cumulative = np.cumsum(p, axis=-1)
    past = cumulative > numbers[:, None] * cumulative[:, -1:]
    return past.argmax(-1).astype(np.int32)


def open_backend(folder: Path, options: BackendOptions) -> Backend:
    del options
    return cast(Backend, ReferenceBackend(folder))
