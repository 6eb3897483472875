"""An engine in a process of its own: `python -m dgemma.bench.worker TARGET`, JSON lines in and out.

Whatever a library prints goes to standard error; standard output carries the protocol only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, TextIO

from dgemma.bench.engines import Engine, EngineMissingError, Limits, Target, open_engine
from dgemma.bench.prompts import Prompt
from dgemma.errors import DgemmaError


def main() -> None:
    """Serve one engine until standard input ends."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(Target(**json.loads(sys.argv[1])), sys.stdin, channel)


def serve(target: Target, requests: Iterable[str], channel: TextIO) -> None:
    """Open the engine, report who it is, and answer a run per line."""
    try:
        engine = open_engine(target)
    except Exception as error:
        _send(channel, _failure(error))
        return
    _send(channel, {"identity": asdict(engine.identity)})
    for line in requests:
        _send(channel, _answer(engine, json.loads(line)))
    engine.close()


def _answer(engine: Engine, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        prompts = tuple(_prompt(raw) for raw in request["prompts"])
        outcome = engine.run(prompts, Limits(**request["limits"]))
    except Exception as error:
        return _failure(error)
    return {"outcome": asdict(outcome), "peak": engine.peak_memory()}


def _prompt(raw: Mapping[str, Any]) -> Prompt:
    return Prompt(raw["id"], tuple(raw["messages"]), raw["think"])


def _failure(error: Exception) -> dict[str, Any]:
    known = isinstance(error, DgemmaError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    missing = isinstance(error, EngineMissingError)
    return {"error": " ".join(text.split()), "remedy": getattr(error, "remedy", ""), "missing": missing}


def _send(channel: TextIO, message: Mapping[str, Any]) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()


if __name__ == "__main__":
    main()
