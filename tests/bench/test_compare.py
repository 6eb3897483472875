"""Comparisons: a golden table, intervals, and what may not be compared."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dgemma.bench.compare import compare, markdown, pair
from dgemma.bench.row import Row
from dgemma.errors import UsageError
from tests.bench.rows import make_row, make_sample

GOLDEN = Path(__file__).with_name("compare.golden.md")


def row(factor: float, noise: float, seed: int = 0, **changes: object) -> Row:
    draw = np.random.default_rng(seed)
    times = [(p, r, 2.0 * factor * (1 + noise * draw.standard_normal())) for p in "abcd" for r in range(5)]
    samples = [make_sample(p, r, round(t, 6), step_ms=(round(100 * t, 4),)) for p, r, t in times]
    return make_row(samples, **changes)


def test_golden() -> None:
    text = markdown(row(1.0, 0.05), row(0.8, 0.05, seed=1, engine="transformers", backend="torch"))
    assert text == GOLDEN.read_text()


def verdicts(a: Row, b: Row) -> dict[str, str]:
    return {each.metric: each.verdict for each in compare(a, b)}


def test_verdicts() -> None:
    faster = verdicts(row(1.0, 0.02), row(0.7, 0.02, seed=1))
    assert faster["e2e tok/s"] == faster["ms/step"] == "B is better"
    assert verdicts(row(0.7, 0.02), row(1.0, 0.02, seed=1))["e2e tok/s"] == "B is worse"
    assert verdicts(row(1.0, 0.4), row(0.98, 0.4, seed=1))["e2e tok/s"] == "no significant difference"
    assert verdicts(row(1.0, 0.2), row(1.0, 0.2))["e2e tok/s"] == "no significant difference"


def test_the_interval_covers_the_truth() -> None:
    hits = 0
    for seed in range(40):
        [found] = [c for c in compare(row(1.0, 0.1, seed), row(0.9, 0.1, seed + 100)) if c.metric == "e2e tok/s"]
        hits += found.low <= 1 / 0.9 <= found.high
    assert hits >= 34


def test_pairing() -> None:
    a, b = row(1.0, 0.1), row(1.0, 0.1, engine="mlx-vlm")
    assert pair([a], [b]) == [(a, b)]
    assert pair([a, b], [b, a]) == [(a, a), (b, b)]
    for change in ({"profile_hash": "b"}, {"mode": "fixed"}, {"weights": "random"}, {"batch": 2}):
        with pytest.raises(UsageError, match="share no measurement"):
            pair([a], [make_row(**change)])


def test_unpaired_samples() -> None:
    a, b = row(1.0, 0.1), row(0.5, 0.1)
    fewer = replace(b, samples=b.samples[:-3])
    found = {each.metric: each for each in compare(a, fewer)}
    assert not found["e2e tok/s"].paired and found["e2e tok/s"].ratio == pytest.approx(2, rel=0.1)


def test_random_weights_compare_steps_only() -> None:
    assert set(verdicts(row(1, 0.1, weights="random"), row(1, 0.1, weights="random"))) == {"ms/step", "CPU s/step"}


def test_repetitions_of_one_prompt_are_not_independent() -> None:
    a = [make_sample(p, r, correct=int(p != "d")) for p in "abcdefgh" for r in range(50)]
    b = [make_sample(p, r, correct=1) for p in "abcdefgh" for r in range(50)]
    assert verdicts(make_row(a), make_row(b))["quality"] == "no significant difference"
