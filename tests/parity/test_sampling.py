"""What a pass says about its positions, against float64 arithmetic on the logits that the same backend shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dgemma.backend import Backend, DenoiseJob, EncodeJob, Prediction
from tests.parity import tiny
from tests.parity.conftest import Folders
from tests.parity.oracle import Floats
from tests.parity.support import canvas, edge_distance, entropies, gap, open_cpu, prepared, probabilities, prompt
from tests.parity.support import uniforms as random_uniforms
from tests.parity.tiny import CANVAS, Tensors

VOCAB = 5003
EDGE = 1e-5
ENTROPY_TOLERANCE = 3e-5
ALMOST_ONE = np.float32(1 - 2**-24)
PEAK = 4321


@pytest.fixture(scope="module")
def wide(name: str, folders: Folders) -> Backend:
    """A vocabulary that no block size divides, and logits loud enough for both sharp and flat rows."""
    return open_cpu(name, folders(tiny.Variant(vocab=VOCAB, loudness=4.0)))


def _shaped(name: str, folders: Folders, target: Path, change: Callable[[Tensors], None]) -> Backend:
    return open_cpu(name, tiny.edit(folders(tiny.Variant(vocab=VOCAB)), target, change))


def _step(backend: Backend, numbers: Floats | None, temperature: float) -> tuple[Floats, Prediction]:
    """Logits and prediction of the first step behind the same prompt."""
    tokens = canvas(1)
    logits = backend.inspect(DenoiseJob(prepared(backend, prompt(9)), tokens, temperature)).logits
    [prediction] = backend.forward([DenoiseJob(prepared(backend, prompt(9)), tokens, temperature, numbers)])
    assert prediction is not None
    return logits, prediction


@pytest.mark.parametrize("temperature", (0.1, 0.4, 0.8, 1.0, 2.5))
@pytest.mark.parametrize("seed", (0, 1))
def test_the_sample_inverts_the_cdf(wide: Backend, temperature: float, seed: int) -> None:
    numbers = random_uniforms(CANVAS, seed)
    logits, prediction = _step(wide, numbers, temperature)
    assert np.abs(logits).max() > 10
    assert edge_distance(logits, temperature, numbers, prediction.sampled).max() <= EDGE


def test_numbers_at_the_ends_stay_inside_the_support(wide: Backend) -> None:
    """0 gives the first id that has mass, the largest number below 1 one of the last."""
    for number in (np.float32(0), ALMOST_ONE):
        numbers = np.full(CANVAS, number, np.float32)
        logits, prediction = _step(wide, numbers, 0.1)
        p = probabilities(logits, 0.1)
        assert edge_distance(logits, 0.1, numbers, prediction.sampled).max() <= EDGE
        assert (p[np.arange(CANVAS), prediction.sampled] > 0).all()
        assert ((prediction.sampled >= 0) & (prediction.sampled < VOCAB)).all()


def test_temperature_divides_softcapped_logits(wide: Backend) -> None:
    """Entropy and argmax follow cap(logits) / T, not cap(logits / T)."""
    logits, prediction = _step(wide, None, 0.4)
    other = 30 * np.tanh(np.arctanh(logits.astype(np.float64) / 30) / 0.4)
    assert gap(prediction.entropy, entropies(logits, 0.4)) <= ENTROPY_TOLERANCE
    assert gap(prediction.entropy, entropies(other, 1.0)) > 0.1
    assert np.array_equal(prediction.sampled, logits.argmax(-1))


@pytest.mark.parametrize("temperature", (0.1, 0.41, 0.8, 1.7))
def test_entropy_equals_float64(wide: Backend, temperature: float) -> None:
    logits, prediction = _step(wide, None, temperature)
    assert gap(prediction.entropy, entropies(logits, temperature)) <= ENTROPY_TOLERANCE


@pytest.mark.parametrize("temperature", (0.4, 1.7))
def test_the_margin_is_that_of_the_softcapped_logits(wide: Backend, temperature: float) -> None:
    logits, prediction = _step(wide, None, temperature)
    second, first = np.sort(logits.astype(np.float64))[:, -2:].T
    assert gap(prediction.margin, (first - second) / np.maximum(np.abs(first), np.abs(second))) <= 1e-5
    assert prediction.margin.min() > 0


def test_flat_logits(name: str, folders: Folders, tmp_path: Path) -> None:
    """All ids equally likely: the id is floor(u V), the entropy log V, the argmax the lowest id."""

    def flatten(tensors: Tensors) -> None:
        tensors["model.decoder.norm.weight"].zero_()

    numbers = random_uniforms(CANVAS)
    numbers[:2] = 0, ALMOST_ONE
    logits, prediction = _step(_shaped(name, folders, tmp_path / "flat", flatten), numbers, 0.5)
    assert not logits.any()
    assert edge_distance(logits, 0.5, numbers, prediction.sampled).max() <= EDGE
    assert gap(prediction.entropy, np.full(CANVAS, np.log(VOCAB))) <= ENTROPY_TOLERANCE
    assert not prediction.argmax.any() and not prediction.margin.any()


def test_one_hot_logits(name: str, folders: Folders, tmp_path: Path) -> None:
    """One of two ids holds all the mass of a row, by the sign of the row's first hidden unit; the other holds none."""

    def point(tensors: Tensors) -> None:
        unit = torch.zeros_like(tensors["model.decoder.norm.weight"])
        unit[0] = 1e4
        tensors["model.decoder.norm.weight"] = unit
        tensors["model.decoder.embed_tokens.weight"][:, 0] = 0
        tensors["model.decoder.embed_tokens.weight"][[PEAK - 1, PEAK], 0] = torch.tensor([-1.0, 1.0])

    backend = _shaped(name, folders, tmp_path / "one-hot", point)
    for number in (np.float32(0.0), np.float32(0.5), ALMOST_ONE):
        logits, prediction = _step(backend, np.full(CANVAS, number, np.float32), 0.1)
        peak = np.where(logits[:, PEAK] > 0, PEAK, PEAK - 1)
        assert (logits[np.arange(CANVAS), peak] > 29).all()
        assert np.array_equal(prediction.argmax, peak)
        assert np.array_equal(prediction.sampled, peak)
        assert gap(prediction.entropy, np.zeros(CANVAS)) <= ENTROPY_TOLERANCE


