"""Autoregressive, verified and hybrid decoding on a fake backend whose causal model is a hash of the tokens so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgemma.autoregressive import Autoregressive
from dgemma.backend import DenoiseJob, EncodeJob, Prediction
from dgemma.drafting import AutoSteps, DraftSteps, FixedSteps, Round
from dgemma.engine import Engine, Request, StopTokens
from dgemma.errors import DgemmaError, UsageError
from dgemma.events import Block, Draft, Event
from dgemma.noise import Noise
from dgemma.session import Session
from dgemma.speculative import Moment
from dgemma.verified import AnyOf, Hybrid, Unsettled, Verified, WhileThinking
from tests.unit.fake_backend import FakeBackend, FakeContext, Script, context, next_token, predict
from tests.unit.test_engine import blocks, denoising, finish, request, run, story

VOCAB = 64


def run_kept(backend: FakeBackend, each: Request) -> list[Event]:
    return list(Engine(backend).stream([each]))


def tokens(events: Sequence[Event], handle: int = 0) -> list[int]:
    return [token for block in blocks(events, handle) for token in block]


def outcome(backend: FakeBackend, each: Request) -> tuple[list[int], str]:
    events = run(backend, each)
    assert finish(events).stats.completion_tokens == len(tokens(events))
    return tokens(events), finish(events).reason


def continuation(prompt: Sequence[int], count: int, seed: int = 0, temperature: float = 0.0) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        uniform = float(Noise(seed).causal(len(ids), 1)[0]) if temperature else None
        ids.append(next_token(ids, uniform, VOCAB))
    return ids[len(prompt) :]


def drafter(spoil: Callable[[int, int], bool], temperature: float = 0.0, seed: int = 0) -> Script:
    """Drafts the causal model's continuation, wrong wherever `spoil(place, round)` says so."""

    def answer(owner: FakeContext, job: DenoiseJob) -> Prediction:
        right = continuation(owner.tokens, job.tokens.size, seed, temperature)
        return predict([(t + 1) % VOCAB if spoil(i, owner.canvases) else t for i, t in enumerate(right)])

    return answer


ADVERSARIES: dict[str, Callable[[int, int], bool]] = {
    "all wrong": lambda place, canvas: True,
    "all right": lambda place, canvas: False,
    "right until the last": lambda place, canvas: place == 3,
    "wrong at first": lambda place, canvas: place == 0,
    "wrong in the middle": lambda place, canvas: place == canvas % 4,
}


def test_one_token_a_pass() -> None:
    backend = FakeBackend()
    events = run(backend, request(max_tokens=5, mode=Autoregressive()))
    assert backend.shapes == ["e3", "e1", "e1", "e1", "e1"]
    assert tokens(events) == continuation((5, 6, 7), 5)
    assert [len(block) for block in blocks(events)] == [1] * 5
    stats = finish(events).stats
    assert (stats.canvases, stats.denoising_steps, stats.forwards, stats.completion_tokens) == (0, 0, 4, 5)
    assert stats.forwards_per_token == 4 / 5


def test_sampling_is_keyed_by_absolute_position() -> None:
    backend = FakeBackend()
    events = run(backend, request(max_tokens=4, seed=3, mode=Autoregressive(0.7)))
    assert tokens(events) == continuation((5, 6, 7), 4, seed=3, temperature=0.7)
    [job] = backend.passes[2]
    assert job.temperature == 0.7 and np.array_equal(job.uniforms, Noise(3).causal(5, 1))


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft_steps", [1, 3])
def test_verified_is_autoregressive_whatever_is_drafted(name: str, temperature: float, draft_steps: int) -> None:
    script = drafter(ADVERSARIES[name], temperature, seed=2)
    for budget in range(1, 12):
        plain = request(max_tokens=budget, seed=2)
        expected = outcome(FakeBackend(), replace(plain, mode=Autoregressive(temperature)))
        mode = Verified(temperature, FixedSteps(draft_steps))
        assert outcome(FakeBackend(script), replace(plain, mode=mode)) == expected


def test_a_right_draft_costs_its_steps_and_one_pass() -> None:
    backend = FakeBackend(drafter(ADVERSARIES["all right"]))
    events = run(backend, request(max_tokens=10, mode=Verified(0.0, FixedSteps(1))))
    assert backend.shapes == ["e3 d", "e4", "e1 d", "e4"]
    stats = finish(events).stats
    assert (stats.accepted_lengths, stats.forwards, stats.canvases) == ((5, 5), 4, 2)
    assert stats.forwards_per_token == 4 / 10


