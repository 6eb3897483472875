"""The machine and the circumstances of a measurement, as a dict that goes into every row."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dgemma.env import versions

_REPOSITORY = Path(__file__).parents[3]
_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "LD_PRELOAD")
_PEERS = ("transformers", "mlx-vlm", "mlx-lm")


def environment(arguments: Sequence[str]) -> dict[str, Any]:
    """Chip, memory, power, load, packages, commit and the command line."""
    return {
        "chip": chip(),
        "gpu": _gpu(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "load_average": list(os.getloadavg()),
        "power": _power(),
        "versions": versions() | {name: found for name in _PEERS if (found := version(name))},
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "variables": {name: short(value) for name in _VARIABLES if (value := os.environ.get(name))},
        "command": " ".join(["dgemma", *map(short, arguments[1:])]),
    }


def version(package: str) -> str | None:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def short(text: str) -> str:
    """A path's last part, so that a row tells nothing about the disk it was measured on; other text as it is."""
    return Path(text).name if text.startswith(("/", "~", "./", "../")) else text


@functools.cache
def machine(device: str) -> str:
    """The name of what computes: the GPU's for an accelerator, otherwise the chip's."""
    gpu = _gpu() if device != "cpu" else None
    return str(gpu["name"]) if gpu else chip()


@functools.cache
def chip() -> str:
    """The processor's own name."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@functools.cache
def _gpu() -> dict[str, str] | None:
    fields = ("name", "driver_version", "memory.total", "power.limit")
    line = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader").partition("\n")[0]
    values = [each.strip() for each in line.split(",")]
    return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _power() -> str | None:
    """Whether a laptop is plugged in and saves power, as macOS says."""
    return _output("pmset", "-g", "batt").partition("\n")[0] or None if sys.platform == "darwin" else None


def _git(*arguments: str) -> str | None:
    if not (_REPOSITORY / ".git").exists():
        return None
    return _output("git", "-C", str(_REPOSITORY), *arguments)


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
