"""A model for a command, with a word about what is going on; what is wrong with its settings comes first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgemma.api import Model
    from dgemma.cli.terminal import Terminal


def load_model(model: str, backend: str, source: dict[str, Any], terminal: Terminal) -> Model:
    """Load `model`; `source` are the other arguments of `dgemma.load`."""
    from dgemma.aliases import DEMO, REAL_MODEL
    from dgemma.api import load

    if model == DEMO:
        terminal.note(f"Using the built-in demo model, a toy of a few MB; the real one: -m {REAL_MODEL}")
    terminal.progress(f"loading {model}")
    return load(model, backend, **source, report=terminal.note)


def model_files(model: str) -> list[Path]:
    """The files that `model` lies in on this machine, none of which may be written; none where it does not."""
    from dgemma.errors import ModelNotFoundError
    from dgemma.hub import locate

    try:
        return sorted(locate(model, offline=True).folder.iterdir())
    except ModelNotFoundError:
        return []


def checked(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` of `Settings`; UsageError for what no model can take, before one is loaded."""
    from dgemma.modes import check_mode
    from dgemma.settings import Settings

    check_mode(Settings(**fields))
    return fields
