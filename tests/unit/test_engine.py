from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgemma.backend import DenoiseJob, EncodeJob
from dgemma.engine import Engine, Request, StopTokens
from dgemma.errors import DgemmaError, UsageError
from dgemma.events import Block, Draft, Event, Finish
from dgemma.noise import Noise
from dgemma.schedule import ConstantTemperature, Denoising, EntropyBound, LinearTemperature, StableAndConfident
from tests.unit.fake_backend import FakeBackend, FakeContext, predict, scripted

EOS = 1
A, B, C = (10, 11, 12, 13), (20, 21, 22, 23), (30, 31, 32, 33)


def denoising(steps: int = 3, stability: int | None = 1, greedy: bool = False) -> Denoising:
    rules = EntropyBound(0.1), StableAndConfident(stability, 0.01)
    return Denoising(LinearTemperature(0.4, 0.8, steps), *rules, steps, greedy)


def request(prompt: Sequence[int] = (5, 6, 7), max_tokens: int = 8, **changes: Any) -> Request:
    return Request(**{"prompt": prompt, "max_tokens": max_tokens, "denoising": denoising(), **changes})


def run(backend: FakeBackend, *requests: Request, **options: int) -> list[Event]:
    events = list(Engine(backend, **options).stream(requests))
    assert all(context.closed for context in backend.contexts)
    return events


def blocks(events: Sequence[Event], handle: int = 0) -> list[tuple[int, ...]]:
    return [event.tokens for event in events if isinstance(event, Block) and event.handle == handle]


def finish(events: Sequence[Event], handle: int = 0) -> Finish:
    [event] = [event for event in events if isinstance(event, Finish) and event.handle == handle]
    return event


def story(events: Sequence[Event], handle: int = 0) -> list[Event]:
    """The events of one sequence without its handle, its seconds and the chunks its prompt happened to get."""
    costs = ["prefill_s", "time_to_first_block_s", "decode_s", "total_s", "decode_tok_s", "e2e_tok_s", "encoder_passes"]
    own = [replace(event, handle=0) for event in events if event.handle == handle]
    return [replace(e, stats=replace(e.stats, **dict.fromkeys(costs, 0))) if isinstance(e, Finish) else e for e in own]


def test_a_canvas_is_committed_by_the_pass_that_starts_the_next_and_the_last_never() -> None:
    backend = FakeBackend(scripted([A], [B]))
    events = run(backend, request())
    assert backend.shapes == ["e3", "d", "d", "e4 d", "d"]
    assert blocks(events) == [A, B]
    assert backend.contexts[0].tokens == [5, 6, 7, *A]
    assert backend.contexts[0].settled == 7 and backend.contexts[0].canvases == 2


def test_events_tell_the_story_in_order() -> None:
    events = run(FakeBackend(scripted([A, B])), request(max_tokens=4))
    assert events[:3] == [
        Draft(0, 0, 1, 3, A, (True,) * 4, (True,) * 4, 0.0),
        Draft(0, 0, 2, 3, B, (True,) * 4, (True,) * 4, 0.0),
        Draft(0, 0, 3, 3, B, (True,) * 4, (False,) * 4, 0.0),
    ]
    assert events[3] == Block(0, 0, B, steps=3, converged=True)
    assert isinstance(events[4], Finish) and len(events) == 5


def test_statistics_count_passes_and_tokens() -> None:
    stats = finish(run(FakeBackend(scripted([A], [B, A, B])), request(range(2, 9), 7), prefill_chunk=4)).stats
    assert (stats.prompt_tokens, stats.completion_tokens) == (7, 7)
    assert (stats.canvases, stats.denoising_steps, stats.steps_per_canvas) == (2, 5, (2, 3))
    assert (stats.encoder_passes, stats.peak_memory_bytes) == (3, 7)
    assert (stats.tokens_per_forward, stats.tokens_per_pass) == (7 / 5, 7 / 6)
    assert 0 < stats.prefill_s <= stats.time_to_first_block_s <= stats.total_s
    assert stats.decode_tok_s == stats.completion_tokens / stats.decode_s


@pytest.mark.parametrize(
    ("canvases", "stability", "steps"),
    [([A, A, B], 0, 1), ([A, A, B], 1, 2), ([A, A, B], 2, 5), ([A, B, A, B, A, B], 1, 6), ([A, B, B, B], 2, 4)],
)
def test_stop_index(canvases: list[tuple[int, ...]], stability: int, steps: int) -> None:
    rules = denoising(steps=6, stability=stability)
    [block] = [e for e in run(FakeBackend(scripted(canvases)), request(max_tokens=4, denoising=rules))
               if isinstance(e, Block)]  # fmt: skip
    assert block.steps == steps
    assert block.tokens == canvases[min(steps, len(canvases)) - 1]


