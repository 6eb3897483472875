"""Watch the canvas: a line for every denoising step, with a dot where the model has not decided."""

import os

import dgemma

MODEL = os.environ.get("DGEMMA_MODEL", "demo")

with dgemma.load(MODEL) as model, model.stream("12+30", seed=1, max_tokens=32) as stream:
    for event in stream:
        if isinstance(event, dgemma.Draft):
            cells = zip(event.tokens, event.accepted, strict=True)
            canvas = "".join(model.tokenizer.decode([token]) if kept else "·" for token, kept in cells)
            print(f"{event.step:3d}  {event.mean_entropy:6.3f}  {canvas!r}")
    print(stream.generations[0].text)
