"""The decoding modes on the demo model. Equalities hold for any weights; shares of right answers need trained ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import dgemma
from dgemma.generation import Generation
from tests.demo.conftest import BACKENDS, TASKS, held_out

Models = Callable[[str], dgemma.Model]
EACH, INFILLED, MEASURED = 3, 40, 6


def generate(model: dgemma.Model, task: str, count: int = EACH, **settings: Any) -> list[Generation]:
    examples = held_out(task, count)
    prompts = [list(example.messages) for example in examples]
    return model.generate_batch(prompts, seed=0, max_tokens=64, think=examples[0].enable_thinking, **settings)


def outcomes(found: Sequence[Generation]) -> list[tuple[tuple[int, ...], str]]:
    return [(each.tokens, each.finish_reason) for each in found]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_verified_equals_autoregressive(backend: str, temperature: float, models: Models) -> None:
    plain, checked = [], []
    for task in TASKS:
        plain += generate(models(backend), task, mode="ar", temperature=temperature)
        checked += generate(models(backend), task, mode="verified", temperature=temperature)
    assert outcomes(checked) == outcomes(plain)
    if temperature == 0:
        ours, theirs = (sum(each.stats.forwards for each in found) for found in (checked, plain))
        assert ours < theirs, f"{ours} passes against {theirs}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_quality_reference_and_a_stop_string_and_a_budget(backend: str, models: Models) -> None:
    model = models(backend)
    for settings in ({"stop": "2"}, {"max_tokens": 5}):
        plain, checked = (
            outcomes([model.generate("count 17 to 29", seed=0, mode=mode, **settings)]) for mode in ("ar", "verified")
        )
        assert plain == checked
    reference, default = (outcomes(generate(model, "add", **each)) for each in ({"quality": "reference"}, {}))
    assert reference == default


@pytest.mark.parametrize("backend", BACKENDS)
def test_autoregressive_decoding_answers_every_task(backend: str, models: Models) -> None:
    for task in TASKS:
        examples = held_out(task, 16)
        found = generate(models(backend), task, 16, mode="ar")
        right = sum(each.text == e.answer.rpartition("<channel|>")[2] for each, e in zip(found, examples, strict=True))
        assert right >= 8, f"{task}: {right} of 16"


def sudoku(prompt: str, answer: str) -> str:
    puzzle = prompt.removeprefix("sudoku ")
    assert len(puzzle) == len(answer)
    return re.sub("_+", lambda gap: f"<fill:{len(gap[0])}>", puzzle)


def record(prompt: str, answer: str) -> str:
    values = json.loads(answer).values()
    name, age, city = (f"<fill:{len(str(value))}>" for value in values)
    return f'{{"name": "{name}", "age": {age}, "city": "{city}"}}'


@pytest.mark.parametrize(("task", "template"), [("sudoku", sudoku), ("json", record)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_infill(backend: str, task: str, template: Callable[[str, str], str], models: Models) -> None:
    right = 0
    for example in held_out(task, INFILLED):
        text = template(example.prompt, example.answer)
        found = models(backend).fill(text, example.prompt, seed=0)
        literals = re.split(r"<fill:\d+>", text)
        assert re.fullmatch(".*".join(map(re.escape, literals)), found.text, re.DOTALL)
        right += found.text == example.answer
    assert right >= 0.95 * INFILLED, f"{right} of {INFILLED} are right"


def one_cell(prompt: str, answer: str) -> str:
    puzzle = prompt.removeprefix("sudoku ")
    gap = re.search("_+", puzzle)
    assert gap is not None
    return f"{answer[: gap.start()]}<fill>{answer[gap.end() :]}"


def one_value(prompt: str, answer: str) -> str:
    name = json.loads(answer)["name"]
    return answer.replace(name, "<fill>", 1)


@pytest.mark.parametrize(("task", "template"), [("sudoku", one_cell), ("json", one_value)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_length_of_a_gap_is_found(
    backend: str, task: str, template: Callable[[str, str], str], models: Models
) -> None:
    """Everything but one gap is given, whose length the rest of the text decides."""
    right = 0
    for example in held_out(task, MEASURED):
        found = models(backend).fill(template(example.prompt, example.answer), example.prompt, seed=0)
        right += found.text == example.answer
    assert right > MEASURED / 2, f"{right} of {MEASURED} are right"


@pytest.mark.parametrize("backend", BACKENDS)
def test_hybrid_verifies_the_thinking_and_diffuses_the_answer(backend: str, models: Models) -> None:
    """The reasoning is that of autoregressive decoding, token for token; some answer was never verified."""
    model = models(backend)
    closes, opens = (model.tokenizer.id(marker) for marker in ("<channel|>", "<|channel>"))
    plain = generate(model, "steps", MEASURED, mode="ar")
    diffused = 0
    for canvas_length in (3, 5):
        mixed = generate(model, "steps", MEASURED, mode="hybrid", canvas_length=canvas_length)
        for ours, theirs in zip(mixed, plain, strict=True):
            assert ours.tokens[0] == opens and ours.stats.accepted_lengths
            end = ours.tokens.index(closes) + 1 if closes in ours.tokens else len(ours.tokens)
            assert ours.tokens[:end] == theirs.tokens[:end]
            diffused += sum(ours.stats.accepted_lengths) < len(ours.tokens)
    assert diffused > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_hybrid_is_diffusion_where_nothing_is_to_be_verified(backend: str, models: Models) -> None:
    for task in ("add", "sudoku"):
        plain, mixed = (generate(models(backend), task, 8, mode=mode) for mode in ("diffusion", "hybrid"))
        settled = [(a, b) for a, b in zip(plain, mixed, strict=True) if not b.stats.accepted_lengths]
        assert settled and all(a.tokens == b.tokens for a, b in settled)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_canvas_that_starts_with_the_answer_settles_at_once(backend: str, models: Models) -> None:
    model = models(backend)
    answer = model.generate("reverse gkaqz", seed=0, max_tokens=32)
    warm = model.generate("reverse gkaqz", seed=1, max_tokens=32, warm_start=answer.text + "<turn|>" * 32)
    assert warm.text == answer.text and warm.stats.denoising_steps <= answer.stats.denoising_steps
