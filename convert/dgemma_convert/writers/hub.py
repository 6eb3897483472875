"""The hub layout: plain weights, stacked experts without `.weight`, no word of quantization."""

from __future__ import annotations

from typing import Any

from dgemma_convert.plan import Plan

FORMAT = "pt"
_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def config(plan: Plan) -> dict[str, Any]:
    """The source's config.json with the dtype that was asked for."""
    found = dict(plan.source.config)
    if plan.options.dtype is None:
        return found
    name = _NAMES[plan.options.dtype]
    found["dtype"] = name
    found.pop("torch_dtype", None)
    text = {key: value for key, value in found["text_config"].items() if key != "torch_dtype"}
    return found | {"text_config": text | ({"dtype": name} if "dtype" in text else {})}
