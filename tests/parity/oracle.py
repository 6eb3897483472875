"""transformers as the oracle: one pass at a time over a dynamic cache, and a recorder of its generation loop.

Only the dynamic cache is used: the static one shows other keys once a prompt reaches the sliding window.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.models.diffusion_gemma import generation_diffusion_gemma as reference
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    EntropyBoundSampler,
    EntropyBoundSamplerConfig,
    StableAndConfidentStoppingCriteria,
)

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


class Oracle:
    """A checkpoint opened by transformers on the CPU, in float32 unless another dtype is asked for."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.model = DiffusionGemmaForBlockDiffusion.from_pretrained(folder, dtype=dtype).eval()

    def open(self) -> OracleContext:
        """An empty sequence."""
        return OracleContext(self.model)

    def head(self, hidden: Floats) -> Floats:
        """Softcapped logits of final-normed hidden states through the tied head."""
        with torch.no_grad():
            raw = self.model.lm_head(torch.from_numpy(hidden)).float()
        cap = self.model.final_logit_softcapping
        return (cap * torch.tanh(raw / cap)).numpy()


class OracleContext:
    """One sequence: `encode` extends its cache, `denoise` reads it."""

    def __init__(self, model: DiffusionGemmaForBlockDiffusion) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        self.length = 0

    @torch.no_grad()
    def encode(self, tokens: Ids) -> Floats:
        """Causal pass; the final-normed hidden states [T, H]."""
        ids = torch.from_numpy(tokens).long()[None]
        positions = torch.arange(self.length, self.length + len(tokens))[None]
        encoder = self._model.model.encoder
        masks = encoder.create_masks_for_generate(
            config=self._model.config,
            inputs_embeds=torch.empty(1, len(tokens), 0),
            attention_mask=torch.ones(1, self.length + len(tokens), dtype=torch.bool),
            cache=self._cache,
            position_ids=positions,
        )
        output = encoder(input_ids=ids, attention_mask=masks, cache=self._cache, position_ids=positions)
        self.length += len(tokens)
        return output.last_hidden_state[0].float().numpy()

    @torch.no_grad()
    def denoise(self, tokens: Ids, signal: Floats | None = None) -> tuple[Floats, Floats]:
        """Canvas pass with `signal` (logits / temperature of the previous step); hidden [L, H] and logits [L, V]."""
        inputs = {
            "decoder_input_ids": torch.from_numpy(tokens).long()[None],
            "decoder_position_ids": torch.arange(self.length, self.length + len(tokens))[None],
            "cache": self._cache,
            "self_conditioning_logits": None if signal is None else torch.from_numpy(signal)[None],
        }
        hidden: list[Tensor] = []
        with _inputs_of(self._model.lm_head, hidden):
            logits = self._model(**inputs).logits
        return hidden[0][0].float().numpy(), logits[0].float().numpy()


@contextmanager
def _inputs_of(module: torch.nn.Module, seen: list[Tensor]) -> Iterator[None]:
    def note(_: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    handle = module.register_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class Recipe:
    """Settings of a recorded generation."""

    prompt_length: int = 30
    new_tokens: int = 40
    steps: int = 6
    entropy_bound: float = 0.1
    stability_threshold: int = 1
    confidence_threshold: float = 0.005
    t_min: float = 0.4
    t_max: float = 0.8
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One recorded denoising step; `remaining` counts steps down to 1, `logits` are divided by the temperature."""

    canvas: Ids
    sampled: Ids
    logits: Floats
    remaining: int
    accepted: NDArray[np.bool_]
    argmax: Ids
    stop: bool


@dataclass
class Recording:
    """A recorded generation: the prompt, the steps of each canvas and the committed tokens."""

    recipe: Recipe
    prompt: Ids
    canvases: list[list[Step]] = field(default_factory=list)
    committed: Ids = field(default_factory=lambda: np.zeros(0, np.int32))


def record(oracle: Oracle, recipe: Recipe) -> Recording:
    """Run the reference's generate and keep what its sampler and its stop rule saw and decided."""
    draw = np.random.default_rng(recipe.seed)
    recording = Recording(recipe, draw.integers(3, 490, recipe.prompt_length).astype(np.int32))
    torch.manual_seed(recipe.seed)
    with _tapped(recording):
        output = oracle.model.generate(
            torch.from_numpy(recording.prompt).long()[None],
            max_new_tokens=recipe.new_tokens,
            max_denoising_steps=recipe.steps,
            sampler_config=EntropyBoundSamplerConfig(entropy_bound=recipe.entropy_bound),
            stability_threshold=recipe.stability_threshold,
            confidence_threshold=recipe.confidence_threshold,
            t_min=recipe.t_min,
            t_max=recipe.t_max,
            eos_token_id=-1,
        )
    recording.committed = output.sequences[0, recipe.prompt_length :].numpy().astype(np.int32)
    return recording


@contextmanager
def _tapped(recording: Recording) -> Iterator[None]:
    """Wrap the reference's sampler and stop rule so that each step lands in `recording`."""
    accept, stop, reset = (
        EntropyBoundSampler.accept_canvas,
        StableAndConfidentStoppingCriteria.__call__,
        StableAndConfidentStoppingCriteria.reset,
    )
    pending: dict[str, Any] = {}

    def tapped_accept(
        self: EntropyBoundSampler, current: Tensor, sampled: Tensor, logits: Tensor, remaining: Tensor
    ) -> Tensor:
        result = accept(self, current, sampled, logits, remaining)
        pending.update(canvas=_ids(current), sampled=_ids(sampled), logits=logits[0].numpy().copy())
        pending.update(remaining=int(remaining), accepted=self.accepted_token_mask[0].numpy().copy())
        return result

    def tapped_stop(self: StableAndConfidentStoppingCriteria, argmax: Tensor, logits: Tensor, **rest: Any) -> Tensor:
        result = stop(self, argmax, logits, **rest)
        recording.canvases[-1].append(Step(**pending, argmax=_ids(argmax), stop=bool(result[0])))
        return result

    def tapped_reset(self: StableAndConfidentStoppingCriteria) -> None:
        recording.canvases.append([])
        reset(self)

    with (
        mock.patch.object(reference.EntropyBoundSampler, "accept_canvas", tapped_accept),
        mock.patch.object(reference.StableAndConfidentStoppingCriteria, "__call__", tapped_stop),
        mock.patch.object(reference.StableAndConfidentStoppingCriteria, "reset", tapped_reset),
    ):
        yield


def _ids(row: Tensor) -> Ids:
    return row[0].numpy().astype(np.int32)
