"""What this machine has and whether dgemma works on it; the same facts go into benchmark rows and bug reports."""

from __future__ import annotations

import os
import platform
import shutil
import time
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from dgemma.aliases import DEMO
from dgemma.backend import REGISTRY
from dgemma.bench.environment import environment
from dgemma.cached import cache_folder
from dgemma.env import has_nvidia_driver, is_apple_silicon
from dgemma.errors import DgemmaError
from dgemma.fastest import remembered
from dgemma.fit import memory

_SCHEMA = 1
_LIBRARIES = {"mlx": ("mlx",), "cuda": ("torch",)}
_VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "DGEMMA_MODEL",
    "DGEMMA_BACKEND",
    "DGEMMA_CUDA_GRAPHS",
)


def facts() -> dict[str, Any]:
    """What a benchmark row says about the machine, and cache and settings: no tensor library, no secret."""
    machine = environment(["dgemma", "doctor"])
    return {"machine": machine | {"memory_free": memory("mlx").free}, "cache": _cache(), "settings": _settings()}


def diagnose(model: str = DEMO, seconds: float = 2.0) -> dict[str, Any]:
    """The facts, and for each backend a generation of about `seconds` with `model`.

    `usable` is whether any backend worked.
    """
    backends = {name: _backend(name, model, seconds) for name in _LIBRARIES if name in REGISTRY}
    usable = any(each["usable"] for each in backends.values())
    timed = [asdict(question) | asdict(choice) for question, choice in remembered()]
    return {"schema": _SCHEMA, "usable": usable, **facts(), "model": model, "backends": backends, "timed": timed}


def _cache() -> dict[str, Any]:
    from huggingface_hub import get_token

    folder = cache_folder()
    present = next(path for path in (folder, *folder.parents) if path.exists())
    return {"path": str(folder), "free": shutil.disk_usage(present).free, "token": get_token() is not None}


def _settings() -> dict[str, str]:
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def _backend(name: str, model: str, seconds: float) -> dict[str, Any]:
    missing = [library for library in _LIBRARIES[name] if find_spec(library) is None]
    if missing:
        return {"usable": False, "error": f"{missing[0]} is not installed"}
    try:
        return {"usable": True, **_smoke(name, model, seconds), "slower_because": _reasons(name)}
    except DgemmaError as error:
        return {"usable": False, "error": error.line(), "slower_because": _reasons(name)}
    except Exception as error:
        return {"usable": False, "error": f"{type(error).__name__}: {error}"}


def _smoke(name: str, model: str, seconds: float) -> dict[str, Any]:
    from dgemma.api import load

    start = time.perf_counter()
    with load(model, name, offline=True) as loaded:
        ready = time.perf_counter()
        with loaded.stream("add 12+30", seed=0, max_tokens=64) as stream:
            for _ in stream:
                if time.perf_counter() - ready > seconds:
                    stream.cancel()
        found, origin = stream.generations[0], loaded.origin
    steps = found.stats.denoising_steps
    numbers: dict[str, Any] = {
        "load_s": round(ready - start, 2),
        "steps": steps,
        "tokens": found.stats.completion_tokens,
    }
    numbers |= {"ms_per_step": round(1000 * found.stats.decode_s / max(1, steps), 2), "answer": found.text}
    return {"device": origin.device, "kernels": origin.kernels or "reference", **numbers}


def _reasons(name: str) -> list[str]:
    """Why the faster kernels of a backend are not in use here."""
    if name == "mlx":
        system = f"{platform.system()} {platform.machine()}"
        return [] if is_apple_silicon() else [f"Metal kernels need macOS on an Apple chip, this is {system}"]
    driver = [] if has_nvidia_driver() else ["Triton kernels need an NVIDIA card, and no driver is visible"]
    return driver + ([] if find_spec("triton") else ["triton is not installed"])
