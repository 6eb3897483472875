"""A backend that needs no model: whatever is asked, it answers with the folder's script.txt."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dgemma.backend import BackendOptions, EncodeJob, Job, MemoryUse, Prediction
from dgemma.config import ModelConfig
from dgemma.tokenizer import Tokenizer

NAME = "scripted"
ENTRY = "scripted_backend:open_scripted"
TURN = 105


class Context:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.first: int | None = None
        self.open = True

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def prompt(self) -> int:
        """Where the answer begins: behind the last turn's head, or where the first prediction was asked for."""
        turns = [index for index, token in enumerate(self.tokens) if token == TURN]
        if turns:
            return turns[-1] + 1 + len("model\n")
        self.first = self.length if self.first is None else self.first
        return self.first

    def settle(self) -> None:
        pass

    def truncate(self, length: int) -> bool:
        del self.tokens[length:]
        return True

    def start_canvas(self) -> None:
        pass

    def close(self) -> None:
        self.open = False


class Scripted:
    name, device, dtype = NAME, "cpu", "float32"
    kernels: Mapping[str, str] = {}

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
        return self._answer(context, context.length, job.tokens.size)

    def _encode(self, context: Context, job: EncodeJob) -> Prediction | None:
        before = context.length
        context.tokens += job.tokens.tolist()
        if job.predict == "none":
            return None
        first = context.length if job.predict == "last" else before + 1
        return self._answer(context, first, context.length + 1 - first)

    def _answer(self, context: Context, first: int, size: int) -> Prediction:
        start = first - context.prompt
        tokens = np.array((self.script[start:] + [106] * size)[:size], np.int32)
        return Prediction(tokens, tokens, np.full(size, self.entropy, np.float32), np.ones(size, np.float32))


def open_scripted(folder: Path, options: BackendOptions) -> Scripted:
    config, tokenizer = ModelConfig.from_folder(folder), Tokenizer.from_folder(folder)
    pause, entropy = (float(_read(folder / name, "0")) for name in ("pause.txt", "entropy.txt"))
    return Scripted(config, tokenizer.encode(_read(folder / "script.txt", "Hello.")), pause, entropy)


def _read(path: Path, default: str) -> str:
    return path.read_bytes().decode() if path.exists() else default
