"""The backend's front: opens a checkpoint on a device and runs passes of jobs."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dgemma.backend import BackendOptions, Inspection, Job, MemoryUse, Prediction
from dgemma.batch import lay_out
from dgemma.checkpoint import Checkpoint
from dgemma.config import ModelConfig
from dgemma.errors import OutOfMemoryError, UnsupportedError
from dgemma.memory import peak_resident_bytes
from dgemma_cuda.cache import Context
from dgemma_cuda.graph import Graphs, obstacle
from dgemma_cuda.inputs import Form
from dgemma_cuda.kernels import choose
from dgemma_cuda.model import Model, hidden_states
from dgemma_cuda.step import Steps, advance
from dgemma_cuda.vocab import softcap
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
    return Backend(model, steps_for(model, options.self_conditioning))


class Backend:
    """See `dgemma.backend.Backend`."""

    name = "cuda"

    def __init__(self, model: Model, steps: Steps) -> None:
        self.config = model.config
        self.device = "cpu" if model.device.type == "cpu" else torch.cuda.get_device_name(model.device)
        self.dtype = str(model.dtype).removeprefix("torch.")
        self._model, self._steps = model, steps
        self._weights = _allocated(model)
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    @property
    def kernels(self) -> Mapping[str, str]:
        """See `dgemma.backend.Backend`; "step" says whether steps are recorded as CUDA graphs, or why not."""
        return {**self._model.kernels.names, "step": self._steps.name}

    def open(self) -> Context:
        """See `dgemma.backend.Backend`."""
        context = Context(self.config, self._model.device, self._model.dtype)
        self._contexts.add(context)
        return context

    @torch.inference_mode()
    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        """See `dgemma.backend.Backend`."""
        batch = lay_out(jobs)
        prediction = self._steps.run(self._model, batch)
        return [None] * len(jobs) if prediction is None else batch.split(prediction)

    @torch.inference_mode()
    def inspect(self, job: Job) -> Inspection:
        """See `dgemma.backend.Backend`."""
        batch = lay_out([job])
        step = self._steps.eager(self._model, Form.of(batch))
        step.fill(batch)
        hidden = hidden_states(self._model, step.inputs)
        logits = self._model.embed_tokens.logits(hidden)
        capped = softcap(logits, self.config.final_logit_softcapping)
        if batch.canvas_rows:
            step.predict(hidden)
            step.read(batch)
        advance(batch)
        return Inspection(hidden.float().cpu().numpy(), capped.cpu().numpy())

    def memory(self) -> MemoryUse:
        """See `dgemma.backend.Backend`."""
        caches = sum(context.bytes for context in self._contexts)
        on_gpu = self._model.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._model.device) if on_gpu else peak_resident_bytes()
        return MemoryUse(self._weights, caches, peak)


def steps_for(model: Model, self_conditioning: str) -> Steps:
    """How passes of `model` run: recorded as CUDA graphs where that is possible."""
    why_not = obstacle(model)
    sparse = _sparse(self_conditioning, model.dtype)
    signal_dtype = _signal_dtype(model.config.dtype, model.dtype)
    return Steps(sparse, signal_dtype, None if why_not else Graphs(), why_not)


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
