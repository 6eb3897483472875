"""The backend's front: opens a checkpoint on a device and runs passes of jobs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dgemma.backend import BackendOptions, Inspection, Job, MemoryUse, Prediction
from dgemma.batch import Batch, lay_out
from dgemma.checkpoint import Checkpoint
from dgemma.config import ModelConfig
from dgemma.errors import OutOfMemoryError, UnsupportedError
from dgemma.memory import peak_resident_bytes
from dgemma_cuda.cache import Context
from dgemma_cuda.kernels import choose
from dgemma_cuda.model import Model, hidden_states
from dgemma_cuda.vocab import Draws, softcap
from dgemma_cuda.weights import load_model


def open_backend(folder: Path, options: BackendOptions) -> Backend:
    """Load `folder` onto a GPU where there is one, else onto the CPU."""
    device = _device(options.device)
    config = ModelConfig.from_folder(folder)
    dtype = _dtype(options.dtype or ("float32" if device.type == "cpu" else config.dtype))
    try:
        with torch.inference_mode():
            model = load_model(Checkpoint.open(folder), config, device, dtype, choose(device, options.kernels))
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"The weights do not fit on {device}: {error}.", "Use a smaller format.") from error
    if model.kernels.names["linear"] == "triton":
        from dgemma_cuda.kernels.binding import bound

        model = bound(model)
    return Backend(model, _sparse(options.self_conditioning, dtype))


class Backend:
    """See `dgemma.backend.Backend`."""

    name = "cuda"

    def __init__(self, model: Model, sparse: bool) -> None:
        self.config = model.config
        self.device = "cpu" if model.device.type == "cpu" else torch.cuda.get_device_name(model.device)
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.kernels = model.kernels.names
        self._model, self._sparse = model, sparse
        self._weights = _allocated(model)
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    def open(self) -> Context:
        """See `dgemma.backend.Backend`."""
        context = Context(self.config, self._model.device, self._model.dtype)
        self._contexts.add(context)
        return context

    @torch.inference_mode()
    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        """See `dgemma.backend.Backend`."""
        batch = lay_out(jobs)
        hidden = self._run(batch)
        if not len(batch.predicted):
            return [None] * len(jobs)
        return batch.split(self._predict(batch, hidden))

    @torch.inference_mode()
    def inspect(self, job: Job) -> Inspection:
        """See `dgemma.backend.Backend`."""
        batch = lay_out([job])
        hidden = self._run(batch)
        logits = self._model.embed_tokens.logits(hidden)
        capped = softcap(logits, self.config.final_logit_softcapping)
        if batch.canvas_rows:
            self._predict(batch, hidden)
        return Inspection(hidden.float().cpu().numpy(), capped.cpu().numpy())

    def memory(self) -> MemoryUse:
        """See `dgemma.backend.Backend`."""
        caches = sum(context.bytes for context in self._contexts)
        on_gpu = self._model.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._model.device) if on_gpu else peak_resident_bytes()
        return MemoryUse(self._weights, caches, peak)

    def _run(self, batch: Batch) -> Tensor:
        for segment in sorted(batch.segments, key=lambda each: each.canvas):
            segment.context.reserve(segment.end)  # type: ignore[attr-defined]
        hidden = hidden_states(self._model, batch)
        for segment in batch.encoded:
            segment.context.length = segment.end  # type: ignore[misc]
        return hidden

    def _predict(self, batch: Batch, hidden: Tensor) -> Prediction:
        rows = torch.from_numpy(batch.predicted).to(hidden.device, non_blocking=True)
        first = len(rows) - batch.canvas_rows
        signal_dtype = _signal_dtype(self.config.dtype, self._model.dtype)
        cap = self.config.final_logit_softcapping
        picks, soft = self._model.kernels.head(
            self._model.embed_tokens, hidden[rows], cap, self._draws(batch), first, signal_dtype, self._sparse
        )
        self._keep_signals(batch, soft * self._model.embed_scale)
        numbers = (picks.entropy.view(torch.int32), picks.margin.view(torch.int32))
        packed = torch.stack([picks.sampled, picks.argmax, *numbers]).cpu().numpy()
        return Prediction(packed[0], packed[1], packed[2].view(np.float32), packed[3].view(np.float32))

    def _draws(self, batch: Batch) -> Draws:
        arrays = (batch.temperatures, batch.uniforms, batch.greedy)
        return Draws(*(torch.from_numpy(each).to(self._model.device, non_blocking=True) for each in arrays))

    def _keep_signals(self, batch: Batch, soft: Tensor) -> None:
        for segment in batch.canvases:
            segment.context.signal = soft[segment.start - batch.causal :][: segment.rows]  # type: ignore[attr-defined]


def _device(choice: str) -> torch.device:
    present = torch.cuda.is_available()
    if choice == "gpu" and not present:
        raise UnsupportedError("There is no CUDA device that PyTorch can use.", "Use --device cpu.")
    return torch.device("cuda" if present and choice != "cpu" else "cpu")


def _dtype(name: str) -> torch.dtype:
    known = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if name not in known:
        raise UnsupportedError(f"dtype {name!r} is not supported.", f"Use one of: {', '.join(known)}.")
    return known[name]


def _sparse(choice: str, running: torch.dtype) -> bool:
    """Sparse self-conditioning is within 16-bit rounding of exact, not within that of float32."""
    return choice == "sparse" or (choice == "auto" and running != torch.float32)


def _signal_dtype(stored: str, running: torch.dtype) -> torch.dtype:
    """The reference rounds the signal to the checkpoint's dtype; a float32 run rounds nothing."""
    return running if running == torch.float32 else _dtype(stored)


def _allocated(model: Model) -> int:
    """Bytes of all distinct tensors reachable from `model`."""
    seen: dict[int, int] = {}
    pending: list[object] = [model]
    while pending:
        each = pending.pop()
        if isinstance(each, Tensor):
            seen[each.data_ptr()] = each.numel() * each.element_size()
        elif isinstance(each, tuple):
            pending.extend(each)
        elif hasattr(each, "__dataclass_fields__"):
            pending.extend(getattr(each, name) for name in each.__dataclass_fields__)
    return sum(seen.values())
