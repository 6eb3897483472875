"""Both roles of the stack against transformers in float32, and the cache against itself."""

from __future__ import annotations

import numpy as np
import pytest

from dgemma.backend import Backend, Context, DenoiseJob, EncodeJob, Prediction
from tests.parity.conftest import Folders
from tests.parity.oracle import Ids, Oracle
from tests.parity.support import (
    FIRST_TEMPERATURE,
    TOLERANCE,
    canvas,
    denoise,
    edge_distance,
    encode,
    entropies,
    gap,
    open_cpu,
    prepared,
    prompt,
    uniforms,
)
from tests.parity.tiny import CANVAS, VOCAB, WINDOW, Variant

LONG = 40 * WINDOW
LENGTHS = (1, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)


@pytest.mark.parametrize("length", LENGTHS)
def test_passes_equal_the_reference(backend: Backend, oracle: Oracle, length: int) -> None:
    ours, theirs = backend.open(), oracle.open()
    assert gap(encode(backend, ours, prompt(length)), theirs.encode(prompt(length))) <= TOLERANCE
    assert ours.length == length

    first = backend.inspect(DenoiseJob(ours, canvas(1), FIRST_TEMPERATURE))
    hidden, logits = theirs.denoise(canvas(1))
    assert gap(first.hidden, hidden) <= TOLERANCE
    assert gap(first.logits, logits) <= TOLERANCE

    conditioned = theirs.denoise(canvas(2), logits / np.float32(FIRST_TEMPERATURE))[1]
    assert gap(denoise(backend, ours, canvas(2)), conditioned) <= TOLERANCE


@pytest.mark.parametrize("length", (3, WINDOW - 1, 3 * WINDOW))
@pytest.mark.parametrize("settle", (False, True))
def test_later_canvases_equal_the_reference(backend: Backend, oracle: Oracle, length: int, settle: bool) -> None:
    ours, theirs = backend.open(), oracle.open()
    encode(backend, ours, prompt(length))
    theirs.encode(prompt(length))
    for index in range(3):
        if settle:
            ours.settle()
        ours.start_canvas()
        logits = theirs.denoise(canvas(index))[1]
        assert gap(denoise(backend, ours, canvas(index)), logits) <= TOLERANCE
        logits = theirs.denoise(canvas(index + 10), logits / np.float32(FIRST_TEMPERATURE))[1]
        assert gap(denoise(backend, ours, canvas(index + 10)), logits) <= TOLERANCE
        committed = logits.argmax(-1).astype(np.int32)
        assert gap(encode(backend, ours, committed), theirs.encode(committed)) <= TOLERANCE


def test_loud_logits_are_softcapped(folders: Folders, name: str) -> None:
    """Ten times louder logits reach the cap; so does their error, hence the tolerance."""
    folder = folders(Variant(loudness=10.0))
    backend, theirs = open_cpu(name, folder), Oracle(folder).open()
    theirs.encode(prompt(40))
    logits = theirs.denoise(canvas())[1]
    assert np.abs(logits).max() > 20
    assert gap(denoise(backend, prepared(backend, prompt(40)), canvas()), logits) <= 10 * TOLERANCE


@pytest.mark.parametrize("chunk", (1, 7, WINDOW, WINDOW + 1))
def test_chunked_prefill_equals_one_pass(backend: Backend, chunk: int) -> None:
    tokens = prompt(3 * WINDOW)
    whole, pieces = backend.open(), backend.open()
    expected = encode(backend, whole, tokens)
    parts = [encode(backend, pieces, tokens[start : start + chunk]) for start in range(0, len(tokens), chunk)]
    assert gap(np.concatenate(parts), expected) <= TOLERANCE

    left, right = denoise(backend, pieces, canvas()), denoise(backend, whole, canvas())
    assert gap(left, right) <= TOLERANCE
    assert np.array_equal(left.argmax(-1), right.argmax(-1))


def test_a_ragged_batch_equals_single_runs(backend: Backend) -> None:
    """Five prompts around the window edge; three rows carry a signal, each row has its own temperature."""
    lengths = (1, 7, WINDOW - 1, WINDOW, 60)
    batch = [backend.open() for _ in lengths]
    backend.forward([EncodeJob(context, prompt(length)) for context, length in zip(batch, lengths, strict=True)])
    single = [prepared(backend, prompt(length)) for length in lengths]
    for contexts in (batch, single):
        for row in (0, 2, 4):
            denoise(backend, contexts[row], canvas(row + 20), temperature=0.5 + row / 10)

    together = backend.forward([_row(context, row) for row, context in enumerate(batch)])
    alone = [backend.forward([_row(context, row)])[0] for row, context in enumerate(single)]
    for left, right in zip(together, alone, strict=True):
        _assert_same(left, right)


