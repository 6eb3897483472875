from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgemma.autoregressive import Autoregressive
from dgemma.config import GenerationDefaults
from dgemma.errors import UsageError
from dgemma.schedule import (
    COLDEST,
    HOTTEST,
    ConstantTemperature,
    Denoising,
    EntropyBound,
    LinearTemperature,
    StableAndConfident,
)
from dgemma.settings import Settings
from dgemma.verified import Verified

DEFAULTS = GenerationDefaults(48, 0.4, 0.8, 0.1, 1, 0.005, (1, 106, 50), 0)
entropies = st.lists(st.floats(0, 13, width=32), min_size=1, max_size=40)
exact = st.lists(st.integers(0, 13 * 1024).map(lambda n: n / 1024), min_size=1, max_size=40)
bounds = st.floats(0, 60)


WRONG = [-1.0, -1e-40, 1e-320, 1e-40, 9e-4, 1001.0, 3.5e38, 1e308, math.inf, math.nan]


@pytest.mark.parametrize("value", WRONG)
def test_temperatures_that_float32_cannot_divide_by(value: float) -> None:
    for rule in (Settings, lambda temperature: Settings(temperature=temperature, mode="ar"), Autoregressive, Verified):
        with pytest.raises(UsageError, match=r"A temperature is 0 or 0\.001 to 1000"):
            rule(temperature=value)
    with pytest.raises(UsageError):
        ConstantTemperature(value)
    for pair in ((0.0, value), (value, value), (value, 1.0)):
        with pytest.raises(UsageError, match=r"0\.001 to 1000"):
            Settings(temperature_range=pair)


@pytest.mark.parametrize("value", [0.0, COLDEST, 1.0, HOTTEST])
def test_temperatures_up_to_the_limits(value: float) -> None:
    assert Settings(temperature=value).temperature == Verified(value).temperature == value
    logits = np.array([-30, 30], np.float32)
    for remaining in range(1, 49):
        found = LinearTemperature(0.0, max(value, COLDEST), 48)(remaining)
        assert np.isfinite(logits / np.float32(found)).all()


@pytest.mark.parametrize("value", [-1.0, 3.5e38, 1e308, math.inf, math.nan])
def test_entropy_bounds_that_are_no_float32(value: float) -> None:
    with pytest.raises(UsageError, match="float32"):
        EntropyBound(value)


def f32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def oracle(entropy: list[float], bound: float) -> list[bool]:
    """The entropy bound one position after the other, in plain floats."""
    accepted = [False] * len(entropy)
    total = 0.0
    for index in sorted(range(len(entropy)), key=lambda i: (entropy[i], i)):
        total += entropy[index]
        accepted[index] = f32(f32(total) - entropy[index]) <= f32(bound)
    return accepted


def accept(entropy: list[float], bound: float) -> list[bool]:
    return EntropyBound(bound)(np.array(entropy, dtype=np.float32)).tolist()


@given(entropies, bounds)
def test_entropy_bound_equals_the_oracle(entropy: list[float], bound: float) -> None:
    assert accept(entropy, bound) == oracle(entropy, bound)


@given(exact, bounds)
def test_at_least_one_position_is_accepted_and_the_most_certain_first(entropy: list[float], bound: float) -> None:
    accepted = accept(entropy, bound)
    kept = [h for h, a in zip(entropy, accepted, strict=True) if a]
    left = [h for h, a in zip(entropy, accepted, strict=True) if not a]
    assert kept and max(kept) <= min(left, default=math.inf)


@given(exact, bounds)
def test_accepted_positions_stay_within_the_bound(entropy: list[float], bound: float) -> None:
    kept = sorted(h for h, a in zip(entropy, accept(entropy, bound), strict=True) if a)
    assert sum(kept[:-1]) <= f32(bound)


@given(entropies, bounds, bounds)
def test_a_wider_bound_accepts_no_less(entropy: list[float], one: float, other: float) -> None:
    narrow, wide = accept(entropy, min(one, other)), accept(entropy, max(one, other))
    assert all(w or not n for n, w in zip(narrow, wide, strict=True))


@given(st.data(), st.sets(st.floats(0, 13, width=32), min_size=1, max_size=30), bounds)
def test_positions_do_not_matter_where_entropies_differ(
    data: st.DataObject, distinct: set[float], bound: float
) -> None:
    entropy = sorted(distinct)
    order = data.draw(st.permutations(range(len(entropy))))
    moved = accept([entropy[i] for i in order], bound)
    assert moved == [accept(entropy, bound)[i] for i in order]


