"""What was done to every tensor and what the result is worth, as data and in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from dgemma import names
from dgemma_convert.deviation import ERRORS
from dgemma_convert.identity import digest
from dgemma_convert.memory import CONTEXT, needs
from dgemma_convert.pieces import EXACT, REQUANTIZED, STORAGE_EXACT
from dgemma_convert.plan import Item, Plan

SCHEMA = 1
LABELS = (EXACT, STORAGE_EXACT, REQUANTIZED)
_PACKED_SHARE = 0.5
_Errors = Mapping[str, dict[str, Any]]


def as_dict(plan: Plan, deviations: _Errors | None = None, verified: _Errors | None = None) -> dict[str, Any]:
    """The report. `deviations` and `verified` hold what is known of each tensor's error, by name."""
    source = plan.source
    found = {
        "schema": SCHEMA,
        "source": {"name": source.path.name, "format": source.format},
        "to": plan.options.to,
        "tensors": [_tensor(item, deviations or {}, verified or {}) for item in plan.items],
        "totals": totals(plan),
        "dropped": shortened(source.dropped),
        "notes": [*source.notes, *warnings(plan)],
        "needs_bytes": needs(plan),
    }
    if deviations is None:
        return found
    return found | {"fingerprint": digest(plan), "verified": verified is not None}


def errors(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a report holds of each tensor's error, by name; nothing of a tensor of which it says none."""
    tensors = [each for each in report.get("tensors") or () if isinstance(each, dict) and "name" in each]
    return {each["name"]: {key: each[key] for key in ERRORS if key in each} for each in tensors}


def totals(plan: Plan) -> dict[str, Any]:
    """Sizes and shares of the whole; vision tensors are not counted in the shares."""
    text = [item for item in plan.items if not item.weight.name.startswith(names.VISION)]
    packed = [item for item in text if item.form is not None]
    count = sum(item.weight.count for item in text)
    return {
        "bytes": plan.nbytes,
        "text_bytes": sum(item.nbytes for item in text),
        "bits_per_weight": 8 * sum(item.nbytes for item in text) / count,
        "quantized_share_of_bytes": sum(item.nbytes for item in packed) / sum(item.nbytes for item in text),
        "quantized_share_of_weights": sum(item.weight.count for item in packed) / count,
        "labels": {label: sum(item.label == label for item in plan.items) for label in LABELS},
    }


def warnings(plan: Plan) -> list[str]:
    """What a reader of the result must know."""
    found = []
    plain = [item for item in plan.items if _is_experts(item) and item.weight.form is None and _is_plain(item)]
    if plan.source.format not in ("safetensors", "GGUF") and plain:
        found.append(
            f"The source calls itself quantized ({plan.source.format}), but {len(plain)} of its expert stacks, "
            "where nine tenths of the weights are, are not."
        )
    share = totals(plan)["quantized_share_of_weights"]
    if any(item.form is not None for item in plan.items) and share < _PACKED_SHARE:
        found.append(f"Only {share:.0%} of the weights are quantized.")
    if plan.multiplied:
        found.append(
            "Some modules have a weight_scale_2 (one float32 a row that multiplies the product). dgemma runs them on "
            "both backends; mlx-vlm knows it for nvfp4 linears and experts only."
        )
    return found


def classes(plan: Plan) -> list[dict[str, Any]]:
    """The tensors by kind, layers and experts taken together: source format, target, label, size."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for item in plan.items:
        name = _class(item)
        key = (name, item.weight.kind, item.target, item.label, item.note)
        row = rows.setdefault(key, {"name": name, "from": key[1], "to": key[2], "label": key[3], "note": key[4]})
        row["count"] = row.get("count", 0) + 1
        row["bytes"] = row.get("bytes", 0) + item.nbytes
    return list(rows.values())


def _class(item: Item) -> str:
    if item.weight.name.startswith(names.VISION):
        return "vision"
    if len(item.weight.shape) < 2:
        return "norms, scales and scalars"
    return re.sub(r"\.\d+\.", ".*.", item.weight.name)


def table(plan: Plan) -> str:
    """The plan for people: tensors by kind, then sizes, memory and notes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table("tensors", "count", "from", "to", "label", "MB", "note", box=box.SIMPLE)
    for row in classes(plan):
        size = f"{row['bytes'] / 1e6:,.1f}"
        grid.add_row(row["name"], str(row["count"]), row["from"], row["to"], row["label"], size, row["note"])
    drawn = StringIO()
    Console(file=drawn, width=180, no_color=True, color_system=None).print(grid)
    lines = [line.rstrip() for line in drawn.getvalue().splitlines()]
    return "\n".join([*lines, *_size_lines(as_dict(plan)), ""])


def summary(report: Mapping[str, Any], target: Path) -> list[str]:
    """What to say when a conversion has ended."""
    labels = ", ".join(f"{count} {label}" for label, count in report["totals"]["labels"].items() if count)
    worst = [each.get("relative_rms_error", 0.0) for each in report["tensors"]]
    checked = "verified" if report.get("verified") else "not verified (--verify)"
    error = f"largest relative RMS error {max(worst):.2%}; {checked}"
    return [f"{target}: {labels}; {error}.", *_size_lines(report)]


def _size_lines(report: Mapping[str, Any]) -> list[str]:
    total, memory = report["totals"], report["needs_bytes"]
    return [
        f"{spelled_size(total['bytes'])}, {total['bits_per_weight']:.2f} bits a text weight; quantized: "
        f"{total['quantized_share_of_bytes']:.0%} of the text bytes, "
        f"{total['quantized_share_of_weights']:.0%} of the text weights.",
        f"Memory with {CONTEXT} tokens of context: MLX {spelled_size(memory['mlx'])}, "
        f"PyTorch {spelled_size(memory['cuda'])}.",
        *([f"Dropped: {', '.join(report['dropped'][:8])}."] if report["dropped"] else []),
        *report["notes"],
    ]


def spelled_size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def shortened(dropped: tuple[str, ...]) -> list[str]:
    """Dropped tensors, those that differ in numbers only taken together."""
    return sorted({re.sub(r"\.\d+\.", ".*.", name) for name in dropped})


def _tensor(item: Item, deviations: _Errors, verified: _Errors) -> dict[str, Any]:
    name = item.weight.name
    found: dict[str, Any] = {
        "name": name,
        "from": item.weight.kind,
        "to": item.target,
        "label": item.label,
        "bytes": item.nbytes,
        "bits_per_weight": 8 * item.nbytes / item.weight.count,
    }
    if item.note:
        found["note"] = item.note
    return found | deviations.get(name, {}) | verified.get(name, {})


def _is_experts(item: Item) -> bool:
    return ".experts." in item.weight.name


def _is_plain(item: Item) -> bool:
    return all(piece.kind in ("BF16", "F16", "F32") for piece in item.weight.pieces)
