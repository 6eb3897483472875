"""README.md of a converted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dgemma_convert.plan import Plan
from dgemma_convert.report import classes, spelled_size, totals, warnings

BASE = "google/diffusiongemma-26B-A4B-it"
_RELEASE = (2816, 30, 128)


def card(plan: Plan, report: dict[str, Any]) -> str:
    """The model card: where it comes from, what was done to it, what runs it."""
    source, total = plan.source, totals(plan)
    library = "mlx" if plan.options.to == "mlx" else "transformers"
    lines = [
        "---",
        *([f"base_model: {BASE}"] if _is_release(plan) else []),
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        "tags: [dgemma, diffusion]",
        "---",
        "",
        f"# {_title(source.path)} in the {plan.options.to} layout",
        "",
        f"Converted by `dgemma convert` from {source.format}. {spelled_size(total['bytes'])}, "
        f"{total['bits_per_weight']:.2f} bits a text weight, {total['quantized_share_of_weights']:.0%} of the text "
        "weights quantized.",
        "",
        "| tensors | count | from | to | label |",
        "|---|--:|---|---|---|",
    ]
    lines += [
        f"| `{row['name']}` | {row['count']} | {row['from']} | {row['to']} | {row['label']} |" for row in classes(plan)
    ]
    lines += [
        "",
        "`exact`: the same values; `storage exact`: the same codes and scales; `requantized`: rounded, by the ",
    ]
    lines[-1] += "errors that `dgemma_convert.json` lists."
    lines += ["", *(f"* {note}" for note in [*source.notes, *warnings(plan)])]
    return "\n".join([*lines, "", 'Run it: `dgemma generate -m <this folder> "..."` on either backend.', ""])


def _title(path: Path) -> str:
    """A folder's name as it is, a file's without its ending."""
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def _is_release(plan: Plan) -> bool:
    """Whether the shapes are the release's, so that it or a finetune of it was converted."""
    config = plan.source.model
    return (config.hidden_size, config.num_hidden_layers, config.num_experts) == _RELEASE
