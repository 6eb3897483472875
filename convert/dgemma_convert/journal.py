"""Which weights of an unfinished result are whole, so that a later run can go on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dgemma.errors import UsageError
from dgemma_convert.deviation import Deviation
from dgemma_convert.identity import decisions
from dgemma_convert.plan import Plan

NAME = ".progress.jsonl"
LEFTOVER = ".progress.new"


class Journal:
    """A file beside the shards: what is converted, then a line for every finished weight."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path = folder / NAME
        self.done = recorded(folder, plan)
        self._rewrite(fingerprint(plan))

    def finish(self, name: str, deviation: Deviation | None) -> None:
        """Note that the weight `name` is written."""
        self.done[name] = {} if deviation is None else deviation.as_dict()
        with self._path.open("a") as file:
            file.write(_line(name, self.done[name]))

    def remove(self) -> None:
        """Delete the file: the result is complete."""
        self._path.unlink()

    def _rewrite(self, mark: str) -> None:
        """Without the half line that a killed run may have left."""
        lines = [json.dumps({"plan": mark}) + "\n"] + [_line(name, entry) for name, entry in self.done.items()]
        fresh = self._path.with_name(LEFTOVER)
        fresh.write_text("".join(lines))
        fresh.replace(self._path)


def fingerprint(plan: Plan) -> str:
    """A digest of the source's files, the flags and every decision."""
    path = plan.source.path
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return hashlib.sha256(json.dumps([stats, str(plan.options), decisions(plan)]).encode()).hexdigest()


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
    return {entry["name"]: entry["deviation"] for entry in entries[1:]}


def _line(name: str, deviation: dict[str, Any]) -> str:
    return json.dumps({"name": name, "deviation": deviation}) + "\n"


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
