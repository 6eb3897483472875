"""The machine and the installed packages, found out without importing a tensor library."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from dgemma.errors import UnsupportedError

_PACKAGES = ("dgemma", "numpy", "tokenizers", "safetensors", "huggingface_hub", "mlx", "torch", "triton")


def versions() -> dict[str, str]:
    """Platform, Python and package versions; packages that are not installed are left out."""
    found = {"platform": platform.platform(), "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def default_backend() -> str:
    """The backend "auto" means here.

    MLX on an Apple chip; "cuda" where an NVIDIA driver and torch are present; otherwise what is installed, MLX first
    (its import is quick, torch's takes seconds).
    """
    has_mlx, has_torch = find_spec("mlx") is not None, find_spec("torch") is not None
    if has_mlx and is_apple_silicon():
        return "mlx"
    if has_torch and has_nvidia_driver():
        return "cuda"
    if has_mlx or has_torch:
        return "mlx" if has_mlx else "cuda"
    raise UnsupportedError("No backend is installed.", "pip install 'dgemma[cuda]' or pip install mlx")


def is_apple_silicon() -> bool:
    """Whether this is macOS on an Apple chip."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is visible; says nothing about whether a card works."""
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
