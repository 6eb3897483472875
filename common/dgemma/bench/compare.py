"""Is B faster than A? Ratios with a bootstrap interval over what was measured, which may show no difference at all.

The bootstrap draws prompts, then repetitions of each: repetitions of one prompt with one seed are not independent, and
an engine that is better on one prompt of eight is not shown to be better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgemma.bench.row import Row, Sample
from dgemma.errors import UsageError

_RESAMPLES = 4000
_LOW, _HIGH = 2.5, 97.5
_SAME = (
    *("weights", "profile", "profile_hash", "mode", "batch", "max_tokens", "canvas_length", "steps"),
    *("entropy_bound", "prompt_tokens"),
)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Metric:
    """A ratio of two sums over samples; `higher_is_better` says which way is good."""

    name: str
    above: Callable[[Sample], float | None]
    below: Callable[[Sample], float | None]
    higher_is_better: bool
    needs_convergence: bool = True


METRICS = (
    Metric("e2e tok/s", lambda s: s.tokens, lambda s: s.total_s, True),
    Metric("decode tok/s", lambda s: s.tokens, lambda s: s.prefill_s and s.total_s - s.prefill_s, True),
    Metric("tok per CPU s", lambda s: s.tokens, lambda s: s.cpu_s, True),
    Metric("first block s", lambda s: s.block_s[0] if s.block_s else None, lambda s: 1.0, False),
    Metric("ms/step", lambda s: sum(s.step_ms) or None, lambda s: len(s.step_ms), False, needs_convergence=False),
    Metric("CPU s/step", lambda s: s.cpu_s, lambda s: sum(s.steps_per_canvas) or None, False, needs_convergence=False),
    Metric("tok/step", lambda s: s.tokens, lambda s: sum(s.steps_per_canvas) or None, True),
    Metric("quality", lambda s: s.correct, lambda s: s.checkable or None, True),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """B over A for one metric, with its 95 % interval."""

    metric: str
    a: float
    b: float
    ratio: float
    low: float
    high: float
    paired: bool
    higher_is_better: bool

    @property
    def verdict(self) -> str:
        """In words, better or worse as the metric means it."""
        if self.low <= 1 <= self.high:
            return "no significant difference"
        better = (self.ratio > 1) == self.higher_is_better
        return f"B is {'better' if better else 'worse'}"


def pair(a: Sequence[Row], b: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows that measure the same thing, in A's order. Raises UsageError where nothing fits.

    The engine must be the same too as soon as one side holds several.
    """
    several = any(len({row.name for row in rows}) > 1 for rows in (a, b))
    fields = (*_SAME, "name") if several else _SAME
    found = {tuple(getattr(row, name) for name in fields): row for row in b}
    pairs = [(row, found[key]) for row in a if (key := tuple(getattr(row, name) for name in fields)) in found]
    if not pairs:
        raise UsageError(
            "A and B share no measurement: profile, hash, mode, limits and weights must be equal.",
            "Pick one engine of a file with FILE::ENGINE.",
        )
    return pairs


def compare(a: Row, b: Row) -> list[Comparison]:
    """Every metric that both rows have."""
    usable = [each for each in METRICS if a.weights == "trained" or not each.needs_convergence]
    return [found for metric in usable if (found := _compare(a.samples, b.samples, metric)) is not None]


def _compare(a: Sequence[Sample], b: Sequence[Sample], metric: Metric) -> Comparison | None:
    known_a, known_b = ([s for s in each if _known(s, metric)] for each in (a, b))
    if not known_a or not known_b:
        return None
    left, right = _sums(known_a, metric), _sums(known_b, metric)
    paired = list(map(_key, known_a)) == list(map(_key, known_b))
    random = np.random.default_rng(0)
    drawn = _draw(known_a, random)
    other = drawn if paired else _draw(known_b, random)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = _value(right[other]) / _value(left[drawn])
    ratios = ratios[np.isfinite(ratios)]
    first, second = float(_value(left[None])[0]), float(_value(right[None])[0])
    if ratios.size == 0 or first == 0:
        return None
    low, high = np.percentile(ratios, (_LOW, _HIGH))
    ratio = second / first
    return Comparison(metric.name, first, second, ratio, float(low), float(high), paired, metric.higher_is_better)


def _known(sample: Sample, metric: Metric) -> bool:
    return metric.above(sample) is not None and bool(metric.below(sample))


def _sums(samples: Sequence[Sample], metric: Metric) -> Floats:
    """[samples, 2]: what is above and below the line."""
    return np.array([(metric.above(s), metric.below(s)) for s in samples], np.float64)


def _draw(samples: Sequence[Sample], random: np.random.Generator) -> NDArray[np.int64]:
    """[resamples, samples] indices: as many prompts as there are, and of each as many repetitions."""
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.prompt, []).append(index)
    width = max(map(len, groups.values()))
    table = np.array([np.resize(group, width) for group in groups.values()])
    prompts = random.integers(0, len(table), (_RESAMPLES, len(table), 1))
    repetitions = random.integers(0, width, (_RESAMPLES, len(table), width))
    found: NDArray[np.int64] = table[prompts, repetitions].reshape(_RESAMPLES, -1)
    return found


def _value(drawn: Floats) -> Floats:
    sums = drawn.sum(axis=1)
    value: Floats = sums[:, 0] / sums[:, 1]
    return value


def _key(sample: Sample) -> tuple[str, int]:
    return sample.prompt, sample.repetition


def markdown(a: Row, b: Row) -> str:
    """The comparison of two rows as a Markdown section."""
    lines = [
        f"### {a.profile}, {a.mode}: A = {a.name} on {a.machine}, B = {b.name} on {b.machine}",
        "",
        "| metric | A | B | B/A | 95 % interval | |",
        "|---|--:|--:|--:|---|---|",
    ]
    for each in compare(a, b):
        interval = f"{each.low:.3f} to {each.high:.3f}{' paired' if each.paired else ''}"
        lines.append(
            f"| {each.metric} | {each.a:.4g} | {each.b:.4g} | {each.ratio:.3f} | {interval} | {each.verdict} |"
        )
    if a.busy or b.busy:
        lines += ["", "The machine was busy during at least one of the two: its repetitions differ by more than 10 %."]
    return "\n".join(lines) + "\n"