def test_a_wrong_draft_still_gives_two_tokens() -> None:
    events = run(
        FakeBackend(drafter(ADVERSARIES["all wrong"])), request(max_tokens=8, mode=Verified(0.0, FixedSteps(1)))
    )
    assert finish(events).stats.accepted_lengths == (2, 2, 2, 2)


class Close(FakeBackend):
    """Its causal predictions are near-ties wherever the next token would stand at one of `places`."""

    dtype = "bfloat16"
    places: tuple[int, ...] = ()

    def encode(self, job: EncodeJob) -> Prediction | None:
        found = super().encode(job)
        if found is None:
            return None
        next_places = context(job).length - found.margin.size + 1 + np.arange(found.margin.size)
        return replace(found, margin=np.where(np.isin(next_places, self.places), 0.01, 0.1).astype(np.float32))


@pytest.mark.parametrize("name", ADVERSARIES)
def test_near_ties_are_counted_where_they_stand_and_disagreements_are_not(name: str) -> None:
    def ties(dtype: str, temperature: float = 0.0) -> tuple[int, ...]:
        backend = Close(drafter(ADVERSARIES[name], temperature))
        backend.dtype, backend.places = dtype, (3, 4, 9, 12, 30)
        return finish(run(backend, request(max_tokens=10, mode=Verified(temperature, FixedSteps(1))))).stats.near_ties

    assert ties("bfloat16") == (0, 1, 6, 9)
    assert ties("float16") == ties("float32") == ties("bfloat16", temperature=0.5) == ()


def test_only_what_agreed_stays_in_the_cache() -> None:
    backend = FakeBackend(drafter(ADVERSARIES["right until the last"]))
    run(backend, request(max_tokens=8, mode=Verified(0.0, FixedSteps(1))))
    expected = [5, 6, 7, *continuation((5, 6, 7), 8)]
    assert backend.contexts[0].tokens == expected[:7] + expected[7 : len(backend.contexts[0].tokens)]
    assert backend.shapes == ["e3 d", "e4", "e1 d", "e4"]


class Forgetful(FakeContext):
    def truncate(self, length: int) -> bool:
        return False


def test_a_cache_that_cannot_roll_back_is_built_again_from_the_tokens() -> None:
    class Backend(FakeBackend):
        def open(self) -> FakeContext:
            self.contexts.append(Forgetful(self.config.sliding_window))
            return self.contexts[-1]

    backend = Backend(drafter(ADVERSARIES["wrong in the middle"]))
    plain = request(range(2, 12), 20)
    events = run(backend, replace(plain, mode=Verified(0.0, FixedSteps(1))), prefill_chunk=8)
    assert tokens(events) == continuation(range(2, 12), 20)
    assert len(backend.contexts) > 2 and all(context.closed for context in backend.contexts)


@pytest.mark.parametrize("place", range(9))
def test_a_stop_token_ends_both_alike(place: int) -> None:
    stop = StopTokens([continuation((5, 6, 7), 9)[place]])
    for script in map(drafter, ADVERSARIES.values()):
        plain = request(max_tokens=9, stop=stop)
        expected = outcome(FakeBackend(), replace(plain, mode=Autoregressive()))
        assert expected[1] == "stop"
        backend = FakeBackend(script)
        assert outcome(backend, replace(plain, mode=Verified(0.0, FixedSteps(1)))) == expected
        assert backend.contexts[0].length <= 3 + len(expected[0])


@pytest.mark.parametrize("length", range(57, 64))
def test_both_run_to_the_last_position(length: int) -> None:
    plain = request([2] * length, 99)
    expected = outcome(FakeBackend(), replace(plain, mode=Autoregressive()))
    assert len(expected[0]) == 64 - length and expected[1] == "length"
    for script in map(drafter, ADVERSARIES.values()):
        assert outcome(FakeBackend(script), replace(plain, mode=Verified(0.0, FixedSteps(2)))) == expected


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    for mode in (Autoregressive(), Verified()):
        with pytest.raises(UsageError, match="65 positions"):
            run(FakeBackend(), request([2] * 64, mode=mode))


