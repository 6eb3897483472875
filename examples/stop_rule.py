"""A stop rule of one's own: end the answer before its first comma, on the engine below `Model`.

A rule takes the ids generated so far and returns how many of them to keep, or None to go on.
"""

import os
from collections.abc import Sequence

import dgemma
from dgemma.engine import Engine, Request, StopTokens

MODEL = os.environ.get("DGEMMA_MODEL", "demo")

with dgemma.load(MODEL) as model:
    tokenizer, settings = model.tokenizer, dgemma.Settings()
    ends = StopTokens(tokenizer.stop_ids)

    def first_comma(generated: Sequence[int]) -> int | None:
        for count in range(len(generated)):
            if "," in tokenizer.decode(generated[: count + 1]):
                return count
        return ends(generated)

    prompt = tokenizer.encode(model.prompt_text("json Ana 31 Rome", settings))
    request = Request(prompt, max_tokens=96, denoising=settings.denoising(model.defaults), seed=1, stop=first_comma)
    for event in Engine(model.backend).stream([request]):
        if isinstance(event, dgemma.Block):
            print(tokenizer.decode(event.tokens))
