"""The backend's front: opens a checkpoint on a device and runs passes of jobs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np

from dgemma.backend import BackendOptions, Inspection, Job, MemoryUse, Prediction
from dgemma.batch import Batch, lay_out
from dgemma.checkpoint import Checkpoint
from dgemma.config import ModelConfig
from dgemma.errors import UnsupportedError
from dgemma_mlx.cache import Context
from dgemma_mlx.kernels import choose
from dgemma_mlx.model import Model, hidden_states
from dgemma_mlx.vocab import Draws, softcap
from dgemma_mlx.weights import load_model


def open_backend(folder: Path, options: BackendOptions) -> Backend:
    """Load `folder` onto the GPU where there is one, else onto the CPU."""
    device = _device(options.device)
    config = ModelConfig.from_folder(folder)
    dtype = _dtype(options.dtype or ("float32" if device.type == mx.DeviceType.cpu else config.dtype))
    with mx.stream(device):
        model = load_model(Checkpoint.open(folder), config, device, dtype, choose(device, options.kernels))
        weights = _arrays(model)
        mx.eval(weights)
    sparse = _sparse(options.self_conditioning, dtype)
    return Backend(model, sparse, sum(each.nbytes for each in weights))


class Backend:
    """See `dgemma.backend.Backend`."""

    name = "mlx"

    def __init__(self, model: Model, sparse: bool, weights: int) -> None:
        self.config = model.config
        self.dtype = str(model.dtype).removeprefix("mlx.core.")
        self.device = "cpu" if model.device.type == mx.DeviceType.cpu else str(mx.device_info()["device_name"])
        self.kernels = model.kernels.names
        self._model, self._sparse = model, sparse
        self._weights = weights
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    def open(self) -> Context:
        """See `dgemma.backend.Backend`."""
        context = Context(self.config, self._model.dtype)
        self._contexts.add(context)
        return context

    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        """See `dgemma.backend.Backend`."""
        batch = lay_out(jobs)
        with mx.stream(self._model.device):
            hidden = self._run(batch)
            if not len(batch.predicted):
                mx.eval(self._written(batch))
                return [None] * len(jobs)
            return batch.split(self._predict(batch, hidden))

    def inspect(self, job: Job) -> Inspection:
        """See `dgemma.backend.Backend`."""
        batch = lay_out([job])
        with mx.stream(self._model.device):
            hidden = self._run(batch)
            logits = self._model.embed_tokens.logits(hidden)
            capped = softcap(logits, self.config.final_logit_softcapping)
            if batch.canvas_rows:
                self._predict(batch, hidden)
            return Inspection(np.array(hidden.astype(mx.float32)), np.array(capped))

    def memory(self) -> MemoryUse:
        """See `dgemma.backend.Backend`."""
        return MemoryUse(self._weights, sum(context.bytes for context in self._contexts), mx.get_peak_memory())

    def _run(self, batch: Batch) -> mx.array:
        for segment in batch.segments:
            segment.context.reserve(segment.end)  # type: ignore[attr-defined]
        hidden = hidden_states(self._model, batch)
        for segment in batch.encoded:
            segment.context.length = segment.end  # type: ignore[misc]
        return hidden

    def _predict(self, batch: Batch, hidden: mx.array) -> Prediction:
        rows = mx.array(batch.predicted)
        first = len(rows) - batch.canvas_rows
        signal_dtype = _signal_dtype(self.config.dtype, self._model.dtype)
        cap = self.config.final_logit_softcapping
        picks, soft = self._model.kernels.head(
            self._model.embed_tokens, hidden[rows], cap, self._draws(batch), first, signal_dtype, self._sparse
        )
        self._keep_signals(batch, soft * self._model.embed_scale)
        numbers = (picks.entropy.view(mx.int32), picks.margin.view(mx.int32))
        packed = mx.stack([picks.sampled, picks.argmax, *numbers])
        mx.eval(packed, self._written(batch))
        host = np.array(packed)
        return Prediction(host[0], host[1], host[2].view(np.float32), host[3].view(np.float32))

    def _draws(self, batch: Batch) -> Draws:
        return Draws(mx.array(batch.temperatures), mx.array(batch.uniforms), mx.array(batch.greedy))

    def _keep_signals(self, batch: Batch, soft: mx.array) -> None:
        for segment in batch.canvases:
            first = segment.start - batch.causal
            segment.context.signal = soft[first : first + segment.rows]  # type: ignore[attr-defined]

    def _written(self, batch: Batch) -> list[mx.array]:
        """What the pass leaves behind on the device."""
        contexts = [segment.context for segment in batch.segments]
        return [each for context in contexts for each in context.pending]  # type: ignore[attr-defined]


def _device(choice: str) -> mx.Device:
    present = mx.is_available(mx.gpu)
    if choice == "gpu" and not present:
        raise UnsupportedError("MLX finds no GPU.", "Use --device cpu.")
    return mx.Device(mx.gpu if present and choice != "cpu" else mx.cpu)


def _dtype(name: str) -> mx.Dtype:
    known = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
    if name not in known:
        raise UnsupportedError(f"dtype {name!r} is not supported.", f"Use one of: {', '.join(known)}.")
    return known[name]


def _sparse(choice: str, running: mx.Dtype) -> bool:
    """Sparse self-conditioning is within 16-bit rounding of exact, not within that of float32."""
    return choice == "sparse" or (choice == "auto" and running != mx.float32)


def _signal_dtype(stored: str, running: mx.Dtype) -> mx.Dtype:
    """The reference rounds the signal to the checkpoint's dtype; a float32 run rounds nothing."""
    return running if running == mx.float32 else _dtype(stored)


def _arrays(model: Model) -> list[mx.array]:
    """All arrays reachable from `model`."""
    found: list[mx.array] = []
    pending: list[object] = [model]
    while pending:
        each = pending.pop()
        if isinstance(each, mx.array):
            found.append(each)
        elif isinstance(each, tuple):
            pending.extend(each)
        elif hasattr(each, "__dataclass_fields__"):
            pending.extend(getattr(each, name) for name in each.__dataclass_fields__)
    return found
