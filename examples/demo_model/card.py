"""The model card of the demo folder."""

import json
from pathlib import Path

import evaluate
from checkpoint import Progress
from model import Model

CARD = """---
license: apache-2.0
library_name: dgemma
pipeline_tag: text-generation
---
# The dgemma demo model

A demo: a {parameters:.2f} M parameter text model with exactly the architecture of DiffusionGemma (mixture of
experts, sliding and full attention, self-conditioning, separate encoder and decoder layer scalars), trained from
scratch on toy tasks whose answers can be checked. It shows the decoding loop and tests it; it knows no language.
The real model is google/diffusiongemma-26B-A4B-it.

## Tasks

| prompt | answer |
|---|---|
| `sudoku 1_3_/_4_2/2__3/__21` | the solved 4x4 grid; 6 to 11 clues, one solution |
| `add 482+1977` | the sum; 1 to 4 digits, each operand of 4 digits with probability 1/7 |
| `sort gkaqz` | 3 to 12 letters in order |
| `reverse hello` | 3 to 12 letters backwards |
| `json Ana 31 Rome` | `{{"name": "Ana", "age": 31, "city": "Rome"}}` |
| `count 17 to 29` | the numbers, at most {count_limit} characters (two canvases) |
| `fill th_ red f_x ju_ps` | the text without holes: short sentences of known words, runs of the alphabet |
| `steps 4+7+2+9` | `22`; with thinking enabled the running sums come first, as a thought |

A short system prompt, earlier turns, and thinking on other tasks (an empty thought) are understood. Anything else
is not.

## Architecture

{layers} layers ({kinds}), hidden {hidden}, {heads} heads (key/value heads {kv_sliding} sliding, {kv_full} full;
head size {head_sliding} and {head_full}), dense width {dense}, {experts} experts of width {expert} of which
{top_k} are used, canvas {canvas}, window {window}, vocabulary {vocab}: one id per printable character, special
tokens at Gemma's ids. float32, no vision tensors.

## Training

{examples:,} examples, each with two noisy canvases, by `examples/demo_model/train.py`. Held-out prompts are those
whose SHA-256 is a multiple of 16; training never draws one. The shipped weights come from four stretches (182,000,
188,000, 180,000 and 150,000 examples), each with a falling rate at its end. In the first the batch size, the token
weights and some tasks were settled; in the others the tasks that failed got more weight, in the last two counting above
all. The code holds the final settings; `examples/demo_model/README.md` has the commands of the last two.

## Results

Exact match on held-out prompts. Diffusion is the reference sampler with the shipped generation_config.json; causal
is greedy next-token decoding with the same weights. `system`, `thinking` and `turns` mix tasks under a system
prompt, with thinking enabled, and after earlier turns. Tokens per forward counts answer tokens, the end of turn
included, per denoising pass.

{table}

## Reproduce

A run of the same length in one go, not the same weights:

```
cd examples/demo_model
python train.py --work WORK --examples {examples}
python evaluate.py WORK/checkpoint.pt --json scores.json
python export.py WORK/checkpoint.pt FOLDER --scores scores.json
```
"""


def text(model: Model, progress: Progress, scores: Path | None) -> str:
    """The card, with a table where scores were measured."""
    shape = model.shape
    numbers = {name: getattr(shape, name) for name in shape.__slots__ if name != "layers"}
    return CARD.format(
        **numbers,
        parameters=sum(p.numel() for p in model.parameters()) / 1e6,
        layers=len(shape.layers),
        kinds=", ".join(kind.removesuffix("_attention") for kind in shape.layers),
        examples=progress.examples,
        count_limit=evaluate.tasks.COUNT_LIMIT,
        table=_table(scores) if scores else "Not measured yet.",
    )


def _table(path: Path) -> str:
    return evaluate.markdown([evaluate.Score(**row) for row in json.loads(path.read_text())])
