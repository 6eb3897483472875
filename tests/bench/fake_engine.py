"""An engine that needs no model; its argument says how it behaves. Also what a worker process of it is started with."""

import itertools
import os
import signal
import sys

from dgemma.bench.engines import EngineMissingError, Identity, Limits, Outcome, Target
from dgemma.bench.prompts import Prompt
from dgemma.errors import DgemmaError, UnsupportedError

NAME, ENTRY = "fake", "tests.bench.fake_engine:open_engine"
WORKER = (
    "import sys; sys.path[:0] = {paths!r}; from dgemma.bench.engines import REGISTRY; "
    f"REGISTRY[{NAME!r}] = {ENTRY!r}; from dgemma.bench.worker import main; main()"
)


class Fake:
    def __init__(self, target: Target) -> None:
        self.behaviour = target.argument or ""
        self.runs: list[tuple[tuple[Prompt, ...], Limits]] = []
        self.closed = False
        random = "random" in self.behaviour
        self.identity = Identity("fake", target.model, "cpu", "none", canvas_length=32, random_weights=random)
        self._slower = itertools.count()

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        self.runs.append((prompts, limits))
        if "unbatched" in self.behaviour and len(prompts) > 1:
            raise UnsupportedError("One prompt at a time.", "Leave --batch out.")
        if "crash" in self.behaviour:
            print("Segmentation fault, say", file=sys.stderr, flush=True)
            os._exit(7)
        if "interrupt" in self.behaviour and len(self.runs) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        seconds = 1.0 + (next(self._slower) if "erratic" in self.behaviour else 0)
        if "chatty" in self.behaviour:
            print("chatter on standard output")
        answers = tuple(str(prompt.check.answer) if prompt.check else "text" for prompt in prompts)
        return Outcome(
            prompt_tokens=5 * len(prompts),
            tokens=20 * len(prompts),
            total_s=seconds,
            texts=answers,
            block_s=(seconds / 2, seconds),
            steps_per_canvas=(3, 5) * len(prompts),
            commit_passes=len(prompts),
            step_ms=(50.0,) * 4,
            prefill_s=0.1,
            components_ms={"backend": 40.0, "rules": 10.0},
        )

    def peak_memory(self) -> int | None:
        return 1234

    def close(self) -> None:
        self.closed = True


def open_engine(target: Target) -> Fake:
    if target.argument == "missing":
        raise EngineMissingError("fakelib is not installed.", "pip install fakelib")
    if target.argument == "broken":
        raise DgemmaError("The fake is broken.")
    return Fake(target)
