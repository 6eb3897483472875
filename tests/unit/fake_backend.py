"""A backend without a model: it checks every job against the protocol, records it, and answers from a script."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dgemma.backend import DenoiseJob, EncodeJob, Int32s, Job, MemoryUse, Prediction
from dgemma.config import ModelConfig

CONFIG = ModelConfig(
    vocab_size=64,
    hidden_size=8,
    intermediate_size=8,
    moe_intermediate_size=8,
    num_experts=2,
    top_k_experts=1,
    num_attention_heads=1,
    sliding_window=8,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    final_logit_softcapping=30.0,
    canvas_length=4,
    dtype="float32",
    layers=(),
)


@dataclass
class FakeContext:
    window: int
    tokens: list[int] = field(default_factory=list)
    canvases: int = 0
    step: int = 0
    settled: int = 0
    closed: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    def settle(self) -> None:
        assert not self.closed
        self.settled = self.length

    def truncate(self, length: int) -> bool:
        assert not self.closed and 0 <= length <= self.length
        if length < self.settled and self.settled > self.window - 1:
            return False
        del self.tokens[length:]
        self.settled = min(self.settled, length)
        return True

    def start_canvas(self) -> None:
        assert not self.closed
        self.canvases, self.step = self.canvases + 1, 0

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


Script = Callable[[FakeContext, DenoiseJob], Prediction]


class FakeBackend:
    name = "fake"
    device = "none"
    dtype = "float32"

    def __init__(self, script: Script | None = None, config: ModelConfig = CONFIG, **overrides: int) -> None:
        self.config = replace(config, **overrides)
        self.script = script or model(self.config.vocab_size)
        self.contexts: list[FakeContext] = []
        self.passes: list[list[Job]] = []
        self.fail_at: int | None = None

    def open(self) -> FakeContext:
        self.contexts.append(FakeContext(self.config.sliding_window))
        return self.contexts[-1]

    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        if self.fail_at == len(self.passes):
            raise MemoryError("scripted")
        self.check(jobs)
        self.passes.append(list(jobs))
        encoded = {index: self.encode(job) for index, job in enumerate(jobs) if isinstance(job, EncodeJob)}
        return [self.denoise(job) if isinstance(job, DenoiseJob) else encoded[i] for i, job in enumerate(jobs)]

    def encode(self, job: EncodeJob) -> Prediction | None:
        before = context(job).length
        context(job).tokens += job.tokens.tolist()
        assert context(job).length <= self.config.max_position_embeddings
        if job.predict == "none":
            return None
        ends = range(before + 1 if job.predict == "all" else context(job).length, context(job).length + 1)
        uniforms = [None] * len(ends) if job.uniforms is None else job.uniforms.tolist()
        drawn = [
            next_token(context(job).tokens[:end], u, self.config.vocab_size)
            for end, u in zip(ends, uniforms, strict=True)
        ]
        return predict(drawn)

    def denoise(self, job: DenoiseJob) -> Prediction:
        assert context(job).length + job.tokens.size <= self.config.max_position_embeddings
        context(job).step += 1
        return self.script(context(job), job)

    def check(self, jobs: Sequence[Job]) -> None:
        assert jobs, "an empty pass"
        for kind in (EncodeJob, DenoiseJob):
            owners = [id(job.context) for job in jobs if isinstance(job, kind)]
            assert len(owners) == len(set(owners)), "a context appears twice"
        for job in jobs:
            assert not context(job).closed
            assert job.tokens.dtype == np.int32 and job.tokens.size > 0
            assert (job.tokens >= 0).all() and (job.tokens < self.config.vocab_size).all()
            assert job.temperature > 0
            if job.uniforms is not None:
                rows = 1 if isinstance(job, EncodeJob) and job.predict == "last" else job.tokens.size
                assert job.uniforms.dtype == np.float32 and job.uniforms.shape == (rows,)

    def memory(self) -> MemoryUse:
        return MemoryUse(weights=1, caches=sum(not c.closed for c in self.contexts), peak=7)

    @property
    def shapes(self) -> list[str]:
        """Each pass as text: e4 for an encode of 4 tokens, d for a denoising step."""
        return [" ".join(f"e{j.tokens.size}" if isinstance(j, EncodeJob) else "d" for j in p) for p in self.passes]


def next_token(tokens: Sequence[int], uniform: float | None, vocab: int) -> int:
    """The causal stand-in: all tokens so far and the uniform number decide."""
    seed = zlib.crc32(np.array(tokens, dtype=np.int32).tobytes())
    return int(np.random.default_rng([seed, 0 if uniform is None else 1 + int(uniform * 4)]).integers(0, vocab))


def context(job: Job) -> FakeContext:
    assert isinstance(job.context, FakeContext)
    return job.context


def predict(
    argmax: Sequence[int] | Int32s, entropy: float = 0.0, sampled: Sequence[int] | None = None, margin: float = 1.0
) -> Prediction:
    ids = np.array(argmax, dtype=np.int32)
    drawn = ids if sampled is None else np.array(sampled, dtype=np.int32)
    return Prediction(drawn, ids, np.full(ids.shape, entropy, dtype=np.float32), np.full(ids.shape, margin, np.float32))


def scripted(*canvases: Sequence[Sequence[int]], entropy: float = 0.0) -> Script:
    """Argmax canvases by canvas and step; the last step of a canvas repeats."""

    def answer(owner: FakeContext, job: DenoiseJob) -> Prediction:
        steps = canvases[owner.canvases - 1]
        return predict(steps[min(owner.step, len(steps)) - 1], entropy)

    return answer


def model(vocab: int) -> Script:
    """A stand-in for a network: everything it is given decides the answer, which settles after a few steps."""

    def answer(owner: FakeContext, job: DenoiseJob) -> Prediction:
        seed = zlib.crc32(np.array(owner.tokens, dtype=np.int32).tobytes())
        sharp = owner.step > seed % 4
        mixed = seed if sharp else zlib.crc32(job.tokens.tobytes(), seed)
        rng = np.random.default_rng([mixed, round(job.temperature * 1000) * (not sharp)])
        uniforms = np.zeros(job.tokens.shape) if job.uniforms is None else job.uniforms
        argmax = rng.integers(0, vocab, job.tokens.size).astype(np.int32)
        sampled = ((argmax + uniforms * (0 if sharp else vocab)) % vocab).astype(np.int32)
        return replace(
            predict(argmax, sampled=sampled), entropy=(rng.random(argmax.shape) * (not sharp)).astype(np.float32)
        )

    return answer
