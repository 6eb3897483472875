"""What the live canvas costs: CPU milliseconds a frame, and a generation with and without it, in pairs.

    python -m benchmarks.view [-m MODEL] [--rounds N]

Prints one JSON row. Frames are drawn to a pseudo-terminal that a thread empties.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import threading
import time
from contextlib import suppress
from typing import TextIO

import numpy as np
from rich.console import Console

import dgemma
from dgemma.cli.live import LiveCanvas
from dgemma.cli.view import Spelling
from dgemma.doctor import facts


def main() -> None:
    """Measure and print a row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with dgemma.load(options.model) as model, terminal() as screen:
        console = Console(file=screen, force_terminal=True, width=100, height=40)
        frame_ms = frame_cost(model, console)
        pairs = [paired(model, console, seed) for seed in range(options.rounds)]
        origin = model.origin
    ratios = [with_view / without for with_view, without in pairs]
    row = {
        "benchmark": "view",
        "class": "smoke" if origin.device == "cpu" else "full",
        "frame_cpu_ms": {"canvas": 256, "median": statistics.median(frame_ms), "max": max(frame_ms)},
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios), "pairs": len(pairs)},
        "model": origin.model,
        "backend": origin.backend,
        "device": origin.device,
        "environment": facts(),
    }
    print(json.dumps(row))


def terminal() -> TextIO:
    """A pseudo-terminal to write to."""
    parent, child = pty.openpty()
    threading.Thread(target=drain, args=(parent,), daemon=True).start()
    return os.fdopen(child, "w", encoding="utf-8")


def drain(parent: int) -> None:
    """Read until the other end is closed."""
    with suppress(OSError):
        while os.read(parent, 65536):
            pass


def frame_cost(model: dgemma.Model, console: Console, frames: int = 200) -> list[float]:
    """CPU milliseconds of making and drawing a frame of 256 tokens, four fifths of them settled."""
    rng, spelling, live = np.random.default_rng(0), Spelling(model.tokenizer), LiveCanvas(console, model.tokenizer)
    vocabulary = [i for i in range(model.backend.config.vocab_size) if i not in model.tokenizer.stop_ids]
    costs = []
    for step in range(frames):
        tokens = tuple(map(int, rng.choice(vocabulary, 256)))
        accepted, changed = (tuple(map(bool, rng.random(256) < share)) for share in (0.8, 0.1))
        draft = dgemma.Draft(0, 1, step, frames, tokens, accepted, changed, 0.1)
        start = time.thread_time()
        live._draw(spelling.frame(draft))
        costs.append(1000 * (time.thread_time() - start))
    live.erase()
    return costs


def paired(model: dgemma.Model, console: Console, seed: int) -> tuple[float, float]:
    """Process CPU seconds of one generation with and without the view, in an order that alternates."""
    order = (True, False) if seed % 2 else (False, True)
    found = {view: generate(model, console, seed, view) for view in order}
    return found[True], found[False]


def generate(model: dgemma.Model, console: Console, seed: int, view: bool) -> float:
    """CPU seconds of one generation."""
    live = LiveCanvas(console, model.tokenizer)
    start = time.process_time()
    with model.stream("json Ana 31 Rome", seed=seed, max_tokens=96) as stream:
        for event in stream:
            if view and isinstance(event, dgemma.Draft):
                live.draw(event, "", "")
    live.erase()
    return time.process_time() - start


if __name__ == "__main__":
    main()
