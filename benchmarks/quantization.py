"""Accuracy of the demo model in every format on both backends, as docs/quantization.md.

    python benchmarks/quantization.py --model common/dgemma/demo --prompts 100

Every format is made by the converter, those of other tools from files as these write them. A row of results is kept in
--rows as soon as it is known, so that a run that was interrupted goes on where it stopped; rows belong to the digest of
the model.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dgemma
from benchmarks.published import MAKERS
from dgemma_convert import Options, convert
from dgemma_convert.blocks import BLOCKS
from dgemma_convert.pieces import STORAGE_EXACT, spelled

ROOT = Path(__file__).resolve().parent.parent
TASKS = ("sudoku", "add", "sort", "reverse", "json", "count", "fill", "steps", "steps-direct")
BACKENDS = ("cuda", "mlx")
FORMATS: dict[str, Options | None] = {
    "original": None,
    "default 4-bit": Options(bits=4),
    "all-8bit": Options(recipe="all-8bit"),
    "mxfp8": Options(mode="mxfp8", recipe="uniform"),
    "nvfp4": Options(mode="nvfp4", recipe="uniform"),
    "mxfp4": Options(mode="mxfp4", recipe="uniform"),
    "experts-only nvfp4": Options(recipe="experts-only"),
    "mixed-4-6": Options(recipe="mixed-4-6"),
    "hub bf16": Options(to="hub", dtype="bf16"),
    "affine 6-bit g64": Options(bits=6, recipe="uniform"),
    "affine 5-bit g64": Options(bits=5, recipe="uniform"),
    "affine 4-bit g64": Options(bits=4, recipe="uniform"),
    "affine 4-bit g32": Options(bits=4, recipe="uniform", group_size=32),
    "affine 3-bit g32": Options(bits=3, recipe="uniform", group_size=32),
    "affine 2-bit g32": Options(bits=2, recipe="uniform", group_size=32),
}
NAMES = [*FORMATS, *MAKERS]
EIGHT_BIT = (
    "all-8bit",
    "mxfp8",
    "compressed FP8 per channel",
    "compressed FP8 per tensor",
    "compressed int8 g32",
    "GGUF Q8_0",
)
_SCALED = (
    ("hub", "bf16, fp16, fp32", "the same", "-", "exact"),
    ("MLX", "affine, mxfp4, nvfp4, mxfp8", "the same", "the same", "exact"),
    ("modelopt", "NVFP4", "nvfp4 + multiplier", "E4M3", "exact"),
    ("modelopt", "FP8", "mxfp8 + multiplier", "1", "exact"),
    ("compressed-tensors", "NVFP4", "nvfp4 + multiplier (1 / global scale)", "E4M3", STORAGE_EXACT),
    ("compressed-tensors", "FP8 per channel, per tensor", "mxfp8 + multiplier", "1", "exact"),
    ("compressed-tensors", "int4, int8 symmetric", "affine, same or smaller groups", "the source's", STORAGE_EXACT),
    ("compressed-tensors", "int4, int8 asymmetric", "affine, same or smaller groups", "float32", STORAGE_EXACT),
)
_LABELS = """\
## What every format becomes

Without `--bits`, `--mode` or `--recipe` weights keep their codes. `exact`: the same values in float32; `storage exact`:
the same codes and scales, whose product may round differently in 16 bits; `requantized`: the nearest codes of another
format, with the errors that `dgemma_convert.json` lists for every tensor.

| source | stored | written | scales | label |
|---|---|---|---|---|"""
_MULTIPLIERS = """
`multiplier`: a tensor `MODULE.weight_scale_2` beside the packed weight, one float32 for every row of the matrix
(`[out]`, or `[experts, out]`). The product with a row is multiplied by it. It carries the second scale of NVFP4 and the
row scale of FP8. mlx-vlm knows it for NVFP4 linears and experts; FP8 modules with it run in dgemma only.

Float32 scales (K types, asymmetric integers) make MLX compute such products in float32; `--dtype bf16` rounds them, and
only them: where bits, group and mode stay what they are, the codes are kept. Wider scales hold the same values and keep
the label; rounded ones are `requantized` with their small error, and such as float16 cannot hold are an error. The same
goes for a recipe that asks for the format a tensor has already: `--bits 4` on 4-bit experts in groups of 64 changes
nothing in them, while Q4_0, whose groups are 32, needs `--group-size 32` for that. `--to hub` unpacks and rounds once.

