"""Writes the profiles that are generated: `long` and `fixed` (a harbour's log) and `demo` (the demo model's tasks).

`python benchmarks/prompts/make.py [long] [fixed] [demo]`. The same program writes the same bytes, so that a profile's
hash changes only with its version.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
TASKS = HERE.parents[1] / "examples" / "demo_model"
SHIPS = ("Alma", "Birke", "Cormoran", "Dana", "Elster", "Freya", "Gaia", "Hilde")
GOODS = ("timber", "salt", "wool", "glass", "barley", "slate", "cider", "rope")
WEATHER = ("light rain from the west", "a clear sky", "fog until noon", "a stiff breeze", "snow on the quay")
PORTS = ("Aberwen", "Kolbe", "Marstad", "Porto Vale", "Sint Odo", "Tarn")


def log(entries: int, seed: int) -> tuple[str, list[dict[str, Any]]]:
    """A log of so many arrivals, and what each entry says."""
    random = Random(seed)
    facts = []
    for day in range(1, entries + 1):
        ship, port, goods = random.choice(SHIPS), random.choice(PORTS), random.choice(GOODS)
        tons, berth, weather = random.randint(12, 480), random.randint(1, 24), random.choice(WEATHER)
        facts.append(
            {"day": day, "ship": ship, "port": port, "goods": goods, "tons": tons, "berth": berth, "weather": weather}
        )
    return "\n".join(map(_entry, facts)), facts


def _entry(fact: dict[str, Any]) -> str:
    return (
        "Day {day}. The {ship} arrived from {port} with {tons} tons of {goods} and moored at berth {berth}; {weather}. "
        "The harbour master checked her papers, the crew was paid, and unloading began the same afternoon."
    ).format(**fact)


def long() -> None:
    """Questions about single entries of a log of about 8,000 tokens."""
    lines: list[dict[str, Any]] = [{"profile": "long", "version": 1, "mode": "adaptive", "max_tokens": 512}]
    for seed, place in enumerate((0.05, 0.5, 0.95)):
        text, facts = log(170, seed)
        fact = facts[int(place * len(facts))]
        question = f"How many tons did the ship bring that arrived on day {fact['day']}? Answer with the number only."
        lines.append(_line(f"needle-{place}", f"{text}\n\n{question}", "number", fact["tons"]))
    text, _ = log(170, 9)
    lines.append(_line("summary", f"{text}\n\nSummarise this log for a visitor in five sentences.", None, None))
    _write("long", lines)


def fixed() -> None:
    """1024 tokens in, 1024 out, 16 steps a canvas, no stop: set beside published fixed-step figures."""
    head = {"profile": "fixed", "version": 1, "mode": "fixed", "max_tokens": 1024, "steps": 16, "prompt_tokens": 1024}
    texts = [log(22, 100 + index)[0] for index in range(4)]
    end = "\n\nContinue this log in the same style for the next days."
    _write("fixed", [head, *(_line(f"log-{index}", text + end, None, None) for index, text in enumerate(texts))])


def demo() -> None:
    """Held-out prompts of the demo model's tasks, one of each."""
    sys.path.insert(0, str(TASKS))
    tasks = importlib.import_module("tasks")
    lines: list[dict[str, Any]] = [{"profile": "demo", "version": 1, "mode": "adaptive", "max_tokens": 96}]
    for task in ("sudoku", "add", "sort", "reverse", "json", "count", "fill", "steps"):
        [example] = tasks.held_out(task, 1, seed=6)
        answer = example.answer.rpartition("<channel|>")[2]
        line = _line(task, example.messages[-1]["content"], "exact", answer)
        lines.append(line | {"think": True} if example.enable_thinking else line)
    _write("demo", lines)


def _line(name: str, prompt: str, kind: str | None, answer: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"id": name, "prompt": prompt}
    return line if kind is None else line | {"check": {"kind": kind, "answer": answer}}


def _write(name: str, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ("long", "fixed", "demo"):
        {"long": long, "fixed": fixed, "demo": demo}[wanted]()
