"""The decoding loop, decision for decision: recorded steps of the reference's generate through our passes and rules.

Every step starts from the recorded canvas and the recorded samples; the self-conditioning signal is our own, left by
the step before. A random model multiplies float noise by about three per step through that signal, and a canvas starts
without one: the allowed difference of the logits grows by that factor from step to step up to a limit, while every
decision must be equal at every step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dgemma.backend import Backend, Context, DenoiseJob, EncodeJob, Prediction
from dgemma.canvas import Canvas
from dgemma.schedule import Denoising, EntropyBound, LinearTemperature, StableAndConfident
from tests.parity.conftest import Folders
from tests.parity.oracle import Floats, Oracle, Recipe, Recording, Step, record
from tests.parity.support import gap, open_cpu, prepared
from tests.parity.tiny import Variant

GROWTH, FIRST_TOLERANCE, LAST_TOLERANCE = 3.0, 5e-5, 2e-2
COPYING = Variant(quietness=0.05, loudness=2.0)
SHARP = Recipe(20, 64, steps=8, entropy_bound=3.0, confidence_threshold=0.25, t_min=0.2, t_max=0.4)
CASES = {
    "tight-bound": (Variant(), Recipe(steps=3)),
    "wide-bound": (Variant(), Recipe(steps=3, entropy_bound=12.0)),
    "many-accepted": (COPYING, Recipe(20, 64, steps=8, entropy_bound=1.0)),
    "stops-early": (COPYING, SHARP),
    "stops-without-stability": (COPYING, replace(SHARP, stability_threshold=0, confidence_threshold=0.3, seed=1)),
    "stops-after-two-equal": (COPYING, replace(SHARP, stability_threshold=2, confidence_threshold=0.5, seed=2)),
}


@pytest.fixture(scope="module")
def recordings(folders: Folders) -> dict[str, Recording]:
    oracles = {variant: Oracle(folders(variant)) for variant in (Variant(), COPYING)}
    return {case: record(oracles[variant], recipe) for case, (variant, recipe) in CASES.items()}


def test_the_recordings_cover_the_rules(recordings: dict[str, Recording]) -> None:
    steps = [step for recording in recordings.values() for steps in recording.canvases for step in steps]
    assert len(steps) >= 100
    assert {1, 3, 8, 16} <= {int(step.accepted.sum()) for step in steps}
    for case in ("stops-early", "stops-without-stability", "stops-after-two-equal"):
        lengths = [len(steps) for steps in recordings[case].canvases]
        assert min(lengths) < recordings[case].recipe.steps


@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_replay(case: str, recordings: dict[str, Recording], folders: Folders, name: str) -> None:
    recording = recordings[case]
    backend = open_cpu(name, folders(CASES[case][0]))
    denoising = _denoising(recording.recipe)
    looking, deciding = prepared(backend, recording.prompt), prepared(backend, recording.prompt)
    committed = []
    for index, steps in enumerate(recording.canvases):
        canvas = Canvas.noise(steps[0].canvas, index, denoising.steps)
        looking.start_canvas()
        deciding.start_canvas()
        for number, step in enumerate(steps):
            following = steps[number + 1] if number + 1 < len(steps) else step
            _check_logits(backend, looking, step, denoising, number)
            canvas = _check_decisions(backend, deciding, canvas, step, following, denoising)
        assert canvas.finished
        committed.append(canvas.committed())
        for context in (looking, deciding):
            backend.forward([EncodeJob(context, canvas.committed())])
    assert np.array_equal(np.concatenate(committed), recording.committed)


def _check_logits(backend: Backend, context: Context, step: Step, denoising: Denoising, number: int) -> None:
    temperature = denoising.temperature(step.remaining)
    logits: Floats = backend.inspect(DenoiseJob(context, step.canvas, temperature)).logits
    allowed = min(FIRST_TOLERANCE * GROWTH**number, LAST_TOLERANCE)
    assert gap(logits / np.float32(temperature), step.logits) <= allowed / temperature


def _check_decisions(
    backend: Backend, context: Context, canvas: Canvas, step: Step, following: Step, denoising: Denoising
) -> Canvas:
    """One step of our loop from the recorded canvas; the recorded samples stand in for ours."""
    assert canvas.remaining == step.remaining
    assert np.array_equal(canvas.tokens, step.canvas)
    [ours] = backend.forward([DenoiseJob(context, canvas.tokens, denoising.temperature(canvas.remaining))])
    assert ours is not None
    prediction = Prediction(step.sampled, ours.argmax, ours.entropy, ours.margin)
    moved = canvas.advance(prediction, renoise=following.canvas, denoising=denoising)
    assert np.array_equal(moved.argmax, step.argmax)
    assert np.array_equal(moved.accepted, step.accepted)
    assert moved.converged == step.stop
    if following is not step:
        assert np.array_equal(moved.tokens[moved.accepted], following.canvas[moved.accepted])
    return moved


def _denoising(recipe: Recipe) -> Denoising:
    return Denoising(
        temperature=LinearTemperature(recipe.t_min, recipe.t_max, recipe.steps),
        accept=EntropyBound(recipe.entropy_bound),
        stop=StableAndConfident(recipe.stability_threshold, recipe.confidence_threshold),
        steps=recipe.steps,
    )
