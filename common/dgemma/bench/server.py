"""Any OpenAI-compatible server as an engine: vLLM, SGLang, llama.cpp, mlx-vlm's or another.

A block server sends a whole canvas at once, so the time behind the first chunk says nothing: speed is tokens over the
time from the request to the end of the stream, and prefill and decode are not told apart. Tokens are the server's own
count, never the number of chunks, and never more than were asked for.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dgemma.bench.engines import Identity, Limits, Outcome, Target
from dgemma.bench.prompts import Prompt
from dgemma.errors import NetworkError, UnsupportedError, UsageError

Json = dict[str, Any]
Transport = Callable[[str, Json | None], Iterable[bytes]]
_TIMEOUT_S = 600.0


class Server:
    """The server at `url`; `transport` sends a request and yields the lines of the answer as they arrive."""

    def __init__(self, url: str, model: str, transport: Transport, clock: Callable[[], float]) -> None:
        self._url, self._transport, self._clock = url.rstrip("/"), transport, clock
        self._model = model or self._first_model()
        self.identity = Identity(
            engine="server",
            backend="http",
            model=self._model,
            device="server",
            sampler="the server's; its number of steps is not known",
            obeys_steps=False,
        )

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        """See `Engine`."""
        _check(prompts, limits)
        start = self._clock()
        answer = _Stream()
        for line in self._transport(f"{self._url}/chat/completions", self._request(prompts[0], limits)):
            answer.take(line, self._clock() - start)
        total = self._clock() - start
        return Outcome(
            prompt_tokens=answer.usage("prompt_tokens"),
            tokens=min(answer.usage("completion_tokens"), limits.max_tokens),
            total_s=total,
            block_s=tuple(answer.arrivals),
            texts=("".join(answer.pieces),),
        )

    def peak_memory(self) -> int | None:
        """See `Engine`; a server keeps it to itself."""
        return None

    def close(self) -> None:
        """See `Engine`."""

    def _request(self, prompt: Prompt, limits: Limits) -> Json:
        asked: Json = {
            "model": self._model,
            "messages": [dict(message) for message in prompt.messages],
            "max_tokens": limits.max_tokens,
            "seed": limits.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if prompt.think:
            asked["chat_template_kwargs"] = {"enable_thinking": True}
        return asked | ({"ignore_eos": True, "min_tokens": limits.max_tokens} if limits.mode == "fixed" else {})

    def _first_model(self) -> str:
        answer = b"".join(self._transport(f"{self._url}/models", None))
        try:
            return str(json.loads(answer)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise NetworkError(f"{self._url}/models names no model.", "Name it with -m.") from error


@dataclass(slots=True)
class _Stream:
    """What has arrived of a streamed answer."""

    arrivals: list[float]
    pieces: list[str]
    _usage: Mapping[str, Any] | None = None

    def __init__(self) -> None:
        self.arrivals, self.pieces, self._usage = [], [], None

    def take(self, line: bytes, now: float) -> None:
        """One line of the event stream, which arrived at `now`."""
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise NetworkError(f"The server answered with an error: {event['error']}.")
        self._usage = event.get("usage") or self._usage
        text = "".join(choice.get("delta", {}).get("content") or "" for choice in event.get("choices") or ())
        if text:
            self.arrivals.append(now)
            self.pieces.append(text)

    def usage(self, field: str) -> int:
        """A count of the server's; guessing it from the chunks would be wrong."""
        if self._usage is None or field not in self._usage:
            raise UnsupportedError("The server does not report its usage, so tokens cannot be counted.")
        return int(self._usage[field])


def open_engine(target: Target) -> Server:
    """Connect to the URL in the argument; the model is the one named, or the server's first."""
    url = target.argument
    if url is None or not url.startswith(("http://", "https://")):
        raise UsageError("A server needs its address.", "For example: --engine server:http://localhost:8000/v1")
    return Server(url, "" if target.model == "demo" else target.model, _http, time.perf_counter)


def _check(prompts: tuple[Prompt, ...], limits: Limits) -> None:
    if len(prompts) != 1:
        raise UnsupportedError("A server is measured with one request at a time.", "Leave --batch out.")
    asked = limits.canvas_length or limits.entropy_bound or limits.prompt_tokens
    if asked or (limits.steps and limits.mode == "adaptive"):
        raise UnsupportedError("A server decides its own canvas, steps and prompt length.", "Leave the sweep out.")


def _http(url: str, payload: Json | None) -> Iterator[bytes]:
    data = None if payload is None else json.dumps(payload).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            yield from answer
    except urllib.error.HTTPError as error:
        raise NetworkError(f"{url} answered {error.code}: {error.read(300).decode(errors='replace')}.") from error
    except TimeoutError as error:
        raise NetworkError(f"{url} sent nothing for {_TIMEOUT_S:.0f} s.") from error
    except (OSError, http.client.HTTPException) as error:
        raise NetworkError(f"{url} cannot be reached: {error}.", "Is the server running?") from error
