"""One prompt, one answer, and what it cost."""

import os

import dgemma

MODEL = os.environ.get("DGEMMA_MODEL", "demo")

with dgemma.load(MODEL) as model:
    answer = model.generate("add 12+30", seed=1, max_tokens=64)
    print(answer)
    print(f"{answer.finish_reason}, {len(answer.tokens)} tokens in {answer.stats.denoising_steps} denoising steps")
