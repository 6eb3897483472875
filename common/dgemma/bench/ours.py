"""dgemma as an engine: the rules and random numbers of `dgemma generate`, with a clock around each pass."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from dgemma import __version__
from dgemma.answer import Answer
from dgemma.api import Model, load
from dgemma.backend import Backend, Inspection, Job, Prediction
from dgemma.bench.engines import Identity, Limits, Outcome, Target
from dgemma.bench.fitting import fit
from dgemma.bench.identity import describe
from dgemma.bench.meters import Cost, Rates, device_rates, host_rates
from dgemma.bench.prompts import Prompt
from dgemma.engine import Engine, Request, StopTokens
from dgemma.errors import require
from dgemma.events import Block, Draft, Event, Finish
from dgemma.memory import peak_resident_bytes
from dgemma.modes import mode_of
from dgemma.schedule import Denoising
from dgemma.settings import Settings
from dgemma.stats import Stats

_SAMPLERS = {
    "diffusion": "entropy bound, the checkpoint's schedule and stop rule",
    "ar": "greedy, one token a pass, by the same weights' encoder",
    "verified": "canvases drafted and checked by the same weights' encoder, greedy",
}
_LIBRARY = {"mlx": "mlx", "cuda": "torch"}


class Ours:
    """A loaded model in one decoding mode."""

    def __init__(self, model: Model, dtype: str, mode: str = "diffusion") -> None:
        self._model, self._mode = model, mode
        origin, rates = model.origin, _rates(model.backend)
        self.identity = Identity(
            engine="dgemma" if mode == "diffusion" else f"dgemma {mode}",
            engine_version=__version__,
            model=origin.model,
            revision=origin.revision,
            backend=origin.backend,
            device=origin.device,
            kernels=_named(origin.kernels),
            sampler=_SAMPLERS[mode],
            dtype=dtype,
            **describe(model.folder),
            **(asdict(rates) if rates else {}),
        )

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        """See `Engine`."""
        texts = [self._text(prompt) for prompt in prompts]
        answers = [Answer(self._model.tokenizer, text) for text in texts]
        requests = [self._request(text, answer, limits) for text, answer in zip(texts, answers, strict=True)]
        watch = _Watch(self._model.backend)
        cost = Cost(self._model.backend.device)
        watch.run(requests)
        for handle, tokens in watch.blocks:
            answers[handle].push(tokens)
        for answer in answers:
            answer.flush()
        return watch.outcome([answer.text for answer in answers], cost)

    def peak_memory(self) -> int | None:
        """See `Engine`."""
        backend = self._model.backend
        return peak_resident_bytes() if backend.device == "cpu" else backend.memory().peak

    def close(self) -> None:
        """See `Engine`."""
        self._model.close()

    def _text(self, prompt: Prompt) -> str:
        messages = [dict(message) for message in prompt.messages]
        return self._model.prompt_text(messages, Settings(think=prompt.think))

    def _request(self, text: str, answer: Answer, limits: Limits) -> Request:
        fixed = limits.mode == "fixed"
        return Request(
            prompt=fit(self._model.tokenizer.encode(text), limits.prompt_tokens),
            max_tokens=limits.max_tokens,
            denoising=Denoising.from_defaults(
                self._model.defaults, steps=limits.steps, entropy_bound=limits.entropy_bound, early_stop=not fixed
            ),
            seed=limits.seed,
            canvas_length=limits.canvas_length,
            stop=StopTokens(()) if fixed else answer.rule,
            mode=mode_of(Settings(mode=self._mode), self._model.tokenizer, self._model.defaults),
        )


class _Watch:
    """Drives an engine and takes the time of every pass; a pass is host rules and the backend's `forward`."""

    def __init__(self, backend: Backend) -> None:
        self._timed = _TimedBackend(backend)
        self._engine = Engine(self._timed)
        self._stats: dict[int, Stats] = {}
        self._arrivals: list[float] = []
        self._steps: list[float] = []
        self._total = 0.0
        self._components: Counter[str] = Counter()
        self.blocks: list[tuple[int, tuple[int, ...]]] = []

    def run(self, requests: Sequence[Request]) -> None:
        """Generate for all requests as one batch."""
        start = time.perf_counter()
        for request in requests:
            self._engine.submit(request)
        while not self._engine.idle:
            began, self._timed.seconds = time.perf_counter(), 0.0
            events = self._engine.step()
            now = time.perf_counter()
            self._account(events, now - began, now - start)
        self._total = time.perf_counter() - start

    def outcome(self, texts: Sequence[str], cost: Cost) -> Outcome:
        """Everything measured."""
        stats = list(self._stats.values())
        canvas = sum(len(each.steps_per_canvas) for each in stats) * self._timed.canvas
        return Outcome(
            prompt_tokens=sum(each.prompt_tokens for each in stats),
            tokens=sum(each.completion_tokens for each in stats),
            canvas_tokens=canvas or None,
            total_s=self._total,
            prefill_s=max(each.prefill_s for each in stats),
            block_s=tuple(self._arrivals),
            steps_per_canvas=tuple(steps for each in stats for steps in each.steps_per_canvas),
            commit_passes=sum(max(each.canvases - 1, 0) for each in stats),
            step_ms=tuple(1e3 * each for each in self._steps),
            components_ms={name: 1e3 * each / len(self._steps) for name, each in self._components.items()},
            cpu_s=cost.cpu_s(),
            energy_j=cost.energy_j(),
            texts=tuple(texts),
        )

    def _account(self, events: Sequence[Event], seconds: float, since_start: float) -> None:
        drafts = [event for event in events if isinstance(event, Draft)]
        if drafts and not self._timed.encoded:
            self._steps.append(seconds)
            self._components.update({"backend": self._timed.seconds, "rules": seconds - self._timed.seconds})
        for event in events:
            if isinstance(event, Block):
                self._arrivals.append(since_start)
                self.blocks.append((event.handle, event.tokens))
            elif isinstance(event, Finish):
                self._stats[event.handle] = event.stats