def test_reaching_the_cap_is_reported() -> None:
    events = run(FakeBackend(scripted([A, B, A])), request(max_tokens=4))
    assert [(e.steps, e.converged) for e in events if isinstance(e, Block)] == [(3, False)]


def test_an_uncertain_canvas_runs_to_the_cap_and_commits_its_argmax() -> None:
    def script(context: FakeContext, job: DenoiseJob) -> Any:
        return predict(A, entropy=2.0, sampled=B)

    assert blocks(run(FakeBackend(script), request(max_tokens=4))) == [A]


def test_inputs_of_a_step_are_the_sample_where_accepted_and_the_renoise_elsewhere() -> None:
    backend = FakeBackend(lambda context, job: predict(A, entropy=2.0, sampled=B))
    run(backend, request(max_tokens=4, seed=9, sequence=4))
    noise = Noise(9, 4)
    first, second, third = (job for jobs in backend.passes[1:] for job in jobs)
    assert np.array_equal(first.tokens, noise.initial(0, 4, 64))
    assert second.tokens.tolist() == [B[0], *noise.renoise(0, 0, 4, 64)[1:]]
    assert third.tokens.tolist() == [B[0], *noise.renoise(0, 1, 4, 64)[1:]]
    assert [job.temperature for job in (first, second, third)] == [denoising().temperature(n) for n in (3, 2, 1)]
    for step, job in enumerate((first, second, third)):
        assert np.array_equal(job.uniforms, noise.uniforms(0, step, 4))


def test_greedy_sampling_sends_no_uniforms_and_keeps_the_schedule() -> None:
    backend = FakeBackend(scripted([A, B, A]))
    run(backend, request(max_tokens=4, denoising=denoising(greedy=True)))
    assert all(job.uniforms is None for jobs in backend.passes[1:] for job in jobs)
    assert [job.temperature for [job] in backend.passes[1:]] == [denoising().temperature(n) for n in (3, 2, 1)]


@pytest.mark.parametrize("place", range(4))
def test_a_stop_token_ends_the_answer_inside_a_canvas(place: int) -> None:
    canvas = tuple(EOS if index >= place else token for index, token in enumerate(B))
    events = run(FakeBackend(scripted([A], [canvas])), request(max_tokens=99, stop=StopTokens([EOS])))
    assert blocks(events) == [A, canvas[:place]]
    assert finish(events).reason == "stop"
    assert finish(events).stats.completion_tokens == 4 + place


def test_an_empty_answer_still_takes_the_steps_that_stability_asks_for() -> None:
    events = run(FakeBackend(scripted([(EOS,) * 4])), request(stop=StopTokens([EOS])))
    assert [e.steps for e in events if isinstance(e, Block)] == [2]
    assert blocks(events) == [()] and finish(events).reason == "stop"


@pytest.mark.parametrize(("budget", "last"), [(1, A[:1]), (4, A), (5, B[:1]), (8, B)])
def test_the_budget_cuts_the_last_block(budget: int, last: tuple[int, ...]) -> None:
    events = run(FakeBackend(scripted([A], [B], [C])), request(max_tokens=budget))
    assert blocks(events)[-1] == last
    assert finish(events).reason == "length"
    assert finish(events).stats.completion_tokens == budget


@pytest.mark.parametrize(("budget", "reason"), [(1, "length"), (2, "stop"), (3, "stop")])
def test_an_answer_that_fits_its_budget_is_not_cut_short(budget: int, reason: str) -> None:
    backend = FakeBackend(scripted([(10, 11, EOS, 13)]))
    assert finish(run(backend, request(max_tokens=budget, stop=StopTokens([EOS])))).reason == reason


def test_a_stop_rule_sees_all_generated_ids_and_takes_nothing_back() -> None:
    seen: list[list[int]] = []

    def rule(generated: Sequence[int]) -> int | None:
        seen.append(list(generated))
        return 2 if len(generated) == 8 else None

    events = run(FakeBackend(scripted([A], [B])), request(max_tokens=99, stop=rule))
    assert seen == [[*A], [*A, *B]]
    assert blocks(events) == [A, ()] and finish(events).stats.completion_tokens == 4


