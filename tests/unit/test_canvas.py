from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dgemma.backend import Prediction
from dgemma.canvas import Canvas
from dgemma.schedule import ConstantTemperature, Denoising, EntropyBound, StableAndConfident
from tests.unit.fake_backend import predict

SAMPLED, ARGMAX, NOISE, RENOISE, PIN = (np.full(6, base, dtype=np.int32) + np.arange(6, dtype=np.int32) for base in
                                        (100, 200, 300, 400, 500))  # fmt: skip


def denoising(bound: float = 0.1, steps: int = 3, stability: int | None = 1) -> Denoising:
    return Denoising(ConstantTemperature(1.0), EntropyBound(bound), StableAndConfident(stability, 0.01), steps)


def prediction(*entropy: float, argmax: np.ndarray = ARGMAX) -> Prediction:
    return replace(predict(argmax, sampled=SAMPLED), entropy=np.array(entropy, dtype=np.float32))


def test_accepted_positions_take_the_sample_and_the_others_fresh_noise() -> None:
    canvas = Canvas.noise(NOISE, 0, 3).advance(prediction(9, 0.05, 9, 0.01, 9, 9), RENOISE, denoising())
    assert canvas.accepted.tolist() == [True, True, False, True, False, False]
    assert canvas.tokens.tolist() == [100, 101, 402, 103, 404, 405]
    assert canvas.argmax.tolist() == canvas.committed().tolist() == ARGMAX.tolist()
    assert (canvas.step, canvas.remaining, canvas.converged) == (1, 2, False)


def test_a_position_accepted_once_is_renoised_when_the_next_step_rejects_it() -> None:
    canvas = Canvas.noise(NOISE, 0, 3).advance(prediction(0.2, 9, 9, 9, 9, 9), RENOISE, denoising())
    assert canvas.tokens.tolist() == [100, 401, 402, 403, 404, 405]
    canvas = canvas.advance(prediction(9, 0.2, 9, 9, 9, 9), RENOISE, denoising())
    assert canvas.tokens.tolist() == [400, 101, 402, 403, 404, 405]


def test_pins_are_never_touched_and_count_for_nothing() -> None:
    pins = {0: 7, 2: 8}
    canvas = Canvas.noise(NOISE, 0, 3, pins)
    assert canvas.tokens.tolist() == [7, 301, 8, 303, 304, 305]
    canvas = canvas.advance(prediction(0, 0.2, 99, 3, 3, 0.1), RENOISE, denoising(0.15))
    assert canvas.accepted.tolist() == [False, True, False, False, False, True]
    assert canvas.tokens.tolist() == [7, 101, 8, 403, 404, 105]
    assert canvas.committed().tolist() == [7, 201, 8, 203, 204, 205]
    assert canvas.mean_entropy == np.float32(6.3 / 4)
    assert canvas.changed.tolist() == [False, True, False, True, True, True]


def test_changing_argmaxes_under_pins_do_not_disturb_stability() -> None:
    canvas = Canvas.noise(NOISE, 0, 3, {0: 7})
    for first in (1, 2):
        argmax = np.where(np.arange(6) == 0, first, ARGMAX).astype(np.int32)
        canvas = canvas.advance(prediction(50, 0, 0, 0, 0, 0, argmax=argmax), RENOISE, denoising())
    assert canvas.converged and canvas.step == 2


def test_a_fully_pinned_canvas_is_finished_at_once() -> None:
    canvas = Canvas.noise(NOISE, 0, 3, dict(enumerate(PIN.tolist())))
    assert canvas.finished and canvas.converged and canvas.step == 0
    assert canvas.committed().tolist() == PIN.tolist()


def test_a_warm_start_lies_over_the_noise_and_under_the_pins() -> None:
    canvas = Canvas.noise(NOISE, 0, 3, {1: 7}, start=(1, 2, 3))
    assert canvas.tokens.tolist() == [1, 7, 3, 303, 304, 305]
    assert canvas.pinned.tolist() == [False, True, False, False, False, False]


def test_advancing_leaves_the_old_canvas_as_it_was() -> None:
    canvas = Canvas.noise(NOISE, 0, 3)
    canvas.advance(prediction(0, 0, 0, 0, 0, 0), RENOISE, denoising())
    assert canvas.tokens.tolist() == NOISE.tolist() and canvas.step == 0 and not canvas.history


@given(st.integers(1, 8), st.integers(0, 3), st.lists(st.integers(0, 1), min_size=8, max_size=8))
def test_every_canvas_ends_within_the_cap(steps: int, stability: int, script: list[int]) -> None:
    rules, canvas = denoising(steps=steps, stability=stability), Canvas.noise(NOISE, 0, steps)
    seen: list[int] = []
    while not canvas.finished:
        seen.append(script[canvas.step])
        canvas = canvas.advance(prediction(*[0.0] * 6, argmax=ARGMAX + seen[-1]), RENOISE, rules)
    stable = next((n + 1 for n in range(8) if n >= stability and len(set(script[n - stability : n + 1])) == 1), 99)
    assert canvas.step == min(steps, stable)
    assert canvas.converged == (stable <= steps)
