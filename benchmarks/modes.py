"""`verified` against `ar` on held-out prompts of the demo model: equal text, and how many passes it takes.

python -m benchmarks.modes [--model FOLDER] [--prompts 300] [--backends mlx,cuda]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dgemma
from dgemma.generation import Generation

EXAMPLES = Path(__file__).parents[1] / "examples" / "demo_model"


def held_out(folder: Path, prompts: int) -> list[Any]:
    """Prompts that training never saw, as many of each task."""
    sys.path.insert(0, str(folder))
    import tasks  # type: ignore[import-not-found]

    each = -(-prompts // len(tasks.MAKERS))
    return [example for task in tasks.MAKERS for example in tasks.held_out(task, each)][:prompts]


def answer(model: dgemma.Model, examples: list[Any], **settings: Any) -> list[Generation]:
    """One batch per kind of prompt."""
    found: dict[int, Generation] = {}
    for think in (False, True):
        places = [place for place, example in enumerate(examples) if example.enable_thinking == think]
        prompts = [list(examples[place].messages) for place in places]
        if prompts:
            results = model.generate_batch(prompts, seed=0, max_tokens=64, think=think, **settings)
            found |= dict(zip(places, results, strict=True))
    return [found[place] for place in range(len(examples))]


def compare(model: dgemma.Model, examples: list[Any], temperature: float) -> str:
    """One line: how many texts are equal, passes a token of both modes, and the lengths that were accepted."""
    plain = answer(model, examples, mode="ar", temperature=temperature)
    checked = answer(model, examples, mode="verified", temperature=temperature)
    equal = sum(
        a.tokens == b.tokens and a.finish_reason == b.finish_reason for a, b in zip(plain, checked, strict=True)
    )
    right = sum(g.text == e.answer.rpartition("<channel|>")[2] for g, e in zip(plain, examples, strict=True))
    tokens, passes, fewer = (
        sum(each) for each in ((g.stats.completion_tokens for g in plain), (g.stats.forwards for g in plain),
                               (g.stats.forwards for g in checked))
    )  # fmt: skip
    lengths = sorted(Counter(n for g in checked for n in g.stats.accepted_lengths).items())
    return (
        f"T {temperature}: {equal} of {len(examples)} equal, {right} right; passes a token {passes / tokens:.3f} ar, "
        f"{fewer / tokens:.3f} verified (factor {passes / fewer:.2f}); accepted {dict(lengths)}"
    )


def main() -> None:
    """Print a line per backend and temperature."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--examples", type=Path, default=EXAMPLES)
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--backends", default="mlx,cuda")
    options = parser.parse_args()
    examples = held_out(options.examples, options.prompts)
    for backend in options.backends.split(","):
        with dgemma.load(options.model, backend, device="cpu", dtype="float32") as model:
            for temperature in (0.0, 0.8):
                print(backend, compare(model, examples, temperature), flush=True)


if __name__ == "__main__":
    main()
