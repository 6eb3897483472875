"""Exact match on held-out prompts, by diffusion and by greedy next-token decoding."""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import checkpoint
import sampler
import tasks
import torch
from conversation import Example, answer_ids, prompt_ids
from model import Model
from rich.console import Console
from rich.table import Table
from shape import Shape

ALL = (*tasks.MAKERS, *tasks.VARIANTS)
Z = 1.96


@dataclass(frozen=True, slots=True)
class Score:
    """The results of one task."""

    task: str
    prompts: int
    diffusion: float
    causal: float
    steps_per_canvas: float
    tokens_per_forward: float


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share."""
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * (share * (1 - share) / n + Z * Z / (4 * n * n)) ** 0.5 / (1 + Z * Z / n)
    return centre - half, centre + half


@torch.no_grad()
def causal_correct(model: Model, examples: list[Example]) -> int:
    """How many answers greedy decoding gets right: those whose every token is the argmax after its true prefix."""
    correct = 0
    for example in examples:
        prompt, answer = prompt_ids(example), answer_ids(example)
        hidden = model.encode(torch.tensor([prompt + answer[:-1]]))[0][0, len(prompt) - 1 :]
        correct += model.logits(hidden).argmax(-1).tolist() == answer
    return correct


def score(model: Model, task: str, n: int, batch: int = 64) -> Score:
    """Both modes on n held-out prompts of a task."""
    examples = sorted(tasks.held_out(task, n), key=lambda e: len(prompt_ids(e)))
    generator = torch.Generator().manual_seed(0)
    generations: list[sampler.Generation] = []
    for i in range(0, n, batch):
        prompts = [prompt_ids(e) for e in examples[i : i + batch]]
        generations += sampler.generate(model, prompts, 4, generator)
    right = sum(g.ids == answer_ids(e) for g, e in zip(generations, examples, strict=True))
    steps = sum(g.steps for g in generations)
    per_canvas, per_forward = steps / sum(g.canvases for g in generations), sum(len(g.ids) for g in generations) / steps
    return Score(task, n, right / n, causal_correct(model, examples) / n, per_canvas, per_forward)


def markdown(scores: list[Score]) -> str:
    """The table of the model card."""
    lines = [
        "| task | prompts | diffusion | 95 % interval | causal | steps per canvas | tokens per forward |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for s in scores:
        low, high = wilson(s.diffusion, s.prompts)
        exact = f"{s.diffusion:.3f} | {low:.3f}-{high:.3f} | {s.causal:.3f}"
        lines.append(f"| {s.task} | {s.prompts} | {exact} | {s.steps_per_canvas:.2f} | {s.tokens_per_forward:.1f} |")
    return "\n".join(lines)


def show(scores: list[Score]) -> None:
    """Prints the scores."""
    table = Table("task", "prompts", "diffusion", "causal", "steps/canvas", "tokens/forward")
    for s in scores:
        cells = (f"{s.diffusion:.3f}", f"{s.causal:.3f}", f"{s.steps_per_canvas:.2f}", f"{s.tokens_per_forward:.1f}")
        table.add_row(s.task, str(s.prompts), *cells)
    Console().print(table)


def main() -> None:
    """Evaluates a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompts", type=int, default=500, help="held-out prompts per task")
    parser.add_argument("--tasks", nargs="*", default=ALL)
    parser.add_argument("--json", type=Path, help="write the scores here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Model(Shape())
    checkpoint.load(options.checkpoint, model, [])
    scores = [score(model, task, options.prompts) for task in options.tasks]
    show(scores)
    if options.json:
        options.json.write_text(json.dumps([asdict(s) for s in scores], indent=1) + "\n")


if __name__ == "__main__":
    main()
