"""One file for every layout that can be written: what its config.json and its safetensors files say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dgemma_convert.plan import Plan
from dgemma_convert.writers import hub, mlx


class Writer(Protocol):
    """A layout."""

    FORMAT: str

    def config(self, plan: Plan) -> dict[str, Any]:
        """config.json."""


WRITERS: Mapping[str, Writer] = {"hub": hub, "mlx": mlx}
