"""What the numbers of a row mean."""

import pytest

from dgemma.bench.checks import is_right
from dgemma.bench.metrics import summarise
from dgemma.bench.prompts import Check, load, names
from tests.bench.rows import make_sample


def test_definitions() -> None:
    samples = [make_sample("a", r, total_s=2.0) for r in range(3)] + [make_sample("b", r, 4.0) for r in range(3)]
    found = summarise(samples, random_weights=False)
    assert found["e2e_tok_s"] == pytest.approx(80 / 6)
    assert found["decode_tok_s"] == pytest.approx(80 / 5)
    assert found["prefill_tok_s"] == pytest.approx(20)
    assert found["ttfb_s"] == 1.0 and found["interblock_s"] == 2.0
    assert found["tokens_per_forward"] == 4.0 and found["tokens_per_pass"] == pytest.approx(40 / 11)
    assert found["steps_per_canvas_p50"] == 5 and found["steps_per_canvas_max"] == 6
    assert found["step_ms_p50"] == 100 and found["quality"] == 1.0 and found["quality_prompts"] == 6
    assert found["tok_per_cpu_s"] == pytest.approx(40 / 3) and found["energy_j_per_token"] is None
    assert found["spread"] == 0 and not found["busy"]


def test_a_whole_answer_in_one_block_is_not_infinitely_fast() -> None:
    found = summarise([make_sample(total_s=2.0, block_s=(2.0,), prefill_s=None)], random_weights=False)
    assert found["e2e_tok_s"] == 20 and found["decode_tok_s"] is None and found["interblock_s"] is None


def test_what_was_not_measured_is_null() -> None:
    sample = make_sample(prefill_s=None, commit_passes=None, steps_per_canvas=(), step_ms=(), cpu_s=None, checkable=0)
    found = summarise([sample], random_weights=False)
    for name in ("prefill_tok_s", "step_ms_p50", "tokens_per_forward", "tokens_per_pass", "tok_per_cpu_s", "quality"):
        assert found[name] is None
    assert found["spread"] is None and not found["busy"]


def test_a_busy_machine_shows_in_the_spread() -> None:
    found = summarise([make_sample(repetition=r, total_s=2.0 + r) for r in range(5)], random_weights=False)
    assert found["busy"] and found["spread"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("kind", "answer", "right", "wrong"),
    [
        ("exact", "102", " 102\n", "1020"),
        ("contains", "Lisbon", "It is lisbon.", "Porto"),
        ("number", 1200, "3 * 400\n1,200", "1200 or 7"),
        ("output", "a 3\nb 1", "```\na 3\nb 1\n```", "a 3"),
        ("json", {"a": [1, True]}, '```json\n{"a": [1, true]}\n```', '{"a": [1]}'),
        ("python", "f", "```python\ndef f(x):\n    return x\n```", "def f(x:"),
    ],
)
def test_checks(kind: str, answer: object, right: str, wrong: str) -> None:
    assert is_right(right, Check(kind, answer)) and not is_right(wrong, Check(kind, answer))


def test_profiles() -> None:
    assert {"chat", "code", "math", "json", "long", "fixed", "demo"} <= set(names())
    profiles = [load(name) for name in names()]
    assert all(each.prompts and len({p.id for p in each.prompts}) == len(each.prompts) for each in profiles)
    assert len({each.hash for each in profiles}) == len(profiles)
    fixed = load("fixed")
    assert (fixed.mode, fixed.steps, fixed.prompt_tokens, fixed.max_tokens) == ("fixed", 16, 1024, 1024)
