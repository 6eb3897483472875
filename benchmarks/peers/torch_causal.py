"""Any causal language model through transformers, greedy: the autoregressive baseline."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers.prompting import single
from dgemma.bench.engines import Identity, Limits, Outcome, Target
from dgemma.bench.fitting import fit
from dgemma.bench.meters import Cost
from dgemma.bench.prompts import Prompt
from dgemma.errors import UnsupportedError, UsageError
from dgemma.memory import peak_resident_bytes


class TorchCausal:
    """The model in the engine's argument, or the one under -m."""

    def __init__(self, target: Target) -> None:
        name = target.argument or target.model
        if name == "demo":
            raise UsageError("The baseline needs a causal model.", "For example: --engine ar-transformers:owner/name")
        self._device = "cuda" if target.device != "cpu" and torch.cuda.is_available() else "cpu"
        dtype = target.dtype or ("float32" if self._device == "cpu" else "bfloat16")
        self._tokenizer = AutoTokenizer.from_pretrained(name)
        loaded = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype))
        self._model = loaded.eval().to(self._device)
        self.identity = Identity(
            engine="ar-transformers",
            engine_version=transformers.__version__,
            backend="torch",
            model=name,
            device="cpu" if self._device == "cpu" else "gpu",
            dtype=dtype,
            sampler="greedy, one token a pass",
            obeys_steps=False,
        )

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        """See `Engine`."""
        ids = self._encode(single(prompts, "The baseline"), limits)
        watch, cost = _Watch(self._device), Cost(self._device)
        fixed = {"min_new_tokens": limits.max_tokens} if limits.mode == "fixed" else {}
        found = self._model.generate(
            torch.tensor([ids], device=self._device),
            attention_mask=torch.ones((1, len(ids)), dtype=torch.long, device=self._device),
            max_new_tokens=limits.max_tokens,
            do_sample=False,
            streamer=watch,
            **fixed,
        )
        total = watch.now()
        made = [token for token in found[0, len(ids) :].tolist() if fixed or token not in self._stops()]
        return Outcome(
            prompt_tokens=len(ids),
            tokens=len(made),
            total_s=total,
            prefill_s=watch.arrivals[0],
            block_s=tuple(watch.arrivals),
            cpu_s=cost.cpu_s(),
            energy_j=cost.energy_j(),
            texts=(self._tokenizer.decode(made, skip_special_tokens=True),),
        )

    def peak_memory(self) -> int | None:
        """See `Engine`."""
        return peak_resident_bytes() if self._device == "cpu" else torch.cuda.max_memory_allocated()

    def close(self) -> None:
        """See `Engine`."""
        del self._model

    def _encode(self, prompt: Prompt, limits: Limits) -> list[int]:
        messages = [dict(message) for message in prompt.messages]
        if self._tokenizer.chat_template is None:
            raise UnsupportedError("The baseline has no chat template.", "Choose an instruction-tuned model.")
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=prompt.think
        )
        return fit(self._tokenizer.encode(text, add_special_tokens=False), limits.prompt_tokens)

    def _stops(self) -> set[int]:
        found = self._model.generation_config.eos_token_id
        return set(found) if isinstance(found, list) else {found}


class _Watch:
    """A streamer that notes when each token arrives."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._start = time.perf_counter()
        self._started = False
        self.arrivals: list[float] = []

    def now(self) -> float:
        """Seconds since the start."""
        if self._device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - self._start

    def put(self, value: Any) -> None:
        """The prompt, which is echoed first, or a token."""
        if self._started:
            self.arrivals.append(self.now())
        self._started = True

    def end(self) -> None:
        """Nothing is held back."""


def open_engine(target: Target) -> TorchCausal:
    """Load the model."""
    return TorchCausal(target)