class _TimedBackend:
    """A backend whose `forward` is timed; `encoded` says whether the last pass also wrote to a cache."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.name, self.device, self.dtype, self.config = inner.name, inner.device, inner.dtype, inner.config
        self.kernels: Mapping[str, str] = getattr(inner, "kernels", {})
        self.open, self.memory = inner.open, inner.memory
        self.seconds, self.encoded, self.canvas = 0.0, False, 0

    def forward(self, jobs: Sequence[Job]) -> list[Prediction | None]:
        """As the inner backend's."""
        start = time.perf_counter()
        found = self._inner.forward(jobs)
        self.seconds += time.perf_counter() - start
        self.encoded = any(prediction is None for prediction in found)
        self.canvas = max((each.argmax.size for each in found if each is not None), default=self.canvas)
        return found

    def inspect(self, job: Job) -> Inspection:
        """As the inner backend's."""
        return self._inner.inspect(job)


def open_engine(target: Target) -> Ours:
    """Load the model; the argument is BACKEND, BACKEND,MODE or ,MODE. Raises UsageError on an unknown mode."""
    backend, _, mode = (target.argument or "").partition(",")
    require((mode or "diffusion") in _SAMPLERS, f"Unknown mode {mode!r}.", f"Choose of: {', '.join(_SAMPLERS)}.")
    model = load(target.model, backend or "auto", device=target.device, dtype=target.dtype, offline=target.offline)
    default = "float32" if model.backend.device == "cpu" else model.backend.config.dtype
    return Ours(model, target.dtype or default, mode or "diffusion")


def _rates(backend: Backend) -> Rates | None:
    return host_rates() if backend.device == "cpu" else device_rates(_LIBRARY.get(backend.name, backend.name))


def _named(kernels: Mapping[str, str] | None) -> str | None:
    return ", ".join(f"{part} {name}" for part, name in kernels.items()) if kernels else None
