"""The demo model end to end: right answers, and the same token ids on every backend, alone or in a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import dgemma
from tests.demo.conftest import BACKENDS, TASKS, Answers, held_out

FLOOR = 0.95


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_held_out_prompts_are_answered(backend: str, task: str, answers: Answers) -> None:
    found = answers(backend, task)
    right = [
        result.text == example.answer.rpartition("<channel|>")[2]
        for result, example in zip(found, held_out(task, len(found)), strict=True)
    ]
    assert sum(right) >= FLOOR * len(right), f"{sum(right)} of {len(right)} are right"


@pytest.mark.parametrize("task", TASKS)
def test_backends_give_identical_ids(task: str, answers: Answers) -> None:
    ours, theirs = answers("mlx", task), answers("cuda", task)
    assert [each.tokens for each in ours] == [each.tokens for each in theirs]
    assert [each.stats.steps_per_canvas for each in ours] == [each.stats.steps_per_canvas for each in theirs]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_equals_single_runs(backend: str, models: Callable[[str], dgemma.Model], answers: Answers) -> None:
    tasks = ("sudoku", "count", "json", "add", "fill")
    single = [models(backend).generate(list(held_out(task, 1)[0].messages), seed=0, max_tokens=128) for task in tasks]
    mixed = models(backend).generate_batch(
        [list(held_out(task, 1)[0].messages) for task in tasks], seed=0, max_tokens=128
    )
    assert [each.tokens for each in single] == [each.tokens for each in mixed]
    assert len({len(each.stats.steps_per_canvas) for each in single}) > 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_thinking_stays_out_of_the_answer(backend: str, answers: Answers) -> None:
    for result, example in zip(answers(backend, "steps"), held_out("steps", 48), strict=True):
        assert "<" not in result.text
        if result.text == example.answer.rpartition("<channel|>")[2]:
            assert result.reasoning.strip()