def test_rounding_may_accept_a_position_behind_a_rejected_one() -> None:
    assert accept([1.0, 1e-38, 1e-38], 0.0) == oracle([1.0, f32(1e-38), f32(1e-38)], 0.0) == [True, True, False]


def test_equal_entropies_are_taken_in_order() -> None:
    assert accept([5.0] * 4, 0.1) == [True, False, False, False]
    assert accept([0.0] * 4, 0.0) == [True] * 4
    assert EntropyBound(0.1)(np.zeros(0, dtype=np.float32)).size == 0


def test_linear_temperature_starts_at_the_top_and_never_reaches_the_bottom() -> None:
    temperature = LinearTemperature(0.4, 0.8, 48)
    assert temperature(48) == pytest.approx(0.8)
    assert temperature(1) == pytest.approx(0.4 + 0.4 / 48)
    assert temperature(1) == float(np.float32(temperature(1)))
    assert ConstantTemperature(0.7)(1) == ConstantTemperature(0.7)(48) == 0.7


A, B = (np.array(ids, dtype=np.int32) for ids in ((1, 2), (1, 3)))
CERTAIN = np.zeros(2, dtype=np.float32)


@pytest.mark.parametrize(
    ("canvases", "stability", "stops"),
    [
        ([A, A, A, A], 0, [1, 1, 1, 1]),
        ([A, A, A, A], 1, [0, 1, 1, 1]),
        ([A, A, A, A], 2, [0, 0, 1, 1]),
        ([A, A, B, B, B], 0, [1, 1, 1, 1, 1]),
        ([A, A, B, B, B], 1, [0, 1, 0, 1, 1]),
        ([A, A, B, B, B], 2, [0, 0, 0, 0, 1]),
        ([A, B, A, B, A], 1, [0, 0, 0, 0, 0]),
        ([A, A, A, A], None, [0, 0, 0, 0]),
    ],
)
def test_when_a_canvas_is_stable(canvases: list[np.ndarray], stability: int | None, stops: list[int]) -> None:
    rule = StableAndConfident(stability, 0.005)
    assert [rule(canvases[: n + 1], CERTAIN) for n in range(len(canvases))] == [bool(stop) for stop in stops]


def test_confidence_is_the_mean_entropy_strictly_below_the_threshold() -> None:
    entropy = np.array([0.0, 0.5], dtype=np.float32)
    assert not StableAndConfident(0, 0.25)([A], entropy)
    assert StableAndConfident(0, 0.2501)([A], entropy)
    assert not StableAndConfident(0, None)([A], CERTAIN)


def test_defaults_come_from_the_checkpoint() -> None:
    denoising = Denoising.from_defaults(DEFAULTS)
    expected = Denoising(LinearTemperature(0.4, 0.8, 48), EntropyBound(0.1), StableAndConfident(1, 0.005), 48)
    assert denoising == expected


def test_overrides_replace_single_settings() -> None:
    changed = Denoising.from_defaults(
        DEFAULTS, steps=8, entropy_bound=0.0, temperature_range=(0.1, 1.0), stability=0, confidence=0.5
    )
    assert changed == Denoising(LinearTemperature(0.1, 1.0, 8), EntropyBound(0.0), StableAndConfident(0, 0.5), 8)
    assert Denoising.from_defaults(DEFAULTS, temperature=0.7).temperature == ConstantTemperature(0.7)
    assert Denoising.from_defaults(DEFAULTS, early_stop=False).stop == StableAndConfident(None, None)


def test_temperature_zero_changes_only_the_sampling() -> None:
    greedy, default = Denoising.from_defaults(DEFAULTS, temperature=0), Denoising.from_defaults(DEFAULTS)
    assert greedy.greedy and not default.greedy
    assert (greedy.temperature, greedy.accept, greedy.stop) == (default.temperature, default.accept, default.stop)


@pytest.mark.parametrize(
    "overrides",
    [
        {"steps": 0},
        {"entropy_bound": -0.1},
        {"entropy_bound": math.nan},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature_range": (0.8, 0.4)},
        {"temperature_range": (0.0, 0.0)},
        {"temperature": 0.5, "temperature_range": (0.4, 0.8)},
        {"stability": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(overrides: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Denoising.from_defaults(DEFAULTS, **overrides)
