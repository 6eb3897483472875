"""The measurement itself: warm-up, then repetitions in which the engines take turns prompt by prompt.

Taking turns makes a busy machine slow all engines alike; the order rotates from one repetition to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any

from dgemma.bench.checks import is_right
from dgemma.bench.engines import Engine, Identity, Limits, Outcome
from dgemma.bench.environment import machine, short
from dgemma.bench.metrics import summarise
from dgemma.bench.profiles import Point
from dgemma.bench.prompts import Profile, Prompt
from dgemma.bench.row import SCHEMA, Row, Sample
from dgemma.errors import DgemmaError

_IDENTITY = (
    *("engine", "engine_version", "backend", "device", "model", "revision", "model_hash", "weight_format", "dtype"),
    *("kernels", "sampler", "copy_gb_s", "matmul_tflop_s"),
)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a run tells and asks: `row` a finished row, `note` a line for people, `progress` where it is, `stopped`."""

    row: Callable[[Row], None]
    note: Callable[[str], None] = lambda line: None
    progress: Callable[[str], None] = lambda line: None
    stopped: Callable[[], bool] = lambda: False


@dataclass(slots=True)
class _Tally:
    """What one engine has done at one point."""

    engine: Engine
    load_s: float | None
    warmup_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    components: dict[str, list[float]] = field(default_factory=dict)
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that does not change between points: engines by spelling, profile, repetitions, surroundings."""

    engines: Mapping[str, Engine]
    profile: Profile
    repetitions: int
    warm_up: bool
    standard: bool
    environment: Mapping[str, Any]
    load_s: Mapping[str, float] = field(default_factory=dict)

    def measure(self, points: Sequence[Point], hooks: Hooks) -> None:
        """Measure point by point; each point's rows are handed over as soon as it is done."""
        for number, point in enumerate(points, 1):
            tallies = {name: _Tally(engine, self.load_s.get(name)) for name, engine in self.engines.items()}
            if not self._point(point, tallies, hooks, f"point {number}/{len(points)}"):
                return
            for tally in tallies.values():
                if not tally.failed:
                    hooks.row(self._row(point, tally))

    def _point(self, point: Point, tallies: Mapping[str, _Tally], hooks: Hooks, where: str) -> bool:
        """Fill the tallies; False where the user stopped it."""
        groups = list(_groups(self.profile.prompts, point.batch))
        if self.warm_up:
            for name, tally in tallies.items():
                hooks.progress(f"{where} · warming up {name}")
                start = time.perf_counter()
                self._try(name, tally, groups[0], point.limits, hooks)
                tally.warmup_s = time.perf_counter() - start
                if hooks.stopped():
                    return False
        for repetition in range(self.repetitions):
            for index, group in enumerate(groups, 1):
                for name in _rotated(list(tallies), repetition):
                    place = f"repetition {repetition + 1}/{self.repetitions} · prompt {index}/{len(groups)}"
                    hooks.progress(f"{where} · {place} · {name}")
                    self._sample(name, tallies[name], group, point.limits, repetition, hooks)
                    if hooks.stopped():
                        return False
        return True

    def _sample(
        self, name: str, tally: _Tally, group: tuple[Prompt, ...], limits: Limits, repetition: int, hooks: Hooks
    ) -> None:
        outcome = self._try(name, tally, group, limits, hooks)
        if outcome is not None:
            tally.samples.append(sample(group, outcome, repetition))
            for part, milliseconds in outcome.components_ms.items():
                tally.components.setdefault(part, []).append(milliseconds)

    def _try(self, name: str, tally: _Tally, group: tuple[Prompt, ...], limits: Limits, hooks: Hooks) -> Outcome | None:
        """A run, or None and a note where the engine cannot; it is then left out of the point."""
        if tally.failed:
            return None
        try:
            return tally.engine.run(group, limits)
        except DgemmaError as error:
            tally.failed = True
            hooks.note(f"Skipped {name} at this point: {error.line()}")
            return None

    def _row(self, point: Point, tally: _Tally) -> Row:
        identity, limits, profile = tally.engine.identity, point.limits, self.profile
        measured = summarise(tally.samples, identity.random_weights)
        measured |= shares(identity, measured["step_ms_p50"], point)
        measured |= {name: getattr(identity, name) for name in _IDENTITY} | {"model": short(identity.model)}
        return Row(
            schema=SCHEMA,
            label="smoke" if identity.device == "cpu" else "measured",
            weights="random" if identity.random_weights else "trained",
            standard=self.standard,
            machine=machine(identity.device),
            profile=profile.name,
            profile_version=profile.version,
            profile_hash=profile.hash,
            mode=limits.mode,
            prompts=len(profile.prompts),
            repetitions=self.repetitions,
            batch=point.batch,
            prompt_tokens=max(each.prompt_tokens // each.sequences for each in tally.samples),
            max_tokens=limits.max_tokens,
            canvas_length=limits.canvas_length or identity.canvas_length,
            steps=limits.steps if identity.obeys_steps else None,
            entropy_bound=limits.entropy_bound,
            seed=limits.seed,
            peak_memory_bytes=tally.engine.peak_memory(),
            load_s=tally.load_s,
            warmup_s=tally.warmup_s,
            components_ms={name: sum(each) / len(each) for name, each in tally.components.items()},
            settings={each.name: getattr(limits, each.name) for each in fields(limits)},
            environment=self.environment,
            samples=tuple(tally.samples),
            **measured,
        )


def sample(group: tuple[Prompt, ...], outcome: Outcome, repetition: int) -> Sample:
    """An outcome as a sample: who asked, and whether the answers are right."""
    judged = [is_right(text, prompt.check) for prompt, text in zip(group, outcome.texts, strict=True) if prompt.check]
    copied = {each.name: getattr(outcome, each.name) for each in fields(Sample) if hasattr(outcome, each.name)}
    return Sample(
        prompt="+".join(prompt.id for prompt in group),
        repetition=repetition,
        sequences=len(group),
        correct=sum(judged),
        checkable=len(judged),
        answer_sha256=sha256("\0".join(outcome.texts).encode()).hexdigest()[:16],
        **copied,
    )


def shares(identity: Identity, step_ms: float | None, point: Point) -> dict[str, Any]:
    """How much of the measured copy bandwidth and matrix rate a median step reaches; only for one whole canvas."""
    plain = point.batch == 1 and point.limits.canvas_length in (None, identity.canvas_length)
    found: dict[str, Any] = {"bandwidth_share": None, "compute_share": None}
    if step_ms is None or not plain:
        return found
    if identity.step_bytes and identity.copy_gb_s:
        found["bandwidth_share"] = identity.step_bytes / (step_ms * 1e6) / identity.copy_gb_s
    if identity.step_flops and identity.matmul_tflop_s:
        found["compute_share"] = identity.step_flops / (step_ms * 1e9) / identity.matmul_tflop_s
    return found


def _groups(prompts: Sequence[Prompt], batch: int) -> Iterator[tuple[Prompt, ...]]:
    """Full batches only; a profile shorter than the batch is repeated."""
    if batch == 1:
        yield from ((prompt,) for prompt in prompts)
        return
    wanted = max(len(prompts) // batch, 1) * batch
    repeated = [prompts[index % len(prompts)] for index in range(wanted)]
    yield from (tuple(repeated[start : start + batch]) for start in range(0, wanted, batch))


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]
