"""The folder in which a result comes into being: this process's alone, gone after an error, renamed when complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dgemma.errors import DgemmaError, UsageError
from dgemma.outputs import writing
from dgemma_convert.claim import claimed
from dgemma_convert.journal import sync, sync_names
from dgemma_convert.layout import full
from dgemma_convert.place import check_new, check_partial, partial
from dgemma_convert.plan import Plan
from dgemma_convert.report import spelled_size

_ROOM = 64_000_000


@contextmanager
def attempt(target: Path, plan: Plan, resume: bool) -> Iterator[Path]:
    """The folder to write into; it gets the name `target` at the end.

    It goes away with an error, and stays where the process is killed or interrupted.
    """
    folder = partial(target)
    _check_room(folder, plan.nbytes)
    with writing(target), _above(folder), claimed(folder):
        check_new(target)
        check_partial(folder, plan, resume)
        with _cleaned(folder):
            yield folder
            _complete(folder, target)


@contextmanager
def _cleaned(folder: Path) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise full(error) from error
        raise


@contextmanager
def _above(folder: Path) -> Iterator[None]:
    """The folders above it; those that were missing go away with an error, too."""
    missing = [each for each in folder.parents if not each.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except Exception:
        with suppress(OSError):
            for each in missing:
                each.rmdir()
        raise


def _check_room(folder: Path, nbytes: int) -> None:
    taken = sum(file.stat().st_blocks * 512 for file in folder.iterdir()) if folder.is_dir() else 0
    place = next(each for each in folder.absolute().parents if each.exists())
    free = shutil.disk_usage(place).free + taken
    if nbytes + _ROOM > free:
        raise DgemmaError(
            f"{place} has {spelled_size(free)} free, the result needs {spelled_size(nbytes)}"
            f" and {spelled_size(_ROOM)} to spare.",
            "Make room, or choose another place or fewer bits.",
        )


def _complete(folder: Path, target: Path) -> None:
    """Everything on the disk, then the name."""
    for each in folder.iterdir():
        sync(each)
    sync_names(folder)
    folder.rename(target)
    sync_names(target.parent)
