"""Commands under limits that the system enforces: too much memory or time kills them, however busy the machine is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MEMORY = 3 << 30
_CODE = """
import json, resource, sys, time
import dgemma_convert, dgemma.cli, dgemma_convert.readers, dgemma_convert.report, tokenizers
seconds, growth = int(sys.argv[1]), int(sys.argv[2])
used = resource.getrusage(resource.RUSAGE_SELF)
resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds,) * 2)
pages = int(open("/proc/self/statm").read().split()[0]) if growth and sys.platform == "linux" else 0
if pages:
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + growth,) * 2)
sys.argv = ["dgemma", *sys.argv[3:]]
dgemma.cli.main()
"""


def dgemma(
    arguments: Sequence[str | Path], seconds: int = 1, growth: int = 400_000_000
) -> subprocess.CompletedProcess[str]:
    """`dgemma` with `arguments`: `seconds` of processor time and `growth` bytes more than its imports took."""
    command = [sys.executable, "-c", _CODE, str(seconds), str(growth), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
