"""What the quality settings cost and save on the demo model; writes docs/quality.md.

python -m benchmarks.quality [--model FOLDER] [--prompts 200] [--try PLATEAU,BOUND,STEPS ...] [--output docs/quality.md]

Every setting's result for a task is a row of benchmarks/results/quality.jsonl; what stands there is not measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import dgemma
from benchmarks.modes import EXAMPLES, answer, held_out
from dgemma.quality import GUARDS, Guards

BATCH = 50
SATURATED = 2.1  # steps a canvas
LOSS = {"balanced": 0.005, "fast": 0.02}
INTRODUCTION = """# Quality settings

`--quality` finishes canvases sooner. `reference`, the default, changes nothing. The other two are values of
`dgemma.quality.Guards`, laid around whatever stop rule and schedule the other flags give:

| setting | also stops when the argmax canvas stayed the same for | at a mean entropy of at most | most steps a canvas |
|---|--:|--:|--:|
{guards}

Both leave out, once the first end token has stood at its place for a step, everything behind it from the stop rule.

Measured with `python -m benchmarks.quality` on held-out prompts of the demo model ({model}), {prompts} prompts a task,
`{backend}` on a CPU in float32, seed 0. Exact match, and denoising steps a canvas.

| task | {columns} |
|---|{rule}|
{rows}

The rule for choosing them: of all guards that were tried, `balanced` are those with the fewest steps a canvas whose
mean exact match is at most {balanced} below that of `reference`, `fast` those at most {fast} below. {verdict}
"""

Key = tuple[str, str]
Row = Mapping[str, Any]


class Rows:
    """Results in a file, one JSON object a line, by setting and task; only those of one model and sample count."""

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        self._path, self._origin = path, dict(origin)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [row for row in map(json.loads, lines) if {name: row.get(name) for name in origin} == self._origin]
        self._rows: dict[Key, Row] = {(_spelled(row["guards"]), row["task"]): row for row in found}

    def get(self, guards: Guards | None, task: str) -> Row | None:
        """The row, if it was measured."""
        return self._rows.get((_spelled(guards and astuple(guards)), task))

    def add(self, guards: Guards | None, task: str, **measured: float) -> None:
        """Append a row."""
        row = {**self._origin, "guards": guards and astuple(guards), "task": task, **measured}
        self._rows[_spelled(row["guards"]), task] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def mean(self, guards: Guards | None, name: str, tasks: Sequence[str]) -> float:
        """The mean over tasks."""
        return sum(float((self.get(guards, task) or {})[name]) for task in tasks) / len(tasks)


def measured(model: dgemma.Model, examples: Sequence[Any], guards: Guards | None) -> dict[str, float]:
    """Exact match and denoising steps a canvas on one task's examples."""
    right = steps = canvases = 0
    GUARDS["tried"] = guards or GUARDS["balanced"]
    try:
        for batch in (examples[start : start + BATCH] for start in range(0, len(examples), BATCH)):
            found = answer(model, list(batch), quality="tried" if guards else None)
            right += sum(g.text == e.answer.rpartition("<channel|>")[2] for g, e in zip(found, batch, strict=True))
            steps += sum(each.stats.denoising_steps for each in found)
            canvases += sum(each.stats.canvases for each in found)
    finally:
        del GUARDS["tried"]
    return {"right": right / len(examples), "steps": steps / canvases}


def best(rows: Rows, tried: Sequence[Guards], tasks: Sequence[str], loss: float) -> Guards | None:
    """The guards with the fewest steps whose mean exact match is at most `loss` below that of no guards."""
    floor = rows.mean(None, "right", tasks) - loss
    fine = [each for each in tried if rows.mean(each, "right", tasks) >= floor]
    return min(fine, key=lambda each: rows.mean(each, "steps", tasks), default=None)


