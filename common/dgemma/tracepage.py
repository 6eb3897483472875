"""A trace as one page that works without a network."""

from __future__ import annotations

import json
from importlib import resources

from dgemma.trace import Trace


def page(trace: Trace) -> str:
    """HTML with the trace's lines inside; the page decodes them itself, a canvas at a time."""
    template = resources.files("dgemma").joinpath("tracepage.html").read_text(encoding="utf-8")
    data = json.dumps(trace.lines, ensure_ascii=False).replace("<", "\\u003c")
    return template.replace("__TRACE__", data, 1)
