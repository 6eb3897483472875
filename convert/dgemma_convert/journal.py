"""Which weights of an unfinished result are whole, so that a later run can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dgemma.errors import UsageError
from dgemma_convert.deviation import Deviation
from dgemma_convert.identity import decisions
from dgemma_convert.plan import Plan

NAME = ".progress.jsonl"
LEFTOVER = ".progress.new"
GROUP = 1 << 28


class Journal:
    """A file beside the shards: what is converted, then a line for every weight that is on the disk."""

    def __init__(self, folder: Path, plan: Plan, whole: bool) -> None:
        """`whole` tells whether the shards are there, without which no line is true."""
        self._path = folder / NAME
        self.done = recorded(folder, plan) if whole else {}
        self._waiting: list[str] = []
        self._size = 0
        self._task: Future[None] | None = None
        self._rewrite(fingerprint(plan))

    @contextmanager
    def noting(self, sync: Callable[[], None]) -> Iterator[None]:
        """While active, finished weights are noted: in groups, each once `sync` has waited for the disk, meanwhile."""
        sync_names(self._path.parent)
        self._sync = sync
        with ThreadPoolExecutor(1) as self._pool:
            yield
            self._note()
            self._settle()

    def finish(self, name: str, deviation: Deviation | None, nbytes: int) -> None:
        """The weight `name` is written, as `nbytes`."""
        self.done[name] = {} if deviation is None else deviation.as_dict()
        self._waiting.append(name)
        self._size += nbytes
        if self._size >= GROUP and (self._task is None or self._task.done()):
            self._note()

    def remove(self) -> None:
        """Delete the file: the result is complete."""
        self._path.unlink()

    def _note(self) -> None:
        self._settle()
        lines = [_line(name, self.done[name]) for name in self._waiting]
        self._waiting, self._size = [], 0
        self._task = self._pool.submit(self._append, lines)

    def _settle(self) -> None:
        if self._task is not None:
            self._task.result()

    def _append(self, lines: list[str]) -> None:
        self._sync()
        with self._path.open("a") as file:
            file.write("".join(lines))

    def _rewrite(self, mark: str) -> None:
        """Without the half line that a killed run may have left."""
        lines = [json.dumps({"plan": mark}) + "\n"] + [_line(name, entry) for name, entry in self.done.items()]
        fresh = self._path.with_name(LEFTOVER)
        with fresh.open("w") as file:
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)


def fingerprint(plan: Plan) -> str:
    """A digest of the source's files, the flags and every decision."""
    path = plan.source.path
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return hashlib.sha256(json.dumps([stats, str(plan.options), decisions(plan)]).encode()).hexdigest()


def sync_names(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk, where its file system can do that."""
    with suppress(OSError):
        sync(folder)


def sync(path: Path) -> None:
    """Wait until the contents of `path` are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def recorded(folder: Path, plan: Plan) -> dict[str, dict[str, Any]]:
    """The finished weights with their errors. Raises UsageError where `plan` is not what was begun in `folder`."""
    path = folder / NAME
    if not path.is_file():
        return {}
    entries = [entry for line in path.read_text(errors="replace").splitlines() if (entry := _parsed(line)) is not None]
    if not entries or entries[0].get("plan") != fingerprint(plan):
        raise UsageError(
            f"{folder.name} was begun from other files or with other flags.", "Delete it, or repeat those flags."
        )
    return {entry["name"]: entry["deviation"] for entry in entries[1:] if entry.keys() >= {"name", "deviation"}}


def _line(name: str, deviation: dict[str, Any]) -> str:
    return json.dumps({"name": name, "deviation": deviation}) + "\n"


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
