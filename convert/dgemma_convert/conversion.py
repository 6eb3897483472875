"""The conversion itself: weight after weight, run after run, into a folder that gets its name when it is complete."""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgemma.errors import CheckpointError, DgemmaError, UnsupportedError, UsageError
from dgemma.outputs import write_file, writing
from dgemma_convert import readers
from dgemma_convert import report as reports
from dgemma_convert.card import card
from dgemma_convert.deviation import Deviation
from dgemma_convert.floats import Array, Floats, narrow, widen
from dgemma_convert.journal import Journal
from dgemma_convert.layout import Files, Shard, full, index, lay_out
from dgemma_convert.packing import dequantize, quantize
from dgemma_convert.pieces import EXACT, finite
from dgemma_convert.place import REPORT, check_partial, check_place, finished, partial
from dgemma_convert.plan import Item, Options, Plan, make_plan
from dgemma_convert.source import Run, Source, Weight
from dgemma_convert.writers import WRITERS

Progress = Callable[[int, int, str], None]
_Done = tuple[Run, dict[str, Array], Deviation | None]
_RUN = 1 << 23
_ROOM = 64_000_000
_WORKERS = min(4, os.cpu_count() or 1)


@dataclass(slots=True)
class _Meter:
    """Bytes done of bytes to do."""

    total: int
    show: Progress
    done: int = 0

    def add(self, count: int, name: str) -> None:
        self.done += count
        self.show(self.done, self.total, name)


def preview(source: Path, options: Options) -> Plan:
    """What `convert` would do; reads headers only."""
    options.check()
    return make_plan(readers.open_source(source), options)


def convert(
    source: Path,
    target: Path,
    options: Options,
    *,
    verify: bool = False,
    resume: bool = False,
    progress: Progress = lambda done, total, name: None,
) -> dict[str, Any]:
    """Convert `source` into the folder `target` and return the report.

    `target` appears only when it is complete. With `resume`, an attempt that was killed is taken up again; the result
    is the same to the byte. A finished one, made from the same files with the same flags, is only reported, and with
    `verify` read again. Raises DgemmaError, after which nothing is left of the attempt.
    """
    check_place(source, target)
    if target.exists() and not resume:
        raise UsageError(f"{target} exists already.", "Choose another name, or delete it.")
    plan = preview(source, options)
    if target.exists():
        return _finished(target, plan, verify, progress)
    outputs = [output for item in plan.items for output in item.outputs]
    shards = lay_out(outputs, WRITERS[options.to].FORMAT)
    with _attempt(target, plan, resume) as folder:
        journal = Journal(folder, plan)
        meter = _Meter(plan.nbytes * (2 if verify else 1), progress)
        _check_duplicates(plan.source)
        with Files(folder, shards) as files, ThreadPoolExecutor(_WORKERS) as pool:
            for item in plan.items:
                if item.weight.name in journal.done:
                    meter.add(item.nbytes, item.weight.name)
                else:
                    journal.finish(item.weight.name, _write(item, files, pool, meter))
            files.sync()
        _describe(folder, plan, shards)
        report = reports.as_dict(plan, journal.done, _verified(folder, plan, meter) if verify else None)
        _save(folder / REPORT, _text(report))
        _save(folder / "README.md", card(plan, report))
        journal.remove()
        folder.rename(target)
    return report


def _finished(target: Path, plan: Plan, verify: bool, progress: Progress) -> dict[str, Any]:
    report = finished(target, plan)
    if verify:
        report = reports.as_dict(plan, {}, _verified(target, plan, _Meter(plan.nbytes, progress)))
        write_file(target / REPORT, _text(report).encode())
    return report


@contextmanager
def _attempt(target: Path, plan: Plan, resume: bool) -> Iterator[Path]:
    """The folder to write into; it goes away with an error, and stays where the process is killed or interrupted."""
    folder = partial(target)
    if folder.exists() and not resume:
        raise UsageError(f"{folder} is an unfinished conversion.", "Take it up with --resume, or delete it.")
    check_partial(folder, plan)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_room(folder, plan.nbytes)
        folder.mkdir(exist_ok=True)
    try:
        yield folder
    except UsageError:
        raise
    except DgemmaError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise full(error) from error


