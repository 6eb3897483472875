"""The quality page: what is measured once is not measured again, and which guards its rule picks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quality import Rows, best, page
from dgemma.quality import GUARDS, Guards

TASKS = ["add", "sort"]
EAGER, CALM, LAX = Guards(1, 0.5, 8), Guards(2, 0.1, 16), Guards(3, 0.01, 32)
MEASURED = {None: (0.9, 20.0), EAGER: (0.7, 5.0), CALM: (0.89, 10.0), LAX: (0.9, 15.0)}


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    found = Rows(tmp_path / "rows.jsonl", {"weights": "a", "prompts": 5})
    for guards, (right, steps) in MEASURED.items():
        for task in TASKS:
            found.add(guards, task, right=right, steps=steps)
    return found


def test_rows_are_read_back_for_the_same_model_and_count_only(rows: Rows, tmp_path: Path) -> None:
    again = Rows(tmp_path / "rows.jsonl", {"weights": "a", "prompts": 5})
    assert all(again.get(guards, task) is not None for guards in MEASURED for task in TASKS)
    assert again.get(Guards(9, 0.5, 8), "add") is None and again.get(None, "count") is None
    for other in ({"weights": "b", "prompts": 5}, {"weights": "a", "prompts": 6}):
        assert Rows(tmp_path / "rows.jsonl", other).get(None, "add") is None


@pytest.mark.parametrize(("loss", "expected"), [(0.0, LAX), (0.02, CALM), (0.3, EAGER)])
def test_the_rule(rows: Rows, loss: float, expected: Guards) -> None:
    assert best(rows, [EAGER, CALM, LAX], TASKS, loss) == expected
    assert best(rows, [EAGER], TASKS, 0.0) is None


def test_the_page_names_what_the_rule_would_choose(rows: Rows) -> None:
    for guards in GUARDS.values():
        for task in TASKS:
            rows.add(guards, task, right=0.5, steps=4.0)
    about = {"model": "m", "prompts": 5, "backend": "mlx"}
    text = page(rows, [*GUARDS.values(), CALM, LAX], TASKS, about)
    assert "| mean | 0.900, 20.0 | 0.500, 4.0 |" in text
    assert "`balanced` is not: by the rule it would be 3 steps, 0.01 nats, 32." in text
    assert "`fast` is not: by the rule it would be 2 steps, 0.1 nats, 16." in text
