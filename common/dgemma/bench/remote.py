"""The near end of a worker: an engine whose model lives in another process, so that its memory is its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import Any

from dgemma.bench.engines import EngineMissingError, Identity, Limits, Outcome, Target
from dgemma.bench.prompts import Prompt
from dgemma.errors import DgemmaError

COMMAND = (sys.executable, "-m", "dgemma.bench.worker")


class Remote:
    """An engine behind a pipe. Interrupts go to this process only; `close` ends the other one."""

    def __init__(self, target: Target) -> None:
        self._name = target.spelling
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*COMMAND, json.dumps(asdict(target))],
            stdin=pipe,
            stdout=pipe,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._peak: int | None = None
        try:
            self.identity = Identity(**self._receive()["identity"])
        except BaseException:
            self.close()
            raise

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        """See `Engine`."""
        request = {"prompts": [asdict(prompt) for prompt in prompts], "limits": asdict(limits)}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        answer = self._receive()
        self._peak = answer["peak"]
        return Outcome.from_dict(answer["outcome"])

    def peak_memory(self) -> int | None:
        """See `Engine`."""
        return self._peak

    def close(self) -> None:
        """End the process; a second call does nothing."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = EngineMissingError if answer["missing"] else DgemmaError
            raise kind(answer["error"], answer["remedy"])
        return answer

    def _died(self) -> DgemmaError:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "it said nothing"
        return DgemmaError(f"{self._name} ended with status {self._process.returncode}: {last}.")
