"""Record a generation and read the trace back: a line for every step, with a dot where nothing is decided."""

import os
import tempfile
from pathlib import Path

import dgemma
from dgemma.trace import Trace, TraceWriter

MODEL = os.environ.get("DGEMMA_MODEL", "demo")
FILE = Path(tempfile.gettempdir()) / "dgemma-example.jsonl"

with dgemma.load(MODEL) as model, FILE.open("w", encoding="utf-8") as file:
    writer = TraceWriter(file.write, lambda token: model.tokenizer.decode([token]), {"model": MODEL, "seed": 1})
    with model.stream("json Ana 31 Rome", seed=1, max_tokens=64) as stream:
        for event in stream:
            writer.event(event)

trace = Trace.read(FILE)
for steps, block in trace.canvases():
    for draft in steps:
        cells = zip(draft.tokens, draft.accepted, strict=True)
        canvas = "".join(trace.texts[token] if kept else "·" for token, kept in cells)
        print(f"{draft.step:3d}  {draft.mean_entropy:6.3f}  {canvas!r}")
    if block is not None:
        print("final:", repr("".join(trace.texts[token] for token in block.tokens)))
FILE.unlink()
