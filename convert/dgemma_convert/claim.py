"""One process at a time on a folder.

What is locked is the folder itself: the lock follows it when it is renamed, the kernel takes it back when its process
dies, and no file is left. Where the file system cannot lock folders (some network ones), processes do not see one
another.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dgemma.errors import BusyError
from dgemma_convert.place import foreign


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make `folder`, or take it over, and keep others away from it. Raises BusyError where another process is in it.

    With an error it goes away if it is empty.
    """
    with suppress(FileExistsError):
        folder.mkdir()
    handle = _opened(folder)
    try:
        _lock(handle, folder, fcntl.LOCK_EX)
        if not _is(folder, handle):
            raise _busy(folder)
        try:
            yield
        except BaseException:
            with suppress(OSError):
                folder.rmdir()
            raise
    finally:
        os.close(handle)


def check_unclaimed(folder: Path) -> None:
    """Raise BusyError where another process is in `folder`; changes nothing."""
    if not folder.is_dir():
        return
    handle = _opened(folder)
    try:
        _lock(handle, folder, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def _opened(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (NotADirectoryError, FileNotFoundError):
        if not os.path.lexists(folder):
            raise _busy(folder) from None
        raise foreign(folder) from None


def _lock(handle: int, folder: Path, kind: int) -> None:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(folder) from None
    except OSError:  # The file system cannot lock folders.
        return


def _is(folder: Path, handle: int) -> bool:
    """Whether it has not been renamed or deleted since it was opened."""
    with suppress(OSError):
        return os.path.samestat(folder.stat(), os.fstat(handle))
    return False


def _busy(folder: Path) -> BusyError:
    return BusyError(f"Another conversion is writing {folder}.", "Wait until it has ended, or choose another name.")
