"""transformers' DiffusionGemma: its own `generate` with the dynamic cache, watched from outside."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch
import transformers
from transformers import DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from benchmarks import rates
from benchmarks.peers.prompting import Source, single
from dgemma.bench.engines import Identity, Limits, Outcome, Target
from dgemma.bench.identity import describe
from dgemma.bench.meters import Cost, host_rates
from dgemma.bench.prompts import Prompt
from dgemma.errors import UnsupportedError
from dgemma.memory import peak_resident_bytes

_NEVER = -1


class TorchDiffusion:
    """The reference implementation."""

    def __init__(self, target: Target) -> None:
        self._source = Source.find(target.model, target.offline)
        self._device = "cuda" if target.device != "cpu" and torch.cuda.is_available() else "cpu"
        dtype = target.dtype or ("float32" if self._device == "cpu" else "bfloat16")
        loaded = DiffusionGemmaForBlockDiffusion.from_pretrained(self._source.folder, dtype=getattr(torch, dtype))
        self._model = loaded.eval().to(self._device)
        self._length = int(self._model.config.canvas_length)
        measured = host_rates() if self._device == "cpu" else rates.torch()
        self.identity = Identity(
            engine="transformers",
            engine_version=transformers.__version__,
            backend="torch",
            model=self._source.name,
            revision=self._source.revision,
            device="cpu" if self._device == "cpu" else "gpu",
            dtype=dtype,
            sampler="entropy bound, the checkpoint's schedule and stop rule; torch's random numbers",
            **describe(self._source.folder),
            **asdict(measured),
        )

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        """See `Engine`."""
        prompt = single(prompts, "transformers")
        if limits.canvas_length not in (None, self._length):
            raise UnsupportedError("transformers has no other canvas length than the model's.", "Leave --canvas out.")
        ids = self._source.encode(prompt, limits)
        torch.manual_seed(limits.seed)
        tensor = torch.tensor([ids], device=self._device)
        settings = self._settings(limits)
        cost, watch = Cost(self._device), _Watch(self._device)
        hook = self._model.model.encoder.register_forward_hook(watch.encoded)
        try:
            found = self._model.generate(tensor, streamer=watch, **settings)
        finally:
            hook.remove()
        total = watch.now()
        made = self._source.cut(found.sequences[0, len(ids) :].tolist(), limits)
        return Outcome(
            prompt_tokens=len(ids),
            tokens=len(made),
            canvas_tokens=len(watch.blocks) * self._length,
            total_s=total,
            prefill_s=watch.encodings[0],
            block_s=tuple(watch.blocks),
            steps_per_canvas=tuple(watch.steps),
            commit_passes=len(watch.encodings) - 1,
            step_ms=tuple(watch.step_ms),
            cpu_s=cost.cpu_s(),
            energy_j=cost.energy_j(),
            texts=(self._source.text(made),),
        )

    def peak_memory(self) -> int | None:
        """See `Engine`."""
        return peak_resident_bytes() if self._device == "cpu" else torch.cuda.max_memory_allocated()

    def close(self) -> None:
        """See `Engine`."""
        del self._model

    def _settings(self, limits: Limits) -> dict[str, Any]:
        defaults = self._source.defaults
        bound = limits.entropy_bound or defaults.entropy_bound
        steps = limits.steps or defaults.max_denoising_steps
        found: dict[str, Any] = {
            "max_new_tokens": limits.max_tokens,
            "max_denoising_steps": steps,
            "sampler_config": EntropyBoundSamplerConfig(entropy_bound=bound),
        }
        if limits.mode == "fixed":
            found |= {"stability_threshold": steps, "eos_token_id": [_NEVER]}
        return found


class _Watch:
    """A streamer and an encoder hook that note the time; on an accelerator they wait for it first."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.blocks: list[float] = []
        self.steps: list[int] = []
        self.encodings: list[float] = []
        self.step_ms: list[float] = []
        self._drafts = 0
        self._start = time.perf_counter()
        self._last = 0.0
        self._started = False

    def now(self) -> float:
        """Seconds since the start."""
        if self._device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - self._start

    def encoded(self, *call: Any) -> None:
        """The encoder has run."""
        self._last = self.now()
        self.encodings.append(self._last)

    def put_draft(self, value: Any) -> None:
        """A denoising step is done."""
        now = self.now()
        self.step_ms.append(1e3 * (now - self._last))
        self._last = now
        self._drafts += 1

    def put(self, value: Any) -> None:
        """The prompt, which is echoed first, or a finished canvas."""
        if not self._started:
            self._started = True
            return
        self.blocks.append(self.now())
        self.steps.append(self._drafts)
        self._drafts = 0

    def end(self) -> None:
        """Nothing is held back."""


def open_engine(target: Target) -> TorchDiffusion:
    """Load the model."""
    return TorchDiffusion(target)
