"""From samples to the numbers of a row. Each metric is defined here once, for every engine.

e2e_tok_s             delivered tokens over seconds from the request to the last block, summed over the prompts of a
                      repetition; the median of the repetitions, and their 10th and 90th percentile
decode_tok_s          the same tokens over the seconds behind the end of the prefill; None where an engine hides it
prefill_tok_s         prompt tokens over prefill seconds
ttfb_s                median time to the first block of final text
interblock_s          median time between blocks of one run; None where every answer had one block
step_ms               passes that only denoise; a pass that also encodes is left out
steps_per_canvas      denoising steps a canvas took
tokens_per_forward    delivered tokens over denoising steps
tokens_per_pass       delivered tokens over denoising steps and commit passes (encoder passes behind the prompt)
tok_per_cpu_s         delivered tokens over processor seconds of all threads; on a shared machine the steadier number
quality               right answers over checkable ones
peak_memory_bytes     allocated on an accelerator; the resident size of the engine's whole process on a CPU
spread                (p90 - p10) / median of the repetitions' seconds; above `BUSY` the machine was not quiet

No metric divides by the time behind the first block: a block server may send everything at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dgemma.bench.row import CONVERGENCE, Sample

BUSY = 0.10


def summarise(samples: Sequence[Sample], random_weights: bool) -> dict[str, Any]:
    """Every metric column of a row."""
    found = _speed(samples) | _steps(samples) | _quality(samples) | _quiet(samples)
    return found | dict.fromkeys(CONVERGENCE) if random_weights else found


def percentile(values: Iterable[float], share: float) -> float | None:
    """The percentile by linear interpolation; None of nothing."""
    found = list(values)
    return float(np.percentile(found, share)) if found else None


def repetitions(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The samples of each repetition, in order."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.repetition, []).append(sample)
    return [found[index] for index in sorted(found)]


def ratio(count: float, over: float | None) -> float | None:
    """`count` / `over`; None where there is nothing to divide by."""
    return count / over if over else None


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None as soon as one is."""
    found = list(values)
    return None if any(each is None for each in found) else float(sum(each or 0 for each in found))


def _speed(samples: Sequence[Sample]) -> dict[str, Any]:
    rounds = repetitions(samples)
    e2e = [_rate(each, [s.total_s for s in each]) for each in rounds]
    decode = [_rate(each, [s.prefill_s and s.total_s - s.prefill_s for s in each]) for each in rounds]
    prompts = sum(s.prompt_tokens for s in samples)
    return {
        "e2e_tok_s": percentile(_known(e2e), 50),
        "e2e_tok_s_p10": percentile(_known(e2e), 10),
        "e2e_tok_s_p90": percentile(_known(e2e), 90),
        "decode_tok_s": percentile(_known(decode), 50),
        "prefill_tok_s": ratio(prompts, total(s.prefill_s for s in samples)),
        "ttfb_s": percentile((s.block_s[0] for s in samples if s.block_s), 50),
        "interblock_s": percentile((gap for s in samples for gap in np.diff(s.block_s)), 50),
        "total_s": sum(s.total_s for s in samples),
        "tok_per_cpu_s": ratio(_tokens(samples), total(s.cpu_s for s in samples)),
        "energy_j_per_token": _energy(samples),
    }


def _steps(samples: Sequence[Sample]) -> dict[str, Any]:
    times = [each for s in samples for each in s.step_ms]
    steps = [each for s in samples for each in s.steps_per_canvas]
    commits = total(s.commit_passes for s in samples)
    return {
        "step_ms_p10": percentile(times, 10),
        "step_ms_p50": percentile(times, 50),
        "step_ms_p90": percentile(times, 90),
        "steps_per_canvas_p50": percentile(steps, 50),
        "steps_per_canvas_p90": percentile(steps, 90),
        "steps_per_canvas_max": max(steps, default=None),
        "tokens_per_forward": ratio(_tokens(samples), sum(steps)),
        "tokens_per_pass": None if commits is None or not steps else ratio(_tokens(samples), sum(steps) + commits),
    }


def _quality(samples: Sequence[Sample]) -> dict[str, Any]:
    checkable = sum(s.checkable for s in samples)
    return {"quality": ratio(sum(s.correct for s in samples), checkable), "quality_prompts": checkable}


def _quiet(samples: Sequence[Sample]) -> dict[str, Any]:
    seconds = [sum(s.total_s for s in each) for each in repetitions(samples)]
    low, middle, high = (percentile(seconds, share) or 0.0 for share in (10, 50, 90))
    spread = (high - low) / middle if len(seconds) > 1 and middle > 0 else None
    return {"spread": spread, "busy": spread is not None and spread > BUSY}


def _energy(samples: Sequence[Sample]) -> float | None:
    joules = total(s.energy_j for s in samples)
    return None if joules is None else ratio(joules, _tokens(samples))


def _tokens(samples: Iterable[Sample]) -> int:
    return sum(s.tokens for s in samples)


def _rate(samples: Sequence[Sample], seconds: Iterable[float | None]) -> float | None:
    return ratio(_tokens(samples), total(seconds))


def _known(values: Iterable[float | None]) -> list[float]:
    return [each for each in values if each is not None]
