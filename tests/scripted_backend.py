"""A backend that needs no model: whatever is asked, it answers with the folder's script.txt."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dgemma.backend import BackendOptions, EncodeJob, Job, MemoryUse, Prediction
from dgemma.config import ModelConfig
from dgemma.tokenizer import Tokenizer

NAME = "scripted"
ENTRY = "scripted_backend:open_scripted"


class Context:
    def __init__(self) -> None:
        self.length = 0
        self.prompt: int | None = None
        self.open = True

    def settle(self) -> None:
        pass

    def truncate(self, length: int) -> bool:
        self.length = length
        return True

    def start_canvas(self) -> None:
        pass

    def close(self) -> None:
        self.open = False


class Scripted:
    name, device = NAME, "cpu"

    def __init__(self, config: ModelConfig, script: list[int], pause: float, entropy: float) -> None:
        self.config, self.script, self.pause, self.entropy = config, script, pause, entropy
        self.contexts: list[Context] = []

    def open(self) -> Context:
        self.contexts.append(Context())
        return self.contexts[-1]

    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        time.sleep(self.pause)
        return [self._job(job) for job in jobs]

    def memory(self) -> MemoryUse:
        return MemoryUse(0, 0, 1_000_000)

    def _job(self, job: Job) -> Prediction | None:
        context = job.context
        assert isinstance(context, Context) and context.open
        if isinstance(job, EncodeJob):
            return self._encode(context, job)
        if context.prompt is None:
            context.prompt = context.length
        return self._answer(context, context.length, job.tokens.size)

    def _encode(self, context: Context, job: EncodeJob) -> Prediction | None:
        before = context.length
        context.length += job.tokens.size
        if job.predict == "none":
            return None
        if context.prompt is None:
            context.prompt = context.length
        first = context.length if job.predict == "last" else before + 1
        return self._answer(context, first, context.length + 1 - first)

    def _answer(self, context: Context, first: int, size: int) -> Prediction:
        assert context.prompt is not None
        start = first - context.prompt
        tokens = np.array((self.script[start:] + [106] * size)[:size], np.int32)
        return Prediction(tokens, tokens, np.full(size, self.entropy, np.float32))


def open_scripted(folder: Path, options: BackendOptions) -> Scripted:
    config, tokenizer = ModelConfig.from_folder(folder), Tokenizer.from_folder(folder)
    pause, entropy = (float(_read(folder / name, "0")) for name in ("pause.txt", "entropy.txt"))
    return Scripted(config, tokenizer.encode(_read(folder / "script.txt", "Hello.")), pause, entropy)


def _read(path: Path, default: str) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else default
