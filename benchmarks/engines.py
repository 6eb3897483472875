"""One denoising step of each engine on the same checkpoint, context and canvas size.

A step is the forward pass, softcap, sample, entropy, acceptance, renoise and the self-conditioning of the next step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from dgemma.backend import BackendOptions, DenoiseJob, EncodeJob, load_backend
from dgemma.canvas import Canvas
from dgemma.config import GenerationDefaults
from dgemma.noise import Noise
from dgemma.schedule import Denoising


class Engine(Protocol):
    """An engine whose canvas stands behind an encoded context; each step continues the one before."""

    def step(self) -> float:
        """Take one whole denoising step; the mean entropy of its canvas in nats, where the engine reports it."""


class Ours:
    """The backend called `name` under the core's decoding rules."""

    def __init__(self, folder: Path, name: str, context: int, options: BackendOptions | None = None) -> None:
        self.backend = load_backend(name, folder, options or BackendOptions(device="cpu", dtype="float32"))
        self.context = self.backend.open()
        config = self.backend.config
        self.backend.forward([EncodeJob(self.context, tokens(context, config.vocab_size))])
        self._length, self._vocab = config.canvas_length, config.vocab_size
        self._noise = Noise(0)
        self._denoising = Denoising.from_defaults(GenerationDefaults.from_folder(folder), early_stop=False)
        self._canvas = Canvas.noise(self._noise.initial(0, self._length, self._vocab), 0, self._denoising.steps)

    def step(self) -> float:
        """See `Engine`."""
        canvas = self._canvas
        uniforms = self._noise.uniforms(0, canvas.step, self._length)
        temperature = self._denoising.temperature(max(canvas.remaining, 1))
        [prediction] = self.backend.forward([DenoiseJob(self.context, canvas.tokens, temperature, uniforms)])
        assert prediction is not None
        renoise = self._noise.renoise(0, canvas.step, self._length, self._vocab)
        self._canvas = canvas.advance(prediction, renoise, self._denoising)
        return self._canvas.mean_entropy


class Transformers:
    """transformers' own `_denoising_step` over its dynamic cache, without the adaptive stop."""

    def __init__(self, folder: Path, context: int) -> None:
        import torch
        from transformers import DiffusionGemmaForBlockDiffusion, DynamicCache

        self._torch = torch
        self.model = DiffusionGemmaForBlockDiffusion.from_pretrained(folder, dtype=torch.float32).eval()
        text = self.model.config.get_text_config(decoder=True)
        self._ids = torch.from_numpy(tokens(context, text.vocab_size)).long()[None]
        self._cache = DynamicCache(config=text)
        settings = self.model.generation_config
        self._steps = settings.max_denoising_steps
        self._sampler = self.model._prepare_sampler(settings)
        self._processor = self.model._prepare_logits_processor(settings, None)
        self._start()

    def _start(self) -> None:
        torch = self._torch
        length = self.model.config.canvas_length
        with torch.no_grad():
            known = torch.ones_like(self._ids, dtype=torch.bool)
            positions = torch.arange(self._ids.shape[1])[None]
            ids, masks = self.model._prepare_encoder_inputs(
                self._ids, known, positions, self._cache, is_prefill=True, canvas_length=length, batch_size=1
            )
            self.model.model.encoder(input_ids=ids, attention_mask=masks, cache=self._cache, position_ids=positions)
            self._canvas, self._signal, self._masks, self._finished = self.model._prepare_denoiser_inputs(
                torch.nn.functional.pad(known, (0, length), value=True),
                self._cache,
                self._sampler,
                None,
                1,
                torch.device("cpu"),
                {},
            )
        self._argmax = self._canvas
        self._positions = torch.arange(self._ids.shape[1], self._ids.shape[1] + length)[None]

    def step(self) -> float:
        """See `Engine`; this one does not report its entropy."""
        with self._torch.no_grad():
            self._canvas, self._argmax, self._signal, self._finished = self.model._denoising_step(
                decoder_forward=self.model.forward,
                current_canvas=self._canvas,
                argmax_canvas=self._argmax,
                input_ids=self._ids,
                decoder_position_ids=self._positions,
                self_conditioning_logits=self._signal,
                mask_mapping=self._masks,
                cache=self._cache,
                finished_denoising=self._finished,
                cur_step=self._steps,
                sampler=self._sampler,
                logits_processor=self._processor,
                diffusion_stopping_criteria=None,
            )
        return float("nan")


class MlxVlm:
    """mlx-vlm's entropy-bound loop body, in the functions it calls and in their order."""

    def __init__(self, folder: Path, context: int) -> None:
        import mlx.core as mx
        from mlx_vlm.generate import diffusion
        from mlx_vlm.utils import load_model

        self._mx, self._generate = mx, diffusion
        mx.set_default_device(mx.cpu)
        self.model = load_model(folder, strict=False)
        self._length, self._vocab = self.model.config.canvas_length, self.model.config.text_config.vocab_size
        ids = mx.array(tokens(context, self._vocab))[None]
        self._cache = self.model.diffusion_prefill_cache(ids, cache=self.model.make_cache())
        self._canvas = mx.random.randint(0, self._vocab, (1, self._length)).astype(mx.int32)
        self._table = self.model.diffusion_prepare_self_conditioning()
        masks = self.model.diffusion_decoder_masks(self._canvas, self._cache, None)
        self._signal = None
        self._plain, self._conditioned = diffusion._make_diffusion_decoder_logits_fns(
            self.model, self._cache, masks, compile_graph=False
        )
        mx.eval([each.state for each in self._cache])

    def step(self) -> float:
        """See `Engine`."""
        mx, theirs, dtype = self._mx, self._generate, self._canvas.dtype
        logits = self._plain(self._canvas) if self._signal is None else self._conditioned(self._canvas, self._signal)
        logits = logits / 0.8
        argmax = mx.argmax(logits, axis=-1).astype(dtype)
        sampled = theirs._diffusion_sample_canvas(logits, dtype, 1.0)
        entropy = theirs._diffusion_token_entropy(logits)
        self._signal = self.model.diffusion_self_conditioning(logits, self._table)
        accepted = theirs._diffusion_entropy_transfer_mask(entropy, 0.1)
        fresh = theirs._diffusion_initialize_canvas(1, self._length, self._vocab, dtype)
        self._canvas = mx.where(accepted, sampled, fresh)
        mx.eval(self._canvas, argmax, self._signal)
        return float(entropy.mean())


def tokens(count: int, vocab: int) -> np.ndarray:
    """Random prompt ids."""
    return np.random.default_rng(0).integers(3, vocab, count).astype(np.int32)