def test_prompts_are_encoded_in_chunks() -> None:
    backend = FakeBackend()
    chunked = run(backend, request(range(2, 13)), prefill_chunk=5)
    assert backend.shapes[:4] == ["e5", "e5", "e1", "d"]
    assert story(chunked) == story(run(FakeBackend(), request(range(2, 13))))


def test_a_pass_encodes_a_bounded_number_of_prompt_tokens_over_all_sequences() -> None:
    backend = FakeBackend()
    run(backend, *(request(range(2, 9)) for _ in range(3)), prefill_chunk=8)
    prompts = [[job for job in jobs if isinstance(job, EncodeJob)] for jobs in backend.passes]
    assert [sum(job.tokens.size for job in jobs) for jobs in prompts][:2] == [8, 8]


any_request = st.builds(
    request,
    st.lists(st.integers(0, 63), min_size=1, max_size=20),
    st.integers(1, 30),
    seed=st.integers(0, 99),
    canvas_length=st.integers(1, 9),
    denoising=st.builds(denoising, st.integers(1, 6), st.integers(0, 2), st.booleans()),
    stop=st.builds(StopTokens, st.sets(st.integers(0, 63), max_size=4)),
    warm_start=st.lists(st.integers(0, 63), max_size=12),
    pins=st.dictionaries(st.just(0), st.integers(0, 63)),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(any_request, min_size=1, max_size=4), st.integers(1, 12))
def test_any_batch_equals_its_single_runs_and_every_story_is_whole(batch: list[Request], chunk: int) -> None:
    together = run(FakeBackend(), *batch, prefill_chunk=chunk)
    for handle, alone in enumerate(batch):
        own = story(together, handle)
        assert own == story(run(FakeBackend(), alone))
        *_, last_block, end = own
        assert isinstance(end, Finish) and isinstance(last_block, Block)
        assert [e.canvas for e in own if isinstance(e, Block)] == list(range(end.stats.canvases))
        for canvas, steps in enumerate(end.stats.steps_per_canvas):
            drafts = [e.step for e in own if isinstance(e, Draft) and e.canvas == canvas]
            assert drafts == list(range(1, steps + 1)) and steps <= alone.denoising.steps
        delivered = [token for tokens in blocks(own) for token in tokens]
        assert len(delivered) == end.stats.completion_tokens <= alone.max_tokens
        assert alone.stop(delivered) is None


@pytest.mark.parametrize("chunk", [3, 8, 2048])
def test_sequences_together_equal_their_single_runs(chunk: int) -> None:
    requests = [
        request(range(2, 2 + length), budget, seed=seed, denoising=denoising(steps), stop=StopTokens(range(20, 24)))
        for seed, (length, budget, steps) in enumerate([(3, 9, 6), (17, 4, 8), (1, 30, 2), (9, 12, 5), (9, 12, 5)])
    ]
    backend = FakeBackend()
    together = run(backend, *requests, prefill_chunk=chunk)
    assert any("d" in shape and "e" in shape for shape in backend.shapes)
    for handle, alone in enumerate(requests):
        assert story(together, handle) == story(run(FakeBackend(), alone))


def test_a_request_can_join_a_running_engine() -> None:
    backend = FakeBackend()
    engine = Engine(backend)
    first = engine.submit(request(max_tokens=12))
    events = [*engine.step(), *engine.step(), *engine.step()]
    second = engine.submit(request(max_tokens=12, seed=3))
    while not engine.idle:
        events += engine.step()
    assert story(events, first) == story(run(FakeBackend(), request(max_tokens=12)))
    assert story(events, second) == story(run(FakeBackend(), request(max_tokens=12, seed=3)))
    assert engine.step() == []


def test_cancelling_ends_one_sequence_and_leaves_the_other() -> None:
    backend = FakeBackend(lambda context, job: predict(A))
    engine = Engine(backend)
    doomed, other = engine.submit(request(max_tokens=40)), engine.submit(request(max_tokens=8))
    events = [event for _ in range(4) for event in engine.step()]
    engine.cancel(doomed)
    assert [context.closed for context in backend.contexts] == [True, False]
    engine.cancel(doomed)
    while not engine.idle:
        events += engine.step()
    assert finish(events, doomed).reason == "cancelled"
    assert finish(events, doomed).stats.completion_tokens == 4
    assert finish(events, other).reason == "length" and blocks(events, other) == [A, A]


def test_closing_the_stream_frees_every_context() -> None:
    backend = FakeBackend()
    engine = Engine(backend)
    stream = engine.stream([request(), request()])
    assert isinstance(next(stream), Draft)
    stream.close()
    assert [context.closed for context in backend.contexts] == [True, True]
    assert engine.idle and blocks(list(engine.stream([request(max_tokens=4)]))) != []