def test_pins_and_wrong_temperatures_are_refused() -> None:
    for mode in (Autoregressive(), Verified(), Hybrid(lambda moment: True)):
        with pytest.raises(UsageError, match="pinned"):
            run(FakeBackend(), request(pins={0: 1}, mode=mode))
    with pytest.raises(UsageError, match="canvas to start"):
        run(FakeBackend(), request(warm_start=(1,), mode=Autoregressive()))
    for make in (Autoregressive, Verified):
        with pytest.raises(UsageError, match="temperature"):
            make(-1.0)


def test_a_warm_start_is_a_draft() -> None:
    backend = FakeBackend(lambda owner, job: predict(job.tokens))
    right = continuation((5, 6, 7), 8)
    events = run(backend, request(max_tokens=8, warm_start=right, mode=Verified(0.0, FixedSteps(1))))
    assert tokens(events) == right and finish(events).stats.accepted_lengths == (5, 3)


def test_causal_output_that_is_not_finite_is_an_error() -> None:
    class Broken(FakeBackend):
        def encode(self, job: Any) -> Any:
            found = super().encode(job)
            return found and replace(found, entropy=np.full_like(found.entropy, np.nan))

    for mode in (Autoregressive(), Verified()):
        with pytest.raises(DgemmaError, match="not finite"):
            run(Broken(), request(mode=mode))


def never(moment: Moment) -> bool:
    return False


def always(moment: Moment) -> bool:
    return moment.step == 0


any_mode = st.sampled_from(
    [None, Autoregressive(), Autoregressive(0.8), Verified(), Verified(0.8, FixedSteps(2)), Hybrid(Unsettled(0.1))]
)
any_request = st.builds(
    request,
    st.lists(st.integers(0, 63), min_size=1, max_size=20),
    st.integers(1, 30),
    seed=st.integers(0, 99),
    canvas_length=st.integers(1, 9),
    denoising=st.builds(denoising, st.integers(1, 6), st.integers(0, 2), st.booleans()),
    stop=st.builds(StopTokens, st.sets(st.integers(0, 63), max_size=4)),
    mode=any_mode,
)


@settings(max_examples=25)
@given(st.lists(any_request, min_size=1, max_size=4), st.integers(1, 12))
def test_modes_mixed_in_a_batch_give_their_single_runs(batch: list[Request], chunk: int) -> None:
    together = run(FakeBackend(), *batch, prefill_chunk=chunk)
    for handle, alone in enumerate(batch):
        single = run(FakeBackend(), alone)
        assert tokens(together, handle) == tokens(single)
        assert finish(together, handle).reason == finish(single).reason


@settings(max_examples=25)
@given(any_request, st.sampled_from([0.0, 0.7]), st.integers(1, 4), st.integers(1, 12))
def test_verified_is_autoregressive_for_any_request(each: Request, t: float, steps: int, chunk: int) -> None:
    expected = outcome(FakeBackend(), replace(each, mode=Autoregressive(t)))
    for draft_steps in (FixedSteps(steps), AutoSteps()):
        events = run(FakeBackend(), replace(each, mode=Verified(t, draft_steps)), prefill_chunk=chunk)
        assert (tokens(events), finish(events).reason) == expected


@settings(max_examples=15)
@given(any_request)
def test_a_hybrid_that_never_verifies_is_diffusion_and_one_that_always_does_is_verified(each: Request) -> None:
    each = replace(each, max_tokens=min(each.max_tokens, 64 - len(each.prompt) - 9))
    plain, hybrid = (run(FakeBackend(), replace(each, mode=mode)) for mode in (None, Hybrid(never)))
    assert story(plain)[:-1] == story(hybrid)[:-1] and finish(plain).reason == finish(hybrid).reason
    both = (run(FakeBackend(), replace(each, mode=mode)) for mode in (Verified(), Hybrid(always)))
    assert story(next(both)) == story(next(both))


def test_hybrid_verifies_what_did_not_settle() -> None:
    def script(owner: FakeContext, job: DenoiseJob) -> Prediction:
        right = continuation(owner.tokens, job.tokens.size)
        return predict(right, entropy=2.0) if owner.canvases == 1 else predict([9] * job.tokens.size)

    backend = FakeBackend(script)
    events = run(backend, request(max_tokens=9, mode=Hybrid(Unsettled(0.01))))
    assert backend.shapes == ["e3 d", "d", "d", "e4", "e1 d", "d"]
    assert tokens(events) == [*continuation((5, 6, 7), 5), 9, 9, 9, 9]
    assert [event.converged for event in events if isinstance(event, Block)] == [True, True]
    assert finish(events).stats.accepted_lengths == (5,)


