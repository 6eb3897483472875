"""The guards around the stop rule."""

from __future__ import annotations

import numpy as np
import pytest

from dgemma.config import GenerationDefaults
from dgemma.errors import UsageError
from dgemma.quality import GUARDS, Plateau, UntilEnd, guarded
from dgemma.schedule import Denoising, LinearTemperature, StableAndConfident
from dgemma.settings import Settings
from tests.unit.test_engine import denoising
from tiny_folder import generation_dict

DEFAULTS = GenerationDefaults.from_dict(generation_dict())
RULE = StableAndConfident(1, 0.1)


def canvases(*rows: list[int]) -> list[np.ndarray]:
    return [np.array(row, np.int32) for row in rows]


def entropy(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_reference_changes_nothing() -> None:
    each = denoising()
    assert guarded(each, None, [1]) is each and guarded(each, "reference", [1]) is each
    assert Settings(quality="reference").denoising(DEFAULTS) == Settings().denoising(DEFAULTS)
    with pytest.raises(UsageError, match="Unknown quality"):
        guarded(each, "best", [1])


def test_what_stands_behind_a_stable_end_does_not_count() -> None:
    rule = UntilEnd(RULE, [9])
    sure = entropy(0, 0, 5, 5)
    assert rule(canvases([1, 9, 3, 4], [1, 9, 5, 6]), sure)
    assert not RULE(canvases([1, 9, 3, 4], [1, 9, 5, 6]), sure)
    assert not rule(canvases([1, 9, 3, 4]), sure)
    assert not rule(canvases([9, 1, 3, 4], [1, 9, 5, 6]), sure)
    assert not rule(canvases([2, 9, 3, 4], [1, 9, 5, 6]), sure)
    assert not rule(canvases([1, 9, 3, 4], [1, 9, 5, 6]), entropy(0, 5, 0, 0))
    assert not rule(canvases([1, 2, 3, 4], [1, 2, 3, 4]), sure)


def test_a_pinned_canvas_is_judged_whole() -> None:
    assert not UntilEnd(RULE, [9])(canvases([1, 9, 3], [1, 9, 4]), entropy(0, 0))


def test_a_plateau_ends_a_canvas_that_no_longer_changes() -> None:
    rule = Plateau(RULE, steps=2, bound=0.5)
    assert rule(canvases([1], [1], [1]), entropy(0.4)) and not rule(canvases([1], [1], [1]), entropy(0.6))
    assert not rule(canvases([1], [1]), entropy(0.4)) and not rule(canvases([2], [1], [1]), entropy(0.4))
    assert rule(canvases([1], [1]), entropy(0.05))
    with pytest.raises(UsageError):
        Plateau(RULE, steps=0, bound=0.5)


@pytest.mark.parametrize("name", GUARDS)
def test_settings_compose_with_the_callers(name: str) -> None:
    found = Settings(quality=name, steps=40).denoising(DEFAULTS)
    assert found.steps == GUARDS[name].steps
    assert found.temperature == LinearTemperature(0.4, 0.8, GUARDS[name].steps)
    assert Settings(quality=name, steps=4).denoising(DEFAULTS).steps == 4
    constant = Settings(quality=name, temperature=0.3).denoising(DEFAULTS)
    assert isinstance(constant, Denoising) and constant.temperature(1) == 0.3