def test_a_stream_that_was_never_started_opens_nothing() -> None:
    backend = FakeBackend()
    Engine(backend).stream([request()]).close()
    assert backend.contexts == []


def test_two_streams_of_one_engine_are_refused() -> None:
    engine = Engine(FakeBackend())
    stream = engine.stream([request()])
    next(stream)
    with pytest.raises(UsageError, match="busy"):
        next(engine.stream([request()]))
    assert isinstance(list(stream)[-1], Finish)


@pytest.mark.parametrize("fail_at", [0, 2, 3])
def test_an_error_in_a_pass_frees_every_context(fail_at: int) -> None:
    backend = FakeBackend()
    backend.fail_at = fail_at
    engine = Engine(backend)
    engine.submit(request())
    engine.submit(request())
    with pytest.raises(MemoryError):
        while not engine.idle:
            engine.step()
    assert all(context.closed for context in backend.contexts) and engine.idle


def test_output_that_is_not_finite_is_an_error() -> None:
    backend = FakeBackend(lambda context, job: predict(A, entropy=float("nan")))
    with pytest.raises(DgemmaError, match="canvas 0, step 1"):
        run(backend, request())
    assert backend.contexts[0].closed


@pytest.mark.parametrize(("prompt", "canvases"), [(59, 1), (60, 1), (56, 2), (57, 1)])
def test_the_context_limit_ends_the_answer(prompt: int, canvases: int) -> None:
    events = run(FakeBackend(), request([2] * prompt, 99))
    assert len(blocks(events)) == canvases and finish(events).reason == "length"


def test_a_prompt_that_leaves_no_room_for_a_canvas_is_refused() -> None:
    with pytest.raises(UsageError, match=r"65 positions; the model has 64"):
        Engine(FakeBackend()).stream([request([2] * 61)])


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": ()},
        {"prompt": (64,)},
        {"prompt": (-1,)},
        {"max_tokens": 0},
        {"canvas_length": 0},
        {"seed": -1},
        {"sequence": 2**64},
        {"pins": {8: 1}},
        {"pins": {-1: 1}},
        {"pins": {0: 64}},
        {"warm_start": (64,)},
    ],
)
def test_requests_that_cannot_be_served_are_refused_before_anything_is_opened(changes: dict[str, Any]) -> None:
    backend = FakeBackend()
    with pytest.raises(UsageError):
        Engine(backend).submit(request(**changes))
    assert backend.contexts == []


def test_pins_and_warm_start_reach_over_canvases() -> None:
    backend = FakeBackend(scripted([A], [B]))
    events = run(backend, request(pins={0: 40, 5: 41}, warm_start=(50, 51, 52, 53, 54, 55)))
    first, second = backend.passes[1][0], backend.passes[3][1]
    assert first.tokens.tolist() == [40, 51, 52, 53]
    assert second.tokens.tolist() == [54, 41, *Noise(0).initial(1, 4, 64)[2:]]
    assert blocks(events) == [(40, *A[1:]), (B[0], 41, *B[2:])]


def test_pinned_canvases_take_no_steps() -> None:
    backend = FakeBackend(scripted([], [], [A]))
    pins = dict(zip(range(8), range(40, 48), strict=True))
    events = run(backend, request(max_tokens=12, pins=pins))
    assert backend.shapes == ["e3", "e8", "d", "d"]
    assert blocks(events) == [(40, 41, 42, 43), (44, 45, 46, 47), A]
    assert finish(events).stats.steps_per_canvas == (0, 0, 2)


def test_a_wholly_pinned_answer_takes_no_steps() -> None:
    events = run(FakeBackend(), request(max_tokens=4, pins=dict(zip(range(4), A, strict=True))))
    assert blocks(events) == [A] and finish(events).stats.denoising_steps == 0
    assert len(events) == 2


def test_the_canvas_length_can_be_chosen() -> None:
    backend = FakeBackend()
    events = run(backend, request(max_tokens=7, canvas_length=3, denoising=denoising(steps=1)))
    assert [len(tokens) for tokens in blocks(events)] == [3, 3, 1]


def test_a_constant_temperature_reaches_the_backend() -> None:
    backend = FakeBackend()
    rules = Denoising(ConstantTemperature(0.3), EntropyBound(0.1), StableAndConfident(None, None), 2)
    run(backend, request(max_tokens=4, denoising=rules))
    assert [job.temperature for [job] in backend.passes[1:]] == [0.3, 0.3]
