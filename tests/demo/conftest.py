"""The shipped demo model on each backend, and its held-out prompts."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import dgemma
from dgemma.generation import Generation

TASKS = ("sudoku", "add", "sort", "reverse", "json", "count", "fill", "steps", "steps-direct")
PROMPTS = 48
BACKENDS = {"mlx": "mlx", "cuda": "torch"}
_SOURCES = Path(__file__).parents[2] / "examples" / "demo_model"

Answers = Callable[[str, str], list[Generation]]


@cache
def held_out(task: str, count: int) -> tuple:
    """`count` prompts of `task` that training never saw, each with `messages`, `enable_thinking` and `answer`."""
    sys.path.insert(0, str(_SOURCES))
    try:
        return tuple(importlib.import_module("tasks").held_out(task, count))
    finally:
        sys.path.remove(str(_SOURCES))


@pytest.fixture(scope="session")
def models() -> Callable[[str], dgemma.Model]:
    """The demo model on a backend, in float32 on the CPU, loaded once."""

    @cache
    def load(backend: str) -> dgemma.Model:
        if importlib.util.find_spec(BACKENDS[backend]) is None:
            pytest.skip(f"{BACKENDS[backend]} is not installed")
        return dgemma.load("demo", backend, device="cpu", dtype="float32")

    return load


@pytest.fixture(scope="session")
def answers(models: Callable[[str], dgemma.Model]) -> Answers:
    """What a backend answers to the first held-out prompts of a task, seed 0, as one batch; computed once."""

    @cache
    def answer(backend: str, task: str) -> list[Generation]:
        examples = held_out(task, PROMPTS)
        prompts = [list(example.messages) for example in examples]
        return models(backend).generate_batch(prompts, seed=0, max_tokens=128, think=examples[0].enable_thinking)

    return answer
