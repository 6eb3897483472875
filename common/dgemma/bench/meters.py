"""What this process can read about cost beside the clock: processor time, NVIDIA energy, copy and matrix rates."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_MILLI = 1e-3


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured on the device: bytes read plus written a second by a large copy, and FLOP/s of a square product."""

    copy_gb_s: float
    matmul_tflop_s: float


class Cost:
    """Processor seconds and joules from its making on."""

    def __init__(self, device: str) -> None:
        self._energy = None if device == "cpu" else _energy_counter()
        self._joules = self._energy() if self._energy else 0.0
        self._cpu = time.process_time()

    def cpu_s(self) -> float:
        """Processor seconds of all threads of this process."""
        return time.process_time() - self._cpu

    def energy_j(self) -> float | None:
        """Joules of the first NVIDIA card; None where nothing tells."""
        return self._energy() - self._joules if self._energy else None


def host_rates(size: int = 1024, copied: int = 64 << 20) -> Rates:
    """The rates of this machine's processor through numpy."""
    source, target = np.ones(copied, np.uint8), np.empty(copied, np.uint8)
    matrix = np.ones((size, size), np.float32)
    copy = best(lambda: np.copyto(target, source))
    product = best(lambda: np.matmul(matrix, matrix))
    return Rates(2 * copied / copy / 1e9, 2 * size**3 / product / 1e12)


def device_rates(library: str) -> Rates | None:
    """The rates of the accelerator behind "mlx" or "torch"; None outside a checkout of the repository."""
    try:
        measure = importlib.import_module("benchmarks.rates")
    except ImportError:
        return None
    found: Rates = getattr(measure, library)()
    return found


def best(call: Callable[[], Any], rounds: int = 3) -> float:
    """The fewest seconds of a few rounds behind a first, unmeasured one."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


def _energy_counter() -> Callable[[], float] | None:
    """The card's running total in joules, through nvidia-ml-py where that is installed."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:
        return None
    return lambda: _MILLI * float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
