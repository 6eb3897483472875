"""Print text as soon as it is final. What was printed is never taken back."""

import os

import dgemma

MODEL = os.environ.get("DGEMMA_MODEL", "demo")

with dgemma.load(MODEL) as model, model.stream("json Ana 31 Rome", seed=1, max_tokens=96) as stream:
    for event in stream:
        if not isinstance(event, dgemma.Draft):
            print(event.text, end="", flush=True)
    print()
