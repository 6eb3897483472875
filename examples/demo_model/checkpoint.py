"""Training checkpoints: written whole under another name, then renamed."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer


@dataclass(slots=True)
class Progress:
    """Where the training stands."""

    round: int = 0
    examples: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)


def save(path: Path, progress: Progress, model: nn.Module, optimizers: list[Optimizer]) -> None:
    """Writes everything that a later run needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"progress": asdict(progress), "model": model.state_dict(), "optimizers": states}, partial)
    partial.rename(path)


def load(path: Path, model: nn.Module, optimizers: list[Optimizer]) -> Progress:
    """Restores a model and its optimizers; a missing file leaves them new."""
    if not path.exists():
        return Progress()
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizers, saved["optimizers"], strict=False):
        optimizer.load_state_dict(state)
    return Progress(**saved["progress"])
