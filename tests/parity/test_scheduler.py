"""The denoising rules against those of transformers, decision for decision."""

from __future__ import annotations

import numpy as np
import pytest

from dgemma.schedule import EntropyBound, LinearTemperature, StableAndConfident, mean

torch = pytest.importorskip("torch", reason="needs torch")
generation = pytest.importorskip(
    "transformers.models.diffusion_gemma.generation_diffusion_gemma",
    reason="needs a transformers release with DiffusionGemma",
)

LENGTH, VOCAB = 256, 32


def logits(seed: int, scale: float) -> torch.Tensor:
    """Positions from nearly certain to undecided, as in the middle of a canvas."""
    generator = torch.Generator().manual_seed(seed)
    sharpness = torch.rand(1, LENGTH, 1, generator=generator) ** 2 * scale
    return torch.randn(1, LENGTH, VOCAB, generator=generator) * sharpness


def entropy_of(scores: torch.Tensor) -> np.ndarray:
    return torch.distributions.Categorical(logits=scores).entropy()[0].numpy()


@pytest.mark.parametrize("bound", [0.005, 0.1, 1.0, 12.0, 300.0])
@pytest.mark.parametrize("scale", [2.0, 20.0, 70.0])
def test_the_same_positions_are_accepted(bound: float, scale: float) -> None:
    config = generation.EntropyBoundSamplerConfig(entropy_bound=bound)
    sampler = generation.EntropyBoundSampler(config, LENGTH, VOCAB, 48)
    canvas = torch.zeros(1, LENGTH, dtype=torch.long)
    for seed in range(8):
        scores = logits(seed, scale)
        sampler.accept_canvas(canvas, canvas, scores, 1)
        assert np.array_equal(EntropyBound(bound)(entropy_of(scores)), sampler.accepted_token_mask[0].numpy())


@pytest.mark.parametrize(("t_min", "t_max"), [(0.4, 0.8), (0.1, 1.0), (0.3, 0.7)])
def test_temperatures_are_the_same_numbers(t_min: float, t_max: float) -> None:
    for steps in (1, 2, 7, 16, 48, 64):
        reference = generation.LinearTemperatureScheduleLogitsProcessor(t_min, t_max, steps)
        temperature = LinearTemperature(t_min, t_max, steps)
        for remaining in range(1, steps + 1):
            scores = torch.linspace(-30, 30, 97)
            divided = reference(None, scores, cur_step=torch.tensor(remaining, dtype=torch.int32))
            assert np.array_equal(scores.numpy() / np.float32(temperature(remaining)), divided.numpy())


@pytest.mark.parametrize("stability", [0, 1, 2, 3])
def test_generation_stops_at_the_same_step(stability: int) -> None:
    generator = np.random.default_rng(stability)
    confidence = 1.0
    reference = generation.StableAndConfidentStoppingCriteria(stability, confidence)
    rule = StableAndConfident(stability, confidence)
    fired = 0
    for _ in range(6):
        reference.reset()
        canvases: list[np.ndarray] = []
        for _ in range(12):
            canvases.append(np.full(LENGTH, generator.integers(2), dtype=np.int32))
            scores = logits(int(generator.integers(1000)), 70.0) * float(generator.uniform(0.2, 2))
            entropy = entropy_of(scores)
            assert abs(mean(entropy) - confidence) > 1e-5, "too close to call"
            expected = reference(torch.from_numpy(canvases[-1])[None].long(), scores)
            assert rule(canvases, entropy) == bool(expected[0])
            fired += bool(expected[0])
    assert fired, "a test of a rule that never fires"