def test_ties_go_to_the_lowest_id(name: str, folders: Folders, tmp_path: Path) -> None:
    """Logits loud enough to saturate the cap tie at exactly 30."""

    def saturate(tensors: Tensors) -> None:
        tensors["model.decoder.norm.weight"].mul_(1e4)

    logits, prediction = _step(_shaped(name, folders, tmp_path / "ties", saturate), None, 0.8)
    assert ((logits == logits.max(-1, keepdims=True)).sum(-1) > 1).all()
    assert np.array_equal(prediction.argmax, logits.argmax(-1)) and not prediction.margin.any()


def test_samples_follow_the_softmax(backend: Backend) -> None:
    """Behind equal tokens the causal pass has equal states, so many positions draw from one distribution."""
    rows, temperature = 128, 0.6
    tokens = np.full(rows, 77, np.int32)
    logits = backend.inspect(EncodeJob(backend.open(), tokens)).logits
    assert gap(logits[0], logits[-1]) < 1e-3
    jobs = [EncodeJob(backend.open(), tokens, "all", temperature, random_uniforms(rows, seed)) for seed in range(24)]
    sampled = np.concatenate([prediction.sampled for prediction in backend.forward(jobs) if prediction is not None])
    counts = np.bincount(sampled, minlength=tiny.VOCAB)
    statistic, freedom = _chi_square(counts, len(sampled) * probabilities(logits[0], temperature))
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def _chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Pearson's statistic over cells of at least five expected draws (rarer ids share one), and its freedom."""
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    return float(((observed - wanted) ** 2 / wanted).sum()), len(wanted) - 1