def _check_room(folder: Path, nbytes: int) -> None:
    taken = sum(file.stat().st_blocks * 512 for file in folder.iterdir()) if folder.exists() else 0
    free = shutil.disk_usage(folder.parent).free
    if nbytes + _ROOM > free + taken:
        raise DgemmaError(
            f"{folder.parent} has {free / 1e9:.1f} GB free, the result needs {nbytes / 1e9:.1f} GB.",
            "Make room, or choose another place or fewer bits.",
        )


def _check_duplicates(source: Source) -> None:
    """Stored copies of tied tensors must equal their twins; they are not written."""
    for twin, copy in source.duplicates.items():
        original = source.weights.get(twin)
        if original is None or original.shape != copy.shape:
            raise CheckpointError(f"{copy.name} is tied to {twin}, which is not there in its shape.")
        for one, other in zip(copy.runs(_RUN), original.runs(_RUN), strict=False):
            with _named(copy.name):
                differs = one.piece.values(one.first, one.stop) != other.piece.values(other.first, other.stop)
            if differs.any():
                raise CheckpointError(f"{copy.name} differs from {twin}, with which it is tied.")


def _write(item: Item, files: Files, pool: Executor, meter: _Meter) -> Deviation | None:
    total = None if item.keeps else Deviation()
    height = item.weight.rows
    for run, parts, deviation in _ahead(pool, item):
        if total is not None and deviation is not None:
            total.merge(deviation)
        for output in item.outputs:
            files.write(output.name, run.row * (output.nbytes // height), parts[output.part])
        meter.add(sum(parts[output.part].nbytes for output in item.outputs), item.weight.name)
    return total


def _ahead(pool: Executor, item: Item) -> Iterator[_Done]:
    """The runs of a weight in order, a few of them in work at a time."""
    waiting: deque[Future[_Done]] = deque()
    for run in item.weight.runs(_RUN):
        waiting.append(pool.submit(_work, run, item))
        if len(waiting) > _WORKERS:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _work(run: Run, item: Item) -> _Done:
    with _named(item.weight.name):
        return _done(run, item)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors of a weight's numbers with its name; what overflows is found there, not in numpy's warnings."""
    try:
        with np.errstate(all="ignore"):
            yield
    except UnsupportedError as error:
        raise type(error)(f"{name}: {error}", error.remedy) from error


def _done(run: Run, item: Item) -> _Done:
    if item.keeps:
        return run, run.piece.parts(run.first, run.stop), None
    values = finite(run.piece.values(run.first, run.stop), "A number")
    parts = _made(values, item)
    return run, parts, Deviation.between(values, _read_back(parts, item))


def _made(values: Floats, item: Item) -> dict[str, Array]:
    if item.form is None:
        return {"weight": narrow(values, item.dtype)}
    return quantize(values, item.form.spec, item.form.scales)


def _read_back(parts: dict[str, Array], item: Item) -> Floats:
    if item.form is None:
        return widen(parts["weight"], item.dtype)
    return dequantize(parts, item.form.spec, item.form.scales)


def _describe(folder: Path, plan: Plan, shards: list[Shard]) -> None:
    """Write everything that is neither a tensor nor about the conversion."""
    if len(shards) > 1:
        outputs = [output for item in plan.items for output in item.outputs]
        _save(folder / "model.safetensors.index.json", index(shards, outputs))
    _save(folder / "config.json", json.dumps(WRITERS[plan.options.to].config(plan), indent=2) + "\n")
    for name, content in plan.source.files.items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        (folder / name).write_bytes(data)


def _verified(folder: Path, plan: Plan, meter: _Meter) -> dict[str, Any]:
    """The errors of what lies on the disk, read as any reader would; an exact tensor that is not is an error."""
    written = readers.open_source(folder).weights
    found: dict[str, Any] = {}
    for item in plan.items:
        deviation = _compared(item.weight, written[item.weight.name])
        if item.label == EXACT and deviation.largest:
            raise DgemmaError(f"{item.weight.name} should be exact, but is off by up to {deviation.largest:.3g}.")
        found[item.weight.name] = deviation.as_dict()
        meter.add(item.nbytes, item.weight.name)
    return found


def _compared(original: Weight, written: Weight) -> Deviation:
    deviation = Deviation()
    for run in original.runs(_RUN):
        with _named(original.name):
            deviation.merge(Deviation.between(run.piece.values(run.first, run.stop), _rows(written, run)))
    return deviation


def _rows(written: Weight, run: Run) -> Floats:
    (piece,) = written.pieces
    return piece.values(run.row, run.row + run.stop - run.first)


def _text(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1) + "\n"


def _save(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