def test_an_unsettled_draft_that_starts_wrong_costs_no_verification() -> None:
    backend = FakeBackend(lambda owner, job: predict([9] * job.tokens.size, entropy=2.0))
    events = run(backend, request(max_tokens=2, mode=Hybrid(Unsettled(0.01))))
    assert backend.shapes == ["e3 d", "d", "d", "e1 d", "d", "d"]
    assert tokens(events) == continuation((5, 6, 7), 2)


@pytest.mark.parametrize("mode", [Autoregressive(), Verified(0.0, FixedSteps(1))])
def test_a_session_lends_its_cache_and_a_token_to_predict_from(mode: Any) -> None:
    backend = FakeBackend(drafter(ADVERSARIES["wrong in the middle"]))
    session = Session(backend)
    for _ in range(2):
        events = run_kept(backend, request(range(2, 8), 6, mode=mode, session=session))
        assert tokens(events) == continuation(range(2, 8), 6)
        assert session.cached <= 12
    assert finish(events).stats.cached_tokens == 5
    session.close()


def test_policies() -> None:
    def moment(answer: Sequence[int], step: int = 0, entropy: float = 0.0, converged: bool = False) -> Moment:
        return Moment(answer, 0, step, entropy, converged)

    thinking = WhileThinking(50, 51)
    cases = [[], [50, 3], [50, 3, 51], [50, 3, 51, 7], [50, 3, 51, 7, 50]]
    assert [thinking(moment(ids)) for ids in cases] == [False, True, False, False, True]
    expecting = WhileThinking(50, 51, expected=True)
    assert [expecting(moment(ids)) for ids in ([], [50], [7], [50, 51])] == [True, True, False, False]
    assert not thinking(moment([50], step=3))
    unsettled = Unsettled(0.5)
    assert unsettled(moment([], 3, 0.6)) and not unsettled(moment([], 3, 0.4))
    assert not unsettled(moment([], 0, 0.6)) and not unsettled(moment([], 3, 0.6, converged=True))
    assert AnyOf([thinking, unsettled])(moment([50])) and not AnyOf([])(moment([50]))


def seconds_per_token(policy: DraftSteps, gains: Sequence[float], step: float, check: float, rounds: int) -> float:
    """Of a fake clock: a draft of n steps costs n * step + check and gives about gains[n - 1] tokens."""
    rng, clock = np.random.default_rng(0), 0.0
    past: list[Round] = []
    for _ in range(rounds):
        steps = policy(past)
        past.append(Round(steps, max(1, round(gains[steps - 1] * rng.uniform(0.7, 1.3)))))
        clock += steps * step + check
    return clock / sum(each.tokens for each in past)


GAINS = {
    "one step does": [9, 10, 11, 12, 12, 12, 12, 12],
    "a sharp knee": [2, 4, 9, 18, 19, 20, 20, 20],
    "each step helps": [3, 8, 14, 21, 29, 38, 48, 59],
    "none helps": [2, 2, 2, 2, 2, 2, 2, 2],
    "late": [2, 3, 5, 8, 13, 21, 30, 31],
}


@pytest.mark.parametrize("check", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", GAINS)
def test_auto_steps_take_little_more_time_a_token_than_the_best_number(name: str, check: float) -> None:
    gains = GAINS[name]
    fixed = [seconds_per_token(FixedSteps(n), gains, 1.0, check, 200) for n in range(1, len(gains) + 1)]
    auto = AutoSteps(first=3, most=len(gains), check=check)
    found = seconds_per_token(auto, gains, 1.0, check, 200)
    assert found <= 1.15 * min(fixed) and found <= 0.5 * max(fixed)


def test_auto_steps() -> None:
    assert AutoSteps(first=3)([]) == 3
    with pytest.raises(UsageError):
        AutoSteps(first=5, most=2)
    with pytest.raises(UsageError):
        FixedSteps(0)


def test_drafts_are_shown_and_blocks_carry_their_steps() -> None:
    events = run(
        FakeBackend(drafter(ADVERSARIES["all right"])), request(max_tokens=5, mode=Verified(0.0, FixedSteps(2)))
    )
    kinds = [(type(event), event.step if isinstance(event, Draft) else 0) for event in events[:-1]]
    assert kinds == [(Draft, 1), (Draft, 2), (Block, 0)]
    assert [event.steps for event in events if isinstance(event, Block)] == [2]
