"""Any causal language model through mlx_lm, greedy: the autoregressive baseline on a Mac."""

from __future__ import annotations

import time

import mlx.core as mx
import mlx_lm

from benchmarks.peers.prompting import single
from dgemma.bench.engines import Identity, Limits, Outcome, Target
from dgemma.bench.environment import version
from dgemma.bench.fitting import fit
from dgemma.bench.meters import Cost
from dgemma.bench.prompts import Prompt
from dgemma.errors import UnsupportedError, UsageError
from dgemma.memory import peak_resident_bytes


class MlxCausal:
    """The model in the engine's argument, or the one under -m."""

    def __init__(self, target: Target) -> None:
        name = target.argument or target.model
        if name == "demo":
            raise UsageError("The baseline needs a causal model.", "For example: --engine ar-mlx:owner/name")
        cpu = target.device == "cpu" or not mx.metal.is_available()
        if cpu:
            mx.set_default_device(mx.cpu)
        self._model, self._tokenizer = mlx_lm.load(name)[:2]
        self.identity = Identity(
            engine="ar-mlx",
            engine_version=version("mlx-lm"),
            backend="mlx",
            model=name,
            device="cpu" if cpu else "gpu",
            sampler="greedy, one token a pass",
            obeys_steps=False,
        )

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        """See `Engine`."""
        prompt = single(prompts, "The baseline")
        if limits.mode == "fixed":
            raise UnsupportedError("mlx_lm always ends at a stop token.", "Use an adaptive profile.")
        messages = [dict(message) for message in prompt.messages]
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=prompt.think
        )
        ids = fit(self._tokenizer.encode(text, add_special_tokens=False), limits.prompt_tokens)
        arrivals: list[float] = []
        pieces: list[str] = []
        stopped = False
        cost, start = Cost(self.identity.device), time.perf_counter()
        for response in mlx_lm.stream_generate(self._model, self._tokenizer, ids, max_tokens=limits.max_tokens):
            arrivals.append(time.perf_counter() - start)
            pieces.append(response.text)
            stopped = response.finish_reason == "stop"
        return Outcome(
            prompt_tokens=len(ids),
            tokens=len(arrivals) - stopped,
            total_s=time.perf_counter() - start,
            prefill_s=arrivals[0],
            block_s=tuple(arrivals),
            cpu_s=cost.cpu_s(),
            texts=("".join(pieces),),
        )

    def peak_memory(self) -> int | None:
        """See `Engine`."""
        return peak_resident_bytes() if self.identity.device == "cpu" else int(mx.get_peak_memory())

    def close(self) -> None:
        """See `Engine`."""
        del self._model


def open_engine(target: Target) -> MlxCausal:
    """Load the model."""
    return MlxCausal(target)
