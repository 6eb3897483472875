"""A server under a fake clock: however it sends its blocks, the speed is tokens over the whole time."""

import json
from collections.abc import Iterable, Iterator

import pytest

from dgemma.bench.engines import Limits, Outcome
from dgemma.bench.metrics import summarise
from dgemma.bench.prompts import Prompt
from dgemma.bench.runner import sample
from dgemma.bench.server import Server
from dgemma.errors import NetworkError, UnsupportedError

PROMPT = Prompt("hi", ({"role": "user", "content": "hi"},))
Events = Iterable[tuple[float, str]]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def line(**event: object) -> str:
    return "data: " + json.dumps(event)


def text(content: str) -> str:
    return line(choices=[{"delta": {"content": content}}])


def usage(tokens: int) -> str:
    return line(choices=[], usage={"prompt_tokens": 7, "completion_tokens": tokens})


def serve(events: Events, max_tokens: int = 1000) -> Outcome:
    """Run against a server that sends each line after so many seconds."""
    clock = Clock()

    def transport(url: str, payload: dict | None) -> Iterator[bytes]:
        for pause, each in events:
            clock.now += pause
            yield each.encode() + b"\n"

    return Server("http://x/v1", "m", transport, clock).run((PROMPT,), Limits(max_tokens=max_tokens))


def speed(outcome: Outcome) -> dict:
    return summarise([sample((PROMPT,), outcome, 0)], random_weights=False)


WHOLE = [(4.0, text("x" * 900)), (0.0, usage(200)), (0.0, "data: [DONE]")]
TRICKLE = [*((0.02, text("word ")) for _ in range(200)), (0.0, usage(200)), (0.0, "data: [DONE]")]
STALL = [(1.0, text("first")), (30.0, text("second")), (1.0, usage(64)), (0.0, "data: [DONE]")]


def test_the_whole_answer_at_once() -> None:
    outcome = serve(WHOLE)
    found = speed(outcome)
    assert found["e2e_tok_s"] == pytest.approx(50) and found["ttfb_s"] == pytest.approx(4)
    assert found["decode_tok_s"] is None and found["prefill_tok_s"] is None and found["interblock_s"] is None


def test_a_trickle() -> None:
    found = speed(serve(TRICKLE))
    assert found["e2e_tok_s"] == pytest.approx(50) and found["ttfb_s"] == pytest.approx(0.02)
    assert found["decode_tok_s"] is None and found["interblock_s"] == pytest.approx(0.02)


def test_block_and_trickle_are_equally_fast() -> None:
    assert speed(serve(WHOLE))["e2e_tok_s"] == pytest.approx(speed(serve(TRICKLE))["e2e_tok_s"])


def test_a_stall_counts() -> None:
    found = speed(serve(STALL))
    assert found["e2e_tok_s"] == pytest.approx(2) and found["ttfb_s"] == 1 and found["interblock_s"] == 30


def test_never_more_tokens_than_asked_for() -> None:
    assert serve([(1.0, text("x")), (0.0, usage(256))], max_tokens=96).tokens == 96


def test_chunks_are_not_tokens() -> None:
    with pytest.raises(UnsupportedError, match="usage"):
        serve([(1.0, text("x")), (0.0, "data: [DONE]")])


def test_other_lines_and_errors() -> None:
    outcome = serve([(1.0, ": keep-alive"), (0.0, ""), (0.0, text("a")), (0.0, usage(1))])
    assert outcome.texts == ("a",) and outcome.block_s == (1.0,) and outcome.prompt_tokens == 7
    with pytest.raises(NetworkError, match="overloaded"):
        serve([(1.0, line(error="overloaded"))])


def test_what_a_server_cannot_be_asked() -> None:
    server = Server("http://x/v1", "m", lambda url, payload: (), Clock())
    with pytest.raises(UnsupportedError):
        server.run((PROMPT, PROMPT), Limits())
    with pytest.raises(UnsupportedError):
        server.run((PROMPT,), Limits(canvas_length=64))


def test_the_first_model_is_taken() -> None:
    sent = {"http://x/v1/models": [b'{"data": [{"id": "some/model"}]}']}
    assert Server("http://x/v1/", "", lambda url, payload: sent[url], Clock()).identity.model == "some/model"
    with pytest.raises(NetworkError, match="names no model"):
        Server("http://x/v1", "", lambda url, payload: [b"{}"], Clock())