def _row(context: Context, row: int) -> DenoiseJob:
    return DenoiseJob(context, canvas(row), 0.4 + row / 10, uniforms(CANVAS, row))


@pytest.mark.parametrize("encode_first", (True, False))
def test_a_commit_may_share_a_pass_with_the_next_canvas(backend: Backend, encode_first: bool) -> None:
    committed = canvas(3)
    split, joint = prepared(backend, prompt(WINDOW - 3)), prepared(backend, prompt(WINDOW - 3))
    backend.forward([EncodeJob(split, committed)])
    [expected] = backend.forward([_row(split, 1)])

    jobs = [EncodeJob(joint, committed), _row(joint, 1)]
    results = backend.forward(jobs if encode_first else jobs[::-1])
    _assert_same(results[1 if encode_first else 0], expected)
    assert joint.length == split.length
    assert gap(denoise(backend, joint, canvas(5)), denoise(backend, split, canvas(5))) <= TOLERANCE


def test_encoding_and_denoising_rows_mix(backend: Backend) -> None:
    """One row prefills, one denoises with a signal, one commits and starts its next canvas: one pass."""
    mixed = [backend.open(), prepared(backend, prompt(30)), prepared(backend, prompt(9))]
    apart = [backend.open(), prepared(backend, prompt(30)), prepared(backend, prompt(9))]
    for contexts in (mixed, apart):
        denoise(backend, contexts[1], canvas(1))

    results = backend.forward(_mixed_jobs(mixed))
    expected = [backend.forward([job])[0] for job in _mixed_jobs(apart)]
    for left, right in zip(results, expected, strict=True):
        _assert_same(left, right)
    for left, right in zip(mixed, apart, strict=True):
        assert left.length == right.length
        assert gap(denoise(backend, left, canvas(6)), denoise(backend, right, canvas(6))) <= TOLERANCE


def _mixed_jobs(contexts: list[Context]) -> list[EncodeJob | DenoiseJob]:
    return [
        EncodeJob(contexts[0], prompt(40), "last", 0.7, uniforms(1)),
        _row(contexts[1], 2),
        EncodeJob(contexts[2], canvas(4)),
        _row(contexts[2], 3),
    ]


def _assert_same(left: Prediction | None, right: Prediction | None) -> None:
    assert (left is None) == (right is None)
    if left is not None and right is not None:
        assert np.array_equal(left.sampled, right.sampled)
        assert np.array_equal(left.argmax, right.argmax)
        assert gap(left.entropy, right.entropy) <= TOLERANCE


@pytest.mark.parametrize("length", (5, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW))
@pytest.mark.parametrize("kept", (0, 1, CANVAS - 1))
def test_rollback_equals_never_having_encoded(backend: Backend, length: int, kept: int) -> None:
    rolled = prepared(backend, prompt(length))
    rolled.settle()
    backend.forward([EncodeJob(rolled, canvas(1))])
    assert rolled.truncate(length + kept)
    assert rolled.length == length + kept

    fresh = prepared(backend, np.concatenate([prompt(length), canvas(1)[:kept]]))
    assert gap(denoise(backend, rolled, canvas(2)), denoise(backend, fresh, canvas(2))) <= TOLERANCE
    tail = canvas(3)
    assert gap(encode(backend, rolled, tail), encode(backend, fresh, tail)) <= TOLERANCE
    assert gap(denoise(backend, rolled, canvas(4)), denoise(backend, fresh, canvas(4))) <= TOLERANCE


def test_rollback_reaches_over_several_unsettled_passes(backend: Backend) -> None:
    rolled = prepared(backend, prompt(2 * WINDOW))
    rolled.settle()
    for seed in range(4):
        backend.forward([EncodeJob(rolled, canvas(seed))])
    assert rolled.truncate(2 * WINDOW + 5)
    fresh = prepared(backend, np.concatenate([prompt(2 * WINDOW), canvas(0)[:5]]))
    assert gap(denoise(backend, rolled, canvas(9)), denoise(backend, fresh, canvas(9))) <= TOLERANCE


def test_truncating_to_the_present_length_changes_nothing(backend: Backend) -> None:
    context = prepared(backend, prompt(WINDOW + 2))
    context.settle()
    before = denoise(backend, context, canvas(1))
    context.start_canvas()
    assert context.truncate(WINDOW + 2)
    assert gap(denoise(backend, context, canvas(1)), before) <= TOLERANCE


