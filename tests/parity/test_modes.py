"""Autoregressive decoding against transformers' encoder and head, and verified decoding against autoregressive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from dgemma.autoregressive import Autoregressive
from dgemma.backend import Backend, Context, DenoiseJob, EncodeJob, Job, Prediction
from dgemma.drafting import AutoSteps, FixedSteps
from dgemma.engine import Engine, Request, StopTokens
from dgemma.events import Block, Finish
from dgemma.noise import Noise
from dgemma.schedule import ConstantTemperature, Denoising, EntropyBound, StableAndConfident
from dgemma.stats import Stats
from dgemma.verified import Verified
from tests.parity.oracle import Ids, Oracle
from tests.parity.support import TOLERANCE, edge_distance, encode, gap, prompt
from tests.parity.tiny import WINDOW

RULES = Denoising(ConstantTemperature(0.5), EntropyBound(0.1), StableAndConfident(None, None), steps=3)
PROMPTS = 50
TOKENS, LENGTH = 20, 8
ADVERSARIES: tuple[Callable[[int, int], bool], ...] = (
    lambda place, position: True,
    lambda place, position: False,
    lambda place, position: place == LENGTH - 1,
    lambda place, position: position % 5 == 2,
)


def request(index: int, max_tokens: int = TOKENS, **changes: object) -> Request:
    """Prompts from well below the window to well above it, so that answers cross its edge."""
    each = Request(prompt(2 + index, index).tolist(), max_tokens, RULES, seed=index, canvas_length=LENGTH)
    return replace(each, **changes)  # type: ignore[arg-type]


def answers(backend: Backend, requests: Sequence[Request]) -> list[tuple[list[int], str, Stats]]:
    tokens: list[list[int]] = [[] for _ in requests]
    ends: dict[int, Finish] = {}
    for event in Engine(backend).stream(requests):
        if isinstance(event, Block):
            tokens[event.handle] += event.tokens
        elif isinstance(event, Finish):
            ends[event.handle] = event
    return [(each, ends[handle].reason, ends[handle].stats) for handle, each in enumerate(tokens)]


class Adversary:
    """A backend whose drafts are given texts, each spoilt by its adversary; causal passes are the real ones."""

    def __init__(self, inner: Backend, texts: Sequence[Sequence[int]]) -> None:
        self.name, self.device, self.dtype, self.config = inner.name, inner.device, inner.dtype, inner.config
        self.inspect, self.memory = inner.inspect, inner.memory
        self._inner, self._texts = inner, texts
        self._contexts: list[Context] = []

    def open(self) -> Context:
        self._contexts.append(self._inner.open())
        return self._contexts[-1]

    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        causal = [job for job in jobs if not isinstance(job, DenoiseJob)]
        results = iter(self._inner.forward(causal) if causal else ())
        return [self._draft(job) if isinstance(job, DenoiseJob) else next(results) for job in jobs]

    def _draft(self, job: DenoiseJob) -> Prediction:
        index = next(i for i, context in enumerate(self._contexts) if context is job.context)
        place, size, spoil = job.context.length, job.tokens.size, ADVERSARIES[index % len(ADVERSARIES)]
        right = np.array((list(self._texts[index][place:]) + [0] * size)[:size], np.int32)
        wrong = np.array([spoil(offset, place + offset) for offset in range(size)])
        drafted = np.where(wrong, (right + 1) % self.config.vocab_size, right).astype(np.int32)
        return Prediction(drafted, drafted, np.zeros(size, np.float32), np.ones(size, np.float32))


@pytest.mark.parametrize("length", (5, WINDOW - 2, 2 * WINDOW))
@pytest.mark.parametrize("temperature", (0.0, 0.7))
def test_autoregressive_steps_equal_the_reference(
    backend: Backend, oracle: Oracle, length: int, temperature: float
) -> None:
    """The tokens come from our loop; at each of them the reference's logits must agree with the choice."""
    each = Request(prompt(length).tolist(), 12, RULES, seed=3, mode=Autoregressive(temperature))
    [(tokens, _, _)] = answers(backend, [each])
    ours, theirs = backend.open(), oracle.open()
    pending = prompt(length)
    for position, token in enumerate(tokens, length):
        hidden = theirs.encode(pending)[-1:]
        logits = oracle.head(hidden)
        assert gap(encode(backend, ours, pending)[-1:], hidden) <= TOLERANCE
        chosen = np.array([token], np.int32)
        if temperature:
            distance = edge_distance(logits, temperature, Noise(3).causal(position, 1), chosen)
            assert distance.max() <= TOLERANCE
        else:
            assert logits[0].max() - logits[0, token] <= TOLERANCE
        pending = chosen


def test_predictions_equal_the_reference(backend: Backend, oracle: Oracle) -> None:
    tokens: Ids = prompt(2 * WINDOW)
    logits = oracle.head(oracle.open().encode(tokens))
    [found] = backend.forward([EncodeJob(backend.open(), tokens, "all")])
    assert found is not None and np.array_equal(found.argmax, logits.argmax(-1))


@pytest.mark.parametrize("temperature", (0.0, 0.8))
def test_verified_equals_autoregressive_under_adversarial_drafts(backend: Backend, temperature: float) -> None:
    """Each prompt has its adversary; answers cross the window's edge, and every third ends inside a canvas."""
    plain = Autoregressive(temperature)
    free = [request(index, mode=plain) for index in range(PROMPTS)]
    texts = [tokens for tokens, _, _ in answers(backend, free)]
    requests = [
        replace(each, stop=StopTokens([text[index % TOKENS]])) if index % 3 == 0 else each
        for index, (each, text) in enumerate(zip(free, texts, strict=True))
    ]
    expected = [_until_stop(each, text) for each, text in zip(requests, texts, strict=True)]
    adversary = cast(Backend, Adversary(backend, [[*e.prompt, *t] for e, t in zip(free, texts, strict=True)]))
    mode = Verified(temperature, FixedSteps(1))
    found = answers(adversary, [replace(each, mode=mode) for each in requests])
    assert [each[:2] for each in found] == expected
    whole = LENGTH + 1
    lengths = {index: found[index][2].accepted_lengths for index in range(PROMPTS) if index % 3}
    assert {lengths[i] for i in lengths if i % 4 == 1} == {(whole, whole, TOKENS - 2 * whole)}
    assert {max(lengths[i]) for i in lengths if i % 4 == 0} == {2}
    assert {max(lengths[i]) for i in lengths if i % 4 == 2} == {LENGTH}


def _until_stop(each: Request, text: list[int]) -> tuple[list[int], str]:
    end = each.stop(text)
    return (text, "length") if end is None else (text[:end], "stop")


def test_real_drafts_and_mixed_modes_give_the_single_runs(backend: Backend) -> None:
    modes = (Autoregressive(), Verified(0.0, AutoSteps()), Verified(0.7, FixedSteps(2)), Autoregressive(0.7), None)
    requests = [request(20, 12, seed=5, mode=mode) for mode in modes]
    together = [found[:2] for found in answers(backend, requests)]
    assert [answers(backend, [each])[0][:2] for each in requests[:4]] == together[:4]
    assert together[0] == together[1] and together[2] == together[3]