`--verify` reads the result again. `exact` tensors must have no error; `storage exact` ones a relative RMS error of at
most 1e-5, which is the rounding of code times scale plus bias in float32; whatever is copied must be the same to the
bit, and whatever was rounded must have the error that was noted when it was written, also in a finished result
(`--resume`).

Rows that are no whole number of groups (FP8 and integers of a width that 32 does not divide) become plain float32 of
the same values. With `--bits`, `--mode` or `--recipe`, and in the hub layout, they take the type of the other plain
weights.

What is refused, by the name of the tensor or field and with exit code 4: NaN among weights and codes (infinite plain
weights pass, as clipping bounds of a vision tower are), scales that are not finite or overflow float32, empty tensors,
auxiliary tensors of another type or shape or of another format, fields of another type, and headers far larger than any
model's (32 MB or a million values of JSON, a thousand layers, eight dimensions; in GGUF two million strings).
Companions of the weights (tokenizer, template, settings, licence) that are links must stay in the model's folder or
lead into the blobs of the hub's cache, wherever these are kept: from a snapshot into those of the same model. Hidden
files are not copied; a companion that may not be read is an error before anything is written. Integers of 64 bits and
truth values in the vision part (positions, masks) are copied as they are, whatever is asked for.
"""
Row = dict[str, Any]
_BATCH = 64


def digest(model: Path) -> str:
    """What binds results to a model."""
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:16]


def folder_of(model: Path, name: str, work: Path) -> Path:
    """The model in the format called `name`, made where it is missing."""
    options = Options() if name in MAKERS else FORMATS[name]
    target = work / name.replace(" ", "-")
    if options is None:
        return model
    if not target.exists():
        source = MAKERS[name](model, work / "sources" / target.name) if name in MAKERS else model
        convert(source, target, options, verify=True)
    return target


def accuracy(folder: Path, backend: str, examples: dict[str, list[Any]]) -> dict[str, float]:
    """Exact matches a task."""
    with dgemma.load(str(folder), backend, device="cpu", dtype="float32") as model:
        return {task: _share(model, each) for task, each in examples.items()}


def _share(model: Any, examples: list[Any]) -> float:
    right = 0
    for thinking in (False, True):
        chosen = [example for example in examples if example.enable_thinking == thinking]
        for first in range(0, len(chosen), _BATCH):
            batch = chosen[first : first + _BATCH]
            prompts = [list(example.messages) for example in batch]
            answers = model.generate_batch(prompts, seed=0, max_tokens=128, think=thinking)
            right += sum(answer.text == _visible(example) for answer, example in zip(answers, batch, strict=True))
    return right / len(examples)


def _visible(example: Any) -> str:
    """The expected answer behind its thoughts."""
    return str(example.answer).rpartition("<channel|>")[2]


def examples(folder: Path, prompts: int) -> dict[str, list[Any]]:
    """Held-out prompts of every task."""
    sys.path.insert(0, str(folder))
    tasks = importlib.import_module("tasks")
    return {task: tasks.held_out(task, prompts) for task in TASKS}


def known(path: Path, mark: str, prompts: int) -> list[Row]:
    """The rows that hold for this model."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["model"] == mark and row["prompts"] == prompts]


def measure(options: argparse.Namespace, work: Path, report: Callable[[list[Row]], None]) -> None:
    """Measure every row that is not known; `report` hears of all rows after each."""
    mark = digest(options.model)
    rows = known(options.rows, mark, options.prompts)
    done = {(row["format"], row["backend"]) for row in rows}
    chosen = examples(options.tasks, options.prompts)
    for backend in options.backends:
        for name in NAMES:
            if (name, backend) not in done:
                folder = folder_of(options.model, name, work)
                row: Row = {"model": mark, "prompts": options.prompts, "format": name, "backend": backend}
                row |= {"bits": _bits(folder), "accuracy": accuracy(folder, backend, chosen)}
                rows.append(row)
                report(rows)


def _bits(folder: Path) -> float:
    path = folder / "dgemma_convert.json"
    return 32.0 if not path.exists() else float(json.loads(path.read_text())["totals"]["bits_per_weight"])


