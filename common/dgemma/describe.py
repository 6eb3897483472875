"""A model folder in plain words and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dgemma.cached import weight_format
from dgemma.config import GenerationDefaults, ModelConfig
from dgemma.env import default_backend
from dgemma.errors import DgemmaError
from dgemma.fit import memory, need, running_dtype
from dgemma.hub import Located


def describe(located: Located) -> dict[str, Any]:
    """Everything about a model that its small files tell. Raises CheckpointError, UnsupportedError."""
    folder = located.folder
    config, defaults = ModelConfig.from_folder(folder), GenerationDefaults.from_folder(folder)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {
        "name": located.name,
        "revision": located.revision,
        "path": str(folder),
        "format": weight_format(folder),
        "size": sum(path.stat().st_size for path in files),
        **fit_of(folder),
        "canvas": config.canvas_length,
        "context": config.max_position_embeddings,
        "layers": config.num_hidden_layers,
        "experts": f"{config.top_k_experts} of {config.num_experts}",
        "vocabulary": str(config.vocab_size),
        "steps": defaults.max_denoising_steps,
        "files": ", ".join(path.name for path in files),
    }


def fit_of(folder: Path) -> dict[str, Any]:
    """Bytes that the model in `folder` needs here, and whether this machine has them at all."""
    try:
        backend = default_backend()
        needed = need(folder, running_dtype(folder, backend, "auto", None)).total
        found = memory(backend)
    except DgemmaError as error:
        return {"needs": None, "fits": f"no: {error}"}
    fits = "yes" if needed <= found.free else "not now" if needed <= found.total else "no"
    return {"needs": needed, "fits": fits}
