"""How the jobs of one pass are laid out as rows: no padding, causal rows first, canvas rows behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dgemma.backend import Context, DenoiseJob, EncodeJob, Float32s, Int32s, Job, Prediction


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one job: `rows` rows from `start`, standing at positions `position`.. of `context`."""

    context: Context
    start: int
    rows: int
    position: int
    canvas: bool

    @property
    def span(self) -> slice:
        """The rows of this job within the batch."""
        return slice(self.start, self.start + self.rows)

    @property
    def end(self) -> int:
        """The position behind its last row."""
        return self.position + self.rows


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one pass, N in all, R of them predicted; host arrays only.

    `tokens`, `positions` [N]; the first `causal` rows belong to encode jobs. `predicted` [R] names rows in order, the
    last `canvas_rows` of them being the canvas rows; `temperatures`, `uniforms`, `greedy` [R] go with them.
    """

    segments: tuple[Segment, ...]
    tokens: Int32s
    positions: Int32s
    causal: int
    predicted: Int32s
    temperatures: Float32s
    uniforms: Float32s
    greedy: NDArray[np.bool_]
    owners: tuple[slice | None, ...]

    @property
    def canvas_rows(self) -> int:
        """Number of canvas rows."""
        return len(self.tokens) - self.causal

    @property
    def canvases(self) -> tuple[Segment, ...]:
        """The denoise jobs' segments."""
        return tuple(segment for segment in self.segments if segment.canvas)

    @property
    def encoded(self) -> tuple[Segment, ...]:
        """The encode jobs' segments."""
        return tuple(segment for segment in self.segments if not segment.canvas)

    def split(self, prediction: Prediction) -> list[Prediction | None]:
        """One prediction a job, in the order of the jobs, from one over all R predicted rows."""
        return [None if rows is None else _cut(prediction, rows) for rows in self.owners]


def lay_out(jobs: Sequence[Job]) -> Batch:
    """Arrange `jobs` as one batch. A context encoded in this pass is denoised behind what it encodes."""
    order = sorted(range(len(jobs)), key=lambda index: isinstance(jobs[index], DenoiseJob))
    ends = {id(job.context): job.context.length + len(job.tokens) for job in jobs if isinstance(job, EncodeJob)}
    segments: list[Segment] = []
    wanted: list[_Rows] = []
    owners: list[slice | None] = [None] * len(jobs)
    row = count = 0
    for index in order:
        job = jobs[index]
        segments.append(_segment(job, row, ends))
        if (rows := _wanted(job, row)) is not None:
            wanted.append(rows)
            owners[index] = slice(count, count + len(rows.rows))
            count += len(rows.rows)
        row += len(job.tokens)
    return _batch([jobs[index] for index in order], segments, wanted, owners)


@dataclass(frozen=True, slots=True)
class _Rows:
    rows: Int32s
    temperature: float
    uniforms: Float32s | None


def _segment(job: Job, row: int, ends: dict[int, int]) -> Segment:
    canvas = isinstance(job, DenoiseJob)
    position = ends.get(id(job.context), job.context.length) if canvas else job.context.length
    return Segment(job.context, row, len(job.tokens), position, canvas)


def _wanted(job: Job, row: int) -> _Rows | None:
    if isinstance(job, EncodeJob) and job.predict == "none":
        return None
    first = row + len(job.tokens) - 1 if isinstance(job, EncodeJob) and job.predict == "last" else row
    rows = np.arange(first, row + len(job.tokens), dtype=np.int32)
    return _Rows(rows, job.temperature, job.uniforms)


def _batch(
    jobs: Sequence[Job], segments: Sequence[Segment], wanted: Sequence[_Rows], owners: Sequence[slice | None]
) -> Batch:
    counts = [len(each.rows) for each in wanted]
    uniforms = [np.zeros(len(each.rows), np.float32) if each.uniforms is None else each.uniforms for each in wanted]
    return Batch(
        segments=tuple(segments),
        tokens=_join([job.tokens for job in jobs], np.int32),
        positions=_join([np.arange(each.position, each.end) for each in segments], np.int32),
        causal=sum(each.rows for each in segments if not each.canvas),
        predicted=_join([each.rows for each in wanted], np.int32),
        temperatures=np.repeat(np.array([each.temperature for each in wanted], np.float32), counts),
        uniforms=_join(uniforms, np.float32),
        greedy=np.repeat(np.array([each.uniforms is None for each in wanted], np.bool_), counts),
        owners=tuple(owners),
    )


def _join(parts: Sequence[NDArray[np.generic]], dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)


def _cut(prediction: Prediction, rows: slice) -> Prediction:
    names = ("sampled", "argmax", "entropy", "margin")
    return Prediction(*(getattr(prediction, name)[rows] for name in names))
