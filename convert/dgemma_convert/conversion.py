"""The conversion itself: weight after weight, run after run, into a folder that gets its name when it is complete."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dgemma.errors import CheckpointError, UsageError
from dgemma.outputs import write_file, writing
from dgemma_convert import readers
from dgemma_convert import report as reports
from dgemma_convert.attempt import attempt
from dgemma_convert.card import card
from dgemma_convert.claim import check_unclaimed
from dgemma_convert.deviation import Deviation
from dgemma_convert.floats import Array, Floats, narrow, widen
from dgemma_convert.journal import Journal
from dgemma_convert.layout import Files, Shard, index, lay_out, whole
from dgemma_convert.meter import RUN, Meter, Progress
from dgemma_convert.naming import named
from dgemma_convert.packing import dequantize, quantize, recast
from dgemma_convert.pieces import finite
from dgemma_convert.place import REPORT, check_new, check_partial, check_place, finished, partial
from dgemma_convert.plan import Item, Options, Plan, make_plan
from dgemma_convert.source import Run, Source
from dgemma_convert.verification import verified
from dgemma_convert.writers import WRITERS

_Done = tuple[Run, dict[str, Array], Deviation | None]
_WORKERS = min(4, os.cpu_count() or 1)


def preview(source: Path, options: Options) -> Plan:
    """What `convert` would do; reads headers only."""
    options.check()
    return make_plan(readers.open_source(source), options)


def rehearse(source: Path, target: Path, options: Options, *, resume: bool = False) -> Plan:
    """What `convert` would do with the same arguments; raises what it would raise about the place. Writes nothing."""
    check_place(source, target)
    with writing(target):
        check_unclaimed(partial(target))
    if not resume:
        check_new(target)
    plan = preview(source, options)
    if target.exists():
        finished(target, plan)
    else:
        _check_partial(partial(target), plan, resume)
    return plan


def _check_partial(folder: Path, plan: Plan, resume: bool) -> None:
    """What lies there may have been begun since the place was looked at."""
    try:
        check_partial(folder, plan, resume)
    except UsageError:
        check_unclaimed(folder)
        raise


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
    plan = rehearse(source, target, options, resume=resume)
    if target.exists():
        return _finished(target, plan, verify, progress)
    outputs = [output for item in plan.items for output in item.outputs]
    shards = lay_out(outputs, WRITERS[options.to].FORMAT)
    with attempt(target, plan, resume) as folder:
        journal = Journal(folder, plan, whole(folder, shards))
        meter = Meter(plan.nbytes * (2 if verify else 1), progress)
        _check_duplicates(plan.source)
        with Files(folder, shards) as files, journal.noting(files.sync), ThreadPoolExecutor(_WORKERS) as pool:
            for item in plan.items:
                if item.weight.name in journal.done:
                    meter.add(item.nbytes, item.weight.name)
                else:
                    journal.finish(item.weight.name, _write(item, files, pool, meter), item.nbytes)
        _describe(folder, plan, shards)
        report = reports.as_dict(plan, journal.done, verified(folder, plan, journal.done, meter) if verify else None)
        _save(folder / REPORT, _text(report))
        _save(folder / "README.md", card(plan, report))
        journal.remove()
    return report


def _finished(target: Path, plan: Plan, verify: bool, progress: Progress) -> dict[str, Any]:
    report = finished(target, plan)
    if verify:
        recorded = reports.errors(report)
        report = reports.as_dict(plan, recorded, verified(target, plan, recorded, Meter(plan.nbytes, progress)))
        write_file(target / REPORT, _text(report).encode())
    return report


def _check_duplicates(source: Source) -> None:
    """Stored copies of tied tensors must equal their twins; they are not written."""
    for twin, copy in source.duplicates.items():
        original = source.weights.get(twin)
        if original is None or original.shape != copy.shape:
            raise CheckpointError(f"{copy.name} is tied to {twin}, which is not there in its shape.")
        for one, other in zip(copy.runs(RUN), original.runs(RUN), strict=False):
            with named(copy.name):
                differs = one.piece.values(one.first, one.stop) != other.piece.values(other.first, other.stop)
            if differs.any():
                raise CheckpointError(f"{copy.name} differs from {twin}, with which it is tied.")


def _write(item: Item, files: Files, pool: Executor, meter: Meter) -> Deviation | None:
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
    for run in item.weight.runs(RUN):
        waiting.append(pool.submit(_work, run, item))
        if len(waiting) > _WORKERS:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _work(run: Run, item: Item) -> _Done:
    with named(item.weight.name):
        return _done(run, item)


def _done(run: Run, item: Item) -> _Done:
    if item.keeps:
        return run, run.piece.parts(run.first, run.stop), None
    values = run.piece.values(run.first, run.stop)
    parts = _made(run, values if item.form is None else finite(values, "A number"), item)
    return run, parts, Deviation.between(values, _read_back(parts, item))


def _made(run: Run, values: Floats, item: Item) -> dict[str, Array]:
    if item.form is None:
        return {"weight": narrow(values, item.dtype)}
    if item.recasts:
        return recast(run.piece.parts(run.first, run.stop), item.recasts, item.form.scales)
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


def _text(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1) + "\n"


def _save(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