def page(rows: Rows, tried: Sequence[Guards], tasks: Sequence[str], about: Mapping[str, Any]) -> str:
    """docs/quality.md."""
    settings = [None, *tried]
    names = {guards: name for name, guards in GUARDS.items()}
    columns = ["reference", *(names.get(each, ", ".join(map(str, astuple(each)))) for each in tried)]
    return INTRODUCTION.format(
        guards="\n".join(
            f"| `{name}` | {g.plateau} steps | {g.bound} nats | {g.steps} |" for name, g in GUARDS.items()
        ),
        columns=" | ".join(columns),
        rule="|".join(["--:"] * len(columns)),
        rows="\n".join(_table(rows, settings, tasks)),
        verdict=" ".join(_verdict(rows, tried, tasks)),
        **LOSS,
        **about,
    )


def _table(rows: Rows, settings: Sequence[Guards | None], tasks: Sequence[str]) -> Iterator[str]:
    for task in (*tasks, "mean"):
        among = tasks if task == "mean" else [task]
        cells = [f"{rows.mean(g, 'right', among):.3f}, {rows.mean(g, 'steps', among):.1f}" for g in settings]
        yield f"| {task} | " + " | ".join(cells) + " |"


def _verdict(rows: Rows, tried: Sequence[Guards], tasks: Sequence[str]) -> Iterator[str]:
    if rows.mean(None, "steps", tasks) < SATURATED:
        yield (
            "It cannot be applied here: with these weights nearly every canvas settles in the two steps that the "
            "reference takes at least, so that no setting saves any, and the table does not tell what they cost on a "
            "model that takes longer. The values are a cautious choice, not a measured one."
        )
        return
    for name, loss in LOSS.items():
        found = best(rows, tried, tasks, loss)
        if found == GUARDS[name]:
            yield f"`{name}` is that choice."
        else:
            chosen = "none of them" if found is None else f"{found.plateau} steps, {found.bound} nats, {found.steps}"
            yield f"`{name}` is not: by the rule it would be {chosen}."


def _spelled(guards: Sequence[float] | None) -> str:
    return json.dumps(guards and list(guards))


def _guards(text: str) -> Guards:
    plateau, bound, steps = text.split(",")
    return Guards(int(plateau), float(bound), int(steps))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--examples", type=Path, default=EXAMPLES)
    parser.add_argument("--prompts", type=int, default=200, help="per task")
    parser.add_argument("--backend", default="mlx")
    parser.add_argument("--try", type=_guards, action="append", default=[], dest="tried", metavar="PLATEAU,BOUND,STEPS")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/quality.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("docs/quality.md"))
    return parser.parse_args()


def main() -> None:
    """Measure what is missing and write the page."""
    options = _options()
    tried = list(dict.fromkeys([*GUARDS.values(), *options.tried]))
    with dgemma.load(options.model, options.backend, device="cpu", dtype="float32") as model:
        weights = hashlib.sha256((model.folder / "model.safetensors").read_bytes()).hexdigest()[:16]
        origin = {"weights": weights, "backend": options.backend, "prompts": options.prompts}
        rows = Rows(options.results, origin)
        examples = held_out(options.examples, options.prompts * _count(options.examples))
        tasks = list(dict.fromkeys(example.task for example in examples))
        for guards in (None, *tried):
            for task in tasks:
                if rows.get(guards, task) is None:
                    rows.add(guards, task, **measured(model, [e for e in examples if e.task == task], guards))
                    print(guards, task, rows.get(guards, task), file=sys.stderr, flush=True)
    name = "the one that is part of the package" if options.model == "demo" else "an intermediate export"
    about = {"model": f"{name}, weights {weights}", "prompts": options.prompts, "backend": options.backend}
    options.output.write_text(page(rows, tried, tasks, about), encoding="utf-8")


def _count(folder: Path) -> int:
    """How many tasks there are."""
    held_out(folder, 1)
    return len(sys.modules["tasks"].MAKERS)


if __name__ == "__main__":
    main()
