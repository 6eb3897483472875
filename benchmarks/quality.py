"""What the quality settings cost and save on the demo model; writes docs/quality.md.

python -m benchmarks.quality [--model FOLDER] [--prompts 200] [--output docs/quality.md]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import dgemma
from benchmarks.modes import EXAMPLES, answer, held_out
from dgemma.quality import GUARDS

INTRODUCTION = """# Quality settings

`--quality` finishes canvases sooner. `reference`, the default, changes nothing. The other two are values of
`dgemma.quality.Guards`, laid around whatever stop rule and schedule the other flags give:

| setting | most steps a canvas | also stops when the argmax canvas stayed the same for | at a mean entropy of at most |
|---|--:|--:|--:|
{guards}

Both leave out, once the first end token has stood at its place for a step, everything behind it from the stop rule.

Measured with `python -m benchmarks.quality` on held-out prompts of the demo model ({model}), {prompts} prompts a task,
`{backend}` on a CPU in float32, seed 0. Exact match, and denoising steps a canvas.

| task | {columns} |
|---|{rule}|
{rows}
"""


def measured(model: dgemma.Model, examples: list[Any], quality: str) -> dict[str, tuple[float, float]]:
    """Accuracy and steps a canvas by task."""
    found = answer(model, examples, quality=quality)
    table = {}
    for task in dict.fromkeys(example.task for example in examples):
        own = [(g, e) for g, e in zip(found, examples, strict=True) if e.task == task]
        right = sum(g.text == e.answer.rpartition("<channel|>")[2] for g, e in own)
        steps, canvases = sum(g.stats.denoising_steps for g, _ in own), sum(g.stats.canvases for g, _ in own)
        table[task] = right / len(own), steps / canvases
    shares = [each for each, _ in table.values()]
    return table | {"mean": (sum(shares) / len(shares), sum(steps for _, steps in table.values()) / len(shares))}


def main() -> None:
    """Measure every setting and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--examples", type=Path, default=EXAMPLES)
    parser.add_argument("--prompts", type=int, default=200, help="per task")
    parser.add_argument("--backend", default="mlx")
    parser.add_argument("--output", type=Path, default=Path("docs/quality.md"))
    options = parser.parse_args()
    settings = ("reference", *GUARDS)
    examples = held_out(options.examples, options.prompts * 9)
    with dgemma.load(options.model, options.backend, device="cpu", dtype="float32") as model:
        tables = {quality: measured(model, examples, quality) for quality in settings}
    rows = [
        f"| {task} | " + " | ".join(f"{tables[q][task][0]:.3f}, {tables[q][task][1]:.1f}" for q in settings) + " |"
        for task in tables["reference"]
    ]
    guards = [
        f"| `{name}` | {each.steps} | {each.plateau} steps | {each.bound} nats |" for name, each in GUARDS.items()
    ]
    name = "the one that is part of the package" if options.model == "demo" else "an intermediate export"
    page = INTRODUCTION.format(
        guards="\n".join(guards), model=name, prompts=options.prompts, backend=options.backend,
        columns=" | ".join(settings), rule="--:|" * (len(settings) - 1) + "--:", rows="\n".join(rows),
    )  # fmt: skip
    options.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
