"""Whether a model fits the memory of this machine, found out from file headers before anything is loaded."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dgemma.checkpoint import Checkpoint
from dgemma.config import ModelConfig
from dgemma.env import has_nvidia_driver, is_apple_silicon
from dgemma.errors import OutOfMemoryError

_CONTEXT = 4096
_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
_STORED = {"F32": 4, "F16": 2, "BF16": 2}
_NOT_LOADED = ("model.encoder.", "vision_tower.", "embed_vision.")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes on the device: weights, the cache of a conversation of 4096 tokens, and the canvas's logits."""

    weights: int
    cache: int
    canvas: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.canvas


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the memory that models are loaded into; `place` says which."""

    place: str
    total: int
    free: int


def need(folder: Path, dtype: str) -> Need:
    """What the model in `folder` takes with weights computed in `dtype`; packed weights stay packed."""
    config, width = ModelConfig.from_folder(folder), _WIDTHS[dtype]
    tensors = Checkpoint.open(folder).tensors
    loaded = [info for name, info in tensors.items() if not name.startswith(_NOT_LOADED)]
    weights = sum(info.nbytes * width // _STORED.get(info.dtype, width) for info in loaded)
    return Need(weights, _cache(config, width), 2 * config.canvas_length * config.vocab_size * 4)


def memory(backend: str, device: str = "auto") -> Memory:
    """The memory that `backend` loads into on `device`."""
    if backend == "cuda" and device != "cpu" and has_nvidia_driver():
        found = _nvidia()
        if found is not None:
            return found
    import psutil  # type: ignore[import-untyped]

    system = psutil.virtual_memory()
    place = "unified memory" if is_apple_silicon() else "memory"
    return Memory(place, int(system.total), int(system.available))


def running_dtype(folder: Path, backend: str, device: str, dtype: str | None) -> str:
    """The dtype that loading picks: the one asked for, the checkpoint's on an accelerator, float32 on a CPU."""
    accelerated = device != "cpu" and (is_apple_silicon() if backend == "mlx" else has_nvidia_driver())
    return dtype or (ModelConfig.from_folder(folder).dtype if accelerated else "float32")


def check_fit(folder: Path, backend: str, device: str = "auto", dtype: str | None = None) -> None:
    """Raise OutOfMemoryError where the model cannot fit what is free now."""
    running = running_dtype(folder, backend, device, dtype)
    needed, found = need(folder, running), memory(backend, device)
    if needed.total > found.free:
        numbers = f"needs {gigabytes(needed.total)} in {running}, {gigabytes(found.free)} of {found.place} are free"
        raise OutOfMemoryError(f"Not enough memory: {folder.name} {numbers}.", _remedy(running, needed, found))


def gigabytes(count: int) -> str:
    """Bytes in GB, for people."""
    return f"{count / 1e9:.1f} GB" if count >= 5e7 else f"{count / 1e6:.1f} MB"


def _remedy(running: str, needed: Need, found: Memory) -> str:
    if running == "float32" and needed.total < 2 * found.free:
        return "Try --dtype bfloat16, a quantized model (-m dgemma:4bit), or close other programs."
    return "Try a quantized model (-m dgemma:4bit), or close other programs."


def _cache(config: ModelConfig, width: int) -> int:
    lengths = {"sliding_attention": config.sliding_window + config.canvas_length, "full_attention": _CONTEXT}
    return (
        sum(2 * layer.kv_heads * layer.head_dim * min(_CONTEXT, lengths[layer.kind]) for layer in config.layers) * width
    )


def _nvidia() -> Memory | None:
    """The first card's memory, asked of the driver's own tool; None where that does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        name, total, free = done.stdout.splitlines()[0].rsplit(",", 2)
        return Memory(name.strip(), int(total) * 2**20, int(free) * 2**20)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
