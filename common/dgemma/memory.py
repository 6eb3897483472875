"""Host memory of this process."""

from __future__ import annotations

import resource
import sys


def peak_resident_bytes() -> int:
    """The largest resident size of the process so far; what a CPU run reports as its peak memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
