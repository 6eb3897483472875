"""The Python interface on a scripted backend."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import dgemma
from dgemma.backend import REGISTRY
from dgemma.errors import UnsupportedError, UsageError
from dgemma.settings import Settings
from scripted_backend import ENTRY, NAME

LONG = "a€b " * 12


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)


@pytest.fixture
def model(folder: Path) -> Iterator[dgemma.Model]:
    with dgemma.load(str(folder), NAME) as loaded:
        yield loaded


def scripted(folder: Path, text: str) -> dgemma.Model:
    (folder / "script.txt").write_text(text, encoding="utf-8")
    return dgemma.load(str(folder), NAME)


def test_generation(model: dgemma.Model) -> None:
    found = model.generate("hi", seed=7)
    assert str(found) == found.text == "Hello." and found.finish_reason == "stop"
    assert (found.seed, found.backend, found.device, found.revision) == (7, NAME, "cpu", None)
    assert len(found.tokens) == found.stats.completion_tokens == 6
    assert model.generate("hi").seed != model.generate("hi").seed


def test_stream_concatenates_to_the_text(folder: Path) -> None:
    model = scripted(folder, LONG)
    with model.stream("hi", seed=0) as stream:
        events = list(stream)
    blocks = [event for event in events if isinstance(event, dgemma.Block)]
    assert isinstance(events[0], dgemma.Draft) and isinstance(events[-1], dgemma.Finish) and len(blocks) > 3
    assert "".join(event.text for event in events if not isinstance(event, dgemma.Draft)) == LONG
    assert stream.generations[0].text == LONG == model.generate("hi").text


def test_closing_a_stream_frees_its_cache(folder: Path) -> None:
    model = scripted(folder, LONG)
    with model.stream("hi") as stream:
        next(stream)
    assert not any(context.open for context in model.backend.contexts)
    assert list(stream) == [] and stream.generations == []


def test_cancel_keeps_what_was_committed(folder: Path) -> None:
    model = scripted(folder, LONG)
    with model.stream("hi") as stream:
        for event in stream:
            if isinstance(event, dgemma.Block):
                stream.cancel()
    found = stream.generations[0]
    assert found.finish_reason == "cancelled" and 0 < len(found.text) < len(LONG) and LONG.startswith(found.text)


def test_batch(model: dgemma.Model) -> None:
    assert [str(found) for found in model.generate_batch(["a", "b", "c"], seed=1)] == ["Hello."] * 3


def test_budget(folder: Path) -> None:
    found = scripted(folder, "x" * 100).generate("hi", max_tokens=20)
    assert found.text == "x" * 20 and found.finish_reason == "length" and found.stats.completion_tokens == 20


@pytest.mark.parametrize(("stop", "text"), [("b a", "a€"), (("zzz", "€b a€b"), "a"), ("€", "a"), ("nothing", LONG)])
def test_stop_strings(folder: Path, stop: str | tuple[str, ...], text: str) -> None:
    model = scripted(folder, LONG)
    with model.stream("hi", stop=stop) as stream:
        streamed = "".join(event.text for event in stream if not isinstance(event, dgemma.Draft))
    assert streamed == stream.generations[0].text == text
    assert stream.generations[0].finish_reason == "stop"


def test_stop_string_across_a_canvas_edge(folder: Path) -> None:
    model = scripted(folder, "0123456789abcdefghij")
    assert model.generate("hi", stop="efgh").text == "0123456789abcd"
    assert model.generate("hi", stop="efghX").text == "0123456789abcdefghij"


def test_channels_across_a_canvas_edge(folder: Path) -> None:
    script = '<|channel>thought\nLong enough a thought.<channel|>Yes.<|tool_call>call:f{x:<|"|>1<|"|>}<tool_call|>'
    model = scripted(folder, script)
    found = model.generate("hi")
    assert (found.text, found.reasoning) == ("Yes.", "Long enough a thought.")
    assert found.tool_calls[0].as_dict() == {"name": "f", "arguments": {"x": "1"}}
    assert model.generate("hi", raw=True).text == script


def test_prompts(model: dgemma.Model) -> None:
    plain = model.prompt_text("hi", Settings())
    assert plain == model.prompt_text([{"role": "user", "content": "hi"}], Settings())
    assert plain == "<bos><|turn>user\nhi<turn|>\n<|turn>model\n"
    assert "<|turn>system\n<|think|>\nBrief." in model.prompt_text("hi", Settings(system="Brief.", think=True))
    assert model.prompt_text("hi", Settings(raw=True)) == "<bos>hi" == model.prompt_text("<bos>hi", Settings(raw=True))


def test_wrong_settings(model: dgemma.Model) -> None:
    with pytest.raises(TypeError, match="'top_p'"):
        model.generate("hi", top_p=0.9)
    for wrong in ({"max_tokens": 0}, {"steps": 0}, {"temperature": -1.0}, {"stop": ""}, {"seed": -1}):
        with pytest.raises(UsageError):
            model.generate("hi", **wrong)
    with pytest.raises(UsageError, match="exclude"):
        model.stream("hi", temperature=0.5, temperature_range=(0.1, 0.2))
    with pytest.raises(UsageError, match="raw"):
        model.generate("hi", raw=True, system="x")


def test_closing_twice_and_two_system_messages(folder: Path) -> None:
    model = dgemma.load(str(folder), NAME)
    with pytest.raises(UsageError, match="already"):
        model.generate([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], system="c")
    model.close()
    model.close()


def test_unknown_backend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Unknown backend 'tpu'"):
        dgemma.load(str(folder), "tpu")
    monkeypatch.setitem(REGISTRY, "gone", "no_such_module:open")
    with pytest.raises(UnsupportedError, match="not installed"):
        dgemma.load(str(folder), "gone")


def test_public_names() -> None:
    assert all(hasattr(dgemma, name) for name in dgemma.__all__)
    with pytest.raises(AttributeError):
        _ = dgemma.nothing
