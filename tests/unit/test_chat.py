"""A conversation: equal to cold runs, and encoding only what is new."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import dgemma
from dgemma.backend import REGISTRY, EncodeJob
from dgemma.errors import UsageError
from dgemma.hub import missing_file
from dgemma.session import Session
from scripted_backend import ENTRY, NAME
from tests.unit.fake_backend import FakeBackend
from tiny_folder import write_folder

DEMO = Path(dgemma.__file__).parent / "demo"
PROMPTS = ["hello", "12+30", "sort 3 1 2", "and again", "x" * 40, "?", "copy abc", "7+8", "thanks", "bye bye"]
SHORT = {"max_tokens": 24, "steps": 3}


def random_folder(folder: Path) -> Path:
    path = write_folder(folder) / "model.safetensors"
    rng = np.random.default_rng(5)
    shapes = {name: value.shape for name, value in load_file(path).items()}
    weights = {name: (rng.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}
    save_file({name: np.abs(value) + 0.5 if "scal" in name else value for name, value in weights.items()}, path)
    return folder


@pytest.fixture(scope="module", params=["mlx", "cuda"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["random", "demo"])
def model(request: pytest.FixtureRequest, backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if request.param == "demo" and missing_file(DEMO):
        pytest.skip("this installation has no demo model")
    folder = DEMO if request.param == "demo" else random_folder(tmp_path_factory.mktemp("model") / "random")
    with dgemma.load(str(folder), backend, device="cpu") as loaded:
        yield loaded


@pytest.fixture
def scripted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dgemma.Model:
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)
    return dgemma.load(str(folder), NAME)


def encoded(monkeypatch: pytest.MonkeyPatch, model: dgemma.Model) -> list[int]:
    """How many tokens each pass encodes, from now on."""
    counts: list[int] = []
    forward = model.backend.forward

    def counting(jobs: Any) -> Any:
        counts.extend(job.tokens.size for job in jobs if isinstance(job, EncodeJob))
        return forward(jobs)

    monkeypatch.setattr(model.backend, "forward", counting)
    return counts


def test_ten_turns_equal_ten_cold_runs(model: dgemma.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = encoded(monkeypatch, model)
    shared = 0
    with model.chat(**SHORT) as chat:
        for turn, prompt in enumerate(PROMPTS):
            history = [*chat.messages, {"role": "user", "content": prompt}]
            ids = model.tokenizer.encode(model.prompt_text(history, chat.settings))
            held = chat.cached_tokens
            counts.clear()
            warm = chat.send(prompt, seed=turn)
            spent = sum(counts)
            cold = model.generate(history, chat.settings, seed=turn)
            assert (warm.text, warm.tokens, warm.finish_reason) == (cold.text, cold.tokens, cold.finish_reason)
            assert warm.stats.prompt_tokens == len(ids) and warm.stats.cached_tokens <= held
            committed = chat.cached_tokens - len(ids)
            assert spent == len(ids) - warm.stats.cached_tokens + committed
            assert warm.stats.cached_tokens >= shared, "the last prompt is encoded once"
            shared = len(ids)


def test_again_and_undo(model: dgemma.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with model.chat(**SHORT) as chat:
        first = chat.send("hello", seed=1)
        second = chat.send("12+30", seed=2)
        counts = encoded(monkeypatch, model)
        again = chat.regenerate(seed=2)
        assert again.tokens == second.tokens and again.text == second.text and len(chat.turns) == 2
        assert (
            again.stats.cached_tokens == again.stats.prompt_tokens - 1 and again.stats.prefill_s < again.stats.total_s
        )
        assert sum(counts) == chat.cached_tokens - again.stats.prompt_tokens + 1
        assert chat.undo().prompt == "12+30" and [turn.answer for turn in chat.turns] == [first.text]
        assert chat.send("12+30", seed=2).tokens == second.tokens
        chat.undo(), chat.undo()
        assert chat.messages == [] and chat.send("hello", seed=1).tokens == first.tokens


def test_another_seed_takes_another_way(model: dgemma.Model) -> None:
    with model.chat(**SHORT) as chat:
        chat.send("hello", seed=1)
        drafts = []
        for seed in (1, 1, 2):
            with chat.stream_again(seed=seed) as stream:
                drafts.append([e.mean_entropy for e in stream if isinstance(e, dgemma.Draft)])
        assert drafts[0] == drafts[1] != drafts[2]


def test_settings_may_change_between_turns(model: dgemma.Model) -> None:
    with model.chat(**SHORT) as chat:
        chat.send("hello", seed=1)
        chat.settings = chat.settings.with_(system="Be brief.", think=True)
        history = [*chat.messages, {"role": "user", "content": "12+30"}]
        assert chat.send("12+30", seed=3).tokens == model.generate(history, chat.settings, seed=3).tokens


@pytest.mark.parametrize("mode", ["ar", "verified"])
def test_other_modes(model: dgemma.Model, mode: str) -> None:
    with model.chat(max_tokens=12, mode=mode) as chat:
        for prompt in ("hello", "12+30"):
            history = [*chat.messages, {"role": "user", "content": prompt}]
            assert chat.send(prompt, seed=1).tokens == model.generate(history, chat.settings, seed=1).tokens
        last = chat.turns[-1].answer
        assert chat.regenerate(seed=1).text == last


def test_an_abandoned_stream_leaves_no_trace(scripted: dgemma.Model) -> None:
    chat = scripted.chat(seed=0)
    with chat.stream("one") as stream:
        next(stream)
        with pytest.raises(UsageError, match="already generating"):
            chat.stream("two")
    assert chat.turns == [] and chat.send("one").text == "Hello."
    with chat.stream_again() as stream:
        next(stream)
    assert [turn.answer for turn in chat.turns] == ["Hello."]
    chat.close()
    assert not any(context.open for context in scripted.backend.contexts)


def test_a_cancelled_turn_keeps_what_was_final(folder: Path, scripted: dgemma.Model) -> None:
    scripted.backend.script[:] = scripted.tokenizer.encode("abcd" * 12)
    chat = scripted.chat()
    with chat.stream("one") as stream:
        for event in stream:
            if isinstance(event, dgemma.Block):
                stream.cancel()
    assert chat.turns[0].answer == "abcd" * 4
    with chat.stream("two") as stream:
        stream.cancel()
        assert [type(event) for event in stream] == [dgemma.Finish]
    assert len(chat.turns) == 1


def test_save_and_load(scripted: dgemma.Model, tmp_path: Path) -> None:
    chat = scripted.chat(system="Brief.", seed=4)
    chat.send("ä 日本")
    chat.save(tmp_path / "saved.json")
    other = scripted.chat()
    other.load(tmp_path / "saved.json")
    assert other.turns == chat.turns and other.settings.system == "Brief." and other.turns[0].seed == 4


DAMAGE = {
    "[]": "the whole is not an object",
    "no": "it is not JSON",
    '{"schema": {}, "messages": []}': "its schema is {}, not 1",
    "{}": "messages are missing",
    '{"messages": {}}': "messages is not a list",
    '{"messages": [1]}': "a message is not an object",
    '{"messages": [{"content": "x"}]}': "role is not a text",
    '{"messages": [{"role": "system"}]}': "content is not a text",
    '{"messages": [{"role": "user", "content": "\\ud800"}]}': "content is not UTF-8 text",
    '{"messages": [{"role": "assistant", "content": "x"}]}': "user and assistant do not alternate",
    '{"messages": [], "seeds": [1]}': "seeds has 1 entries for 0 turns",
    '{"messages": [], "reasoning": 1}': "reasoning is not a list",
    '{"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}], "seeds": ["x"]}': (
        "a seed is not a number"
    ),
}


@pytest.mark.parametrize("text", DAMAGE)
def test_what_is_damaged_is_said_in_words(scripted: dgemma.Model, tmp_path: Path, text: str) -> None:
    path = tmp_path / "saved.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        scripted.chat().load(path)
    assert str(caught.value) == f"{path} is not a saved conversation: {DAMAGE[text]}."


@given(st.data())
@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_tells_of_the_program(scripted: dgemma.Model, tmp_path: Path, data: st.DataObject) -> None:
    """Any field replaced by something else: loaded, or refused in words that hold no name of the program's own."""
    saved = {"schema": 1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    found: dict = json.loads(json.dumps(saved | {"seeds": [1], "reasoning": [""]}))
    wrong = data.draw(st.sampled_from([None, True, 1, 1.5, "x", [], [1], [None, 1], {}, {"role": 1}]))
    target = data.draw(st.sampled_from([found, *found["messages"]]))
    target[data.draw(st.sampled_from(sorted(target)))] = wrong
    (tmp_path / "saved.json").write_text(json.dumps(found))
    try:
        scripted.chat().load(tmp_path / "saved.json")
    except UsageError as error:
        assert not re.search(r"'|\(|NoneType|Error|argument|attribute", str(error).replace(str(tmp_path), "")), error


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"messages": [{"role": "user", "content": "x"}]}'])
def test_damaged_files_are_refused(scripted: dgemma.Model, tmp_path: Path, text: str) -> None:
    (tmp_path / "saved.json").write_text(text)
    with pytest.raises(UsageError, match="not a saved conversation"):
        scripted.chat().load(tmp_path / "saved.json")


def test_nothing_to_undo(scripted: dgemma.Model) -> None:
    chat = scripted.chat()
    for action in (chat.undo, chat.regenerate):
        with pytest.raises(UsageError, match="no turn"):
            action()
    with pytest.raises(UsageError, match="chat template"):
        scripted.chat(raw=True).send("hi")


def test_session_keeps_the_common_prefix() -> None:
    backend = FakeBackend()
    session = Session(backend)
    context = session.borrow([1, 2, 3])
    context.tokens += [1, 2, 3, 4]
    session.give_back(context, [1, 2, 3, 4, 5])
    assert session.cached == 4
    assert session.borrow([1, 2, 9, 8]) is context and context.tokens == [1, 2] and context.settled == 2
    session.give_back(context, [1, 2])
    assert session.borrow([7]) is not context and context.closed
    assert len(backend.contexts) == 2


def test_session_starts_anew_where_keys_are_gone() -> None:
    session = Session(FakeBackend())
    context = session.borrow([1])
    context.tokens += list(range(1, 21))
    context.settle()
    session.give_back(context, list(range(1, 21)))
    fresh = session.borrow([1, 2, 3])
    assert fresh is not context and fresh.length == 0 and context.closed