def mean(row: Row) -> float:
    """Accuracy over all tasks."""
    return sum(row["accuracy"].values()) / len(row["accuracy"])


def page(rows: Iterable[Row], model: Path, prompts: int) -> str:
    """docs/quantization.md."""
    ordered = sorted(rows, key=lambda row: (NAMES.index(row["format"]), row["backend"]))
    base = {row["backend"]: mean(row) for row in ordered if row["format"] == "original"}
    lines = [
        "# Accuracy in every format",
        "",
        "Written by `benchmarks/quantization.py`; do not edit. Exact matches of the demo model (a toy of a few MB) on "
        f"held-out prompts, {prompts} a task, seed 0, float32 activations on a CPU. A model of 1.6 M weights with rows "
        "of 64 and 128 numbers feels quantization more than the real one.",
        "",
        f"Model: `{model.name}`, SHA-256 of its weights `{digest(model)}...`.",
        "",
        "| format | backend | bits a weight | mean | loss | " + " | ".join(TASKS) + " |",
        "|---|---|--:|--:|--:|" + "--:|" * len(TASKS),
    ]
    for row in ordered:
        loss = 100 * (base.get(row["backend"], mean(row)) - mean(row))
        cells = [f"{100 * row['accuracy'][task]:.1f}" for task in TASKS]
        head = f"| {row['format']} | {row['backend']} | {row['bits']:.2f} | {100 * mean(row):.1f} | {loss:+.1f} | "
        lines.append(head + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_findings(ordered, base, prompts), "", *_ways()])


def _ways() -> list[str]:
    """What every readable format becomes in the MLX layout."""
    scales = {"F16": "float16", "F32": "float32", "U8": "E8M0"}
    rows = [*_SCALED]
    rows += [("GGUF", kind, spelled(b.spec), scales[b.scales], b.label) for kind, b in BLOCKS.items()]
    rows.append(("GGUF", "Q6_K", "affine 8-bit g32", "as the model", "requantized"))
    return [_LABELS, *(f"| {' | '.join(row)} |" for row in rows), _MULTIPLIERS]


def _findings(rows: list[Row], base: dict[str, float], prompts: int) -> list[str]:
    def worst(names: Iterable[str]) -> str:
        known_base = [row for row in rows if row["format"] in names and row["backend"] in base]
        losses = [100 * (base[row["backend"]] - mean(row)) for row in known_base]
        return f"{max(losses):.1f} points" if losses else "(not measured)"

    pairs: dict[str, list[float]] = {}
    for row in rows:
        pairs.setdefault(row["format"], []).append(mean(row))
    apart = max(100 * (max(each) - min(each)) for each in pairs.values())
    right, count = max(base.values(), default=0.5), prompts * len(TASKS)
    chance = 196 * (right * (1 - right) / count) ** 0.5
    return [
        f"* The 8-bit formats lose at most {worst(EIGHT_BIT)} on average over the tasks.",
        f"* The default 4-bit recipe loses at most {worst(['default 4-bit'])}.",
        f"* The backends differ by at most {apart:.1f} points in a format that both have run.",
        f"* With this many prompts a loss below about {chance:.1f} points can be chance.",
    ]


def main() -> None:
    """Measure what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "common" / "dgemma" / "demo")
    parser.add_argument("--tasks", type=Path, default=ROOT / "examples" / "demo_model", help="where tasks.py lies")
    parser.add_argument("--prompts", type=int, default=100, help="held-out prompts a task")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--rows", type=Path, default=ROOT / "benchmarks" / "results" / "quantization.jsonl")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "quantization.md")
    options = parser.parse_args()
    options.rows.parent.mkdir(parents=True, exist_ok=True)

    def report(rows: list[Row]) -> None:
        row = rows[-1]
        with options.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{row['format']:20} {row['backend']:5} {100 * mean(row):5.1f}", file=sys.stderr, flush=True)
        options.page.write_text(page(rows, options.model, options.prompts))

    with tempfile.TemporaryDirectory() as work:
        measure(options, Path(work), report)
    rows = known(options.rows, digest(options.model), options.prompts)
    options.page.write_text(page(rows, options.model, options.prompts))


if __name__ == "__main__":
    main()
