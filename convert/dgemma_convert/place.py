"""Where a result goes: whether it can go there at all, and whether what lies there already belongs to it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from dgemma.errors import UsageError, WriteError
from dgemma.outputs import writing
from dgemma_convert.identity import digest
from dgemma_convert.journal import LEFTOVER, NAME, recorded
from dgemma_convert.plan import Plan

REPORT = "dgemma_convert.json"


def partial(target: Path) -> Path:
    """The folder in which `target` comes into being."""
    return target.with_name(target.name + ".partial")


def begun(target: Path) -> bool:
    """Whether there is an attempt at `target` that can be taken up."""
    return (partial(target) / NAME).is_file()


def check_place(source: Path, target: Path) -> None:
    """Before anything is read: raise where `target` cannot become a new folder, or would lie in the source."""
    if not target.name or target.name == "..":
        raise UsageError(f"{target} names no new folder.", "Choose another name.")
    with writing(target):
        if target.is_symlink() and not target.exists():
            raise UsageError(f"{target} is a link to nothing.", "Delete it, or choose another name.")
        above = next(each for each in target.absolute().parents if os.path.lexists(each))
        if not above.is_dir():
            raise WriteError(f"{target} cannot be written: {above} is not a folder.", "Choose another place.")
        if not os.access(above, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    origin, place = _real(source), _real(target)
    if origin in place.parents:
        raise UsageError(f"{target} lies in the source.", "Choose a place outside of it.")
    if _real(partial(target)) in (origin, *origin.parents):
        raise UsageError(f"The source lies in {partial(target)}, which would be written.", "Choose another name.")


def check_new(target: Path) -> None:
    """Raise UsageError where `target` exists."""
    if target.exists():
        raise UsageError(f"{target} exists already.", "Choose another name, or delete it.")


def finished(target: Path, plan: Plan) -> dict[str, Any]:
    """The report of the result `target`. Raises UsageError unless `plan` describes how it was made."""
    report = _report(target)
    if report is None:
        raise UsageError(f"{target} exists already.", "Choose another name, or delete it.")
    if report.get("fingerprint") != digest(plan):
        raise UsageError(
            f"{target} was made from other files or with other flags.",
            "Delete it, choose another name, or repeat those flags.",
        )
    return report


def check_partial(folder: Path, plan: Plan, resume: bool) -> None:
    """Raise UsageError where `folder` is there and is not an unfinished conversion, or one to be taken up unasked.

    One that was killed at its very end has its report, but its journal no more.
    """
    if not os.path.lexists(folder):
        return
    names = {each.name for each in folder.iterdir()} if folder.is_dir() and not folder.is_symlink() else {""}
    report = _report(folder)
    if not names <= {LEFTOVER} and NAME not in names and report is None:
        raise foreign(folder)
    if names and not resume:
        raise UsageError(f"{folder} is an unfinished conversion.", "Take it up with --resume, or delete it.")
    if NAME in names:
        recorded(folder, plan)
    elif report is not None and report.get("fingerprint") != digest(plan):
        raise foreign(folder)


def foreign(folder: Path) -> UsageError:
    """What is raised where `folder` is somebody else's."""
    return UsageError(f"{folder} is not an unfinished conversion.", "Move it away, or choose another name.")


def _report(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / REPORT).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
