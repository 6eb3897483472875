"""Several prompts in one batch. Each answer is the one that its prompt alone would get with the same seed."""

import os

import dgemma

MODEL = os.environ.get("DGEMMA_MODEL", "demo")
PROMPTS = ["add 12+30", "sort gkaqz", "reverse hello", "json Ana 31 Rome"]

with dgemma.load(MODEL) as model:
    for prompt, answer in zip(PROMPTS, model.generate_batch(PROMPTS, seed=1, max_tokens=64), strict=True):
        print(f"{prompt} -> {answer}")
