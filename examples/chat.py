"""A conversation. Each turn encodes only what is new; the rest is in the cache already."""

import os

import dgemma

MODEL = os.environ.get("DGEMMA_MODEL", "demo")

with dgemma.load(MODEL) as model, model.chat(seed=1, max_tokens=64) as chat:
    for prompt in ("add 12+30", "sort gkaqz", "reverse hello"):
        answer = chat.send(prompt)
        stats = answer.stats
        print(f"{prompt} -> {answer.text}  ({stats.cached_tokens} of {stats.prompt_tokens} prompt tokens were cached)")
    print("once more, with another seed:", chat.regenerate(seed=2))
    chat.undo()
    print(f"{len(chat.turns)} turns remain")
