"""The MLX layout: packed modules, described by `quantization` in config.json with an entry for every exception."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dgemma import names
from dgemma.quantization import QuantSpec
from dgemma_convert.plan import Plan
from dgemma_convert.writers import hub

FORMAT = "mlx"


def config(plan: Plan) -> dict[str, Any]:
    """config.json of the hub layout, and the formats."""
    found = hub.config(plan)
    specs = {names.module(item.weight.name): item.form.spec for item in plan.items if item.form is not None}
    if not specs:
        return found
    sizes: Counter[QuantSpec] = Counter()
    for item in plan.items:
        if item.form is not None:
            sizes[item.form.spec] += item.weight.count
    default = sizes.most_common(1)[0][0]
    exceptions = {path: _entry(spec) for path, spec in specs.items() if spec != default}
    return found | {"quantization": {**_entry(default), **exceptions}}


def _entry(spec: QuantSpec) -> dict[str, Any]:
    return {"group_size": spec.group_size, "bits": spec.bits, "mode": spec.mode}