def test_rollback_beyond_the_kept_keys_is_refused(backend: Backend) -> None:
    """Sliding layers forget settled keys, so a long settled sequence cannot go back to its start."""
    context, tokens = backend.open(), prompt(LONG)
    for start in range(0, LONG, WINDOW):
        backend.forward([EncodeJob(context, tokens[start : start + WINDOW])])
        context.settle()
    before = denoise(backend, context, canvas(1))
    assert not context.truncate(WINDOW)
    assert context.length == LONG
    context.start_canvas()
    assert gap(denoise(backend, context, canvas(1)), before) <= TOLERANCE


@pytest.mark.parametrize("seed", range(2))
def test_any_history_of_a_context_equals_the_reference(backend: Backend, oracle: Oracle, seed: int) -> None:
    """Random encodes, settles and rollbacks of a context that grows far beyond any buffer's first size."""
    draw = np.random.default_rng(seed)
    context, tokens, settled = backend.open(), prompt(0), 0
    while len(tokens) < LONG:
        fresh = draw.integers(0, VOCAB, draw.integers(1, 3 * WINDOW)).astype(np.int32)
        backend.forward([EncodeJob(context, fresh)])
        tokens = np.concatenate([tokens, fresh])
        if draw.random() < 0.4:
            context.settle()
            settled = len(tokens)
        target = len(tokens) - int(draw.integers(0, 2 * CANVAS))
        rolled = context.truncate(max(target, 0))
        assert rolled or target < settled
        tokens = tokens[: max(target, 0)] if rolled else tokens
        settled = min(settled, len(tokens))
        assert context.length == len(tokens)
        if len(tokens) and draw.random() < 0.3:
            _assert_canvas_equals(backend, context, oracle, tokens)
    _assert_canvas_equals(backend, context, oracle, tokens)


def _assert_canvas_equals(backend: Backend, context: Context, oracle: Oracle, tokens: Ids) -> None:
    theirs = oracle.open()
    theirs.encode(tokens)
    context.start_canvas()
    assert gap(denoise(backend, context, canvas(5)), theirs.denoise(canvas(5))[1]) <= TOLERANCE


@pytest.mark.parametrize("past", (0, WINDOW + 3))
def test_causal_predictions_equal_the_tied_head(backend: Backend, oracle: Oracle, past: int) -> None:
    logits = _causal_logits(oracle, past)
    numbers = uniforms(len(logits))
    results = []
    for predict, chosen in (("all", numbers), ("last", numbers[-1:]), ("none", None)):
        context = prepared(backend, prompt(past)) if past else backend.open()
        results += backend.forward([EncodeJob(context, prompt(30, seed=1), predict, 0.7, chosen)])
    everywhere, last, nothing = results
    assert nothing is None
    assert np.array_equal(everywhere.argmax, logits.argmax(-1))
    assert gap(everywhere.entropy, entropies(logits, 0.7)) <= TOLERANCE
    assert edge_distance(logits, 0.7, numbers, everywhere.sampled).max() <= TOLERANCE
    assert gap(last.entropy, everywhere.entropy[-1:]) <= TOLERANCE
    assert (last.argmax, last.sampled) == (everywhere.argmax[-1:], everywhere.sampled[-1:])


def _causal_logits(oracle: Oracle, past: int) -> np.ndarray:
    theirs = oracle.open()
    if past:
        theirs.encode(prompt(past))
    return oracle.head(theirs.encode(prompt(30, seed=1)))


def test_predictions_without_uniforms_are_greedy(backend: Backend) -> None:
    context = prepared(backend, prompt(10))
    [step] = backend.forward([DenoiseJob(context, canvas(), 0.8)])
    [causal] = backend.forward([EncodeJob(context, canvas(), "all")])
    for prediction in (step, causal):
        assert np.array_equal(prediction.sampled, prediction.argmax)
        assert prediction.sampled.dtype == prediction.argmax.dtype == np.int32
        assert prediction.entropy.dtype == np.float32


def test_placeholder_ids_are_ordinary_tokens(backend: Backend, oracle: Oracle) -> None:
    """Pad, end and image ids may turn up in a canvas and in what is committed from it."""
    special: Ids = np.array([0, 1, 2, 50, 106, 500, 501, 502, 511, 0, 0, 500, 500, 1, 3, 4], np.int32)
    ours, theirs = prepared(backend, prompt(30)), oracle.open()
    theirs.encode(prompt(30))
    assert gap(denoise(backend, ours, special), theirs.denoise(special)[1]) <= TOLERANCE
    assert gap(encode(backend, ours, special), theirs.encode(special)) <= TOLERANCE
