"""Files that are written: never over an input, never half, and what fails is told with its remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dgemma.errors import StandardOutputError, UsageError, WriteError

_STANDARD_INPUT = Path("/dev/stdin")
_REMEDIES = {
    errno.ENOENT: "Make its folder first.",
    errno.ENOTDIR: "Make its folder first.",
    errno.EISDIR: "Name a file in it.",
    errno.EACCES: "Name a place that you may write to.",
    errno.EPERM: "Name a place that you may write to.",
    errno.EROFS: "Name a place that you may write to.",
    errno.ENOSPC: "Free some space, or name another place.",
    errno.EDQUOT: "Free some space, or name another place.",
}


@contextmanager
def writing(name: Path | str) -> Iterator[None]:
    """Raise WriteError in place of what the system says about `name`; a reader that left stays BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise WriteError(_told(name, error), _remedy(error)) from error


@contextmanager
def standard_output() -> Iterator[None]:
    """The same for standard output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StandardOutputError(_told("Standard output", error), _remedy(error)) from error


def check_distinct(path: Path, *inputs: Path) -> None:
    """UsageError where `path` is one of `inputs` or standard input, also behind links, or has no name."""
    if path == Path():
        raise UsageError("The name of the file to write is empty or a folder.", "Name a file.")
    for each in (*inputs, _STANDARD_INPUT):
        with suppress(OSError):
            if path.is_file() and path.samefile(each):
                raise UsageError(f"{path} is an input; it would be overwritten.", "Name another file.")


def check_output(path: Path, *inputs: Path) -> None:
    """Before anything is computed: UsageError where `path` is an input, also behind links; WriteError as `writing`."""
    check_distinct(path, *inputs)
    if path.exists() and not path.is_file() and not path.is_dir():
        return
    new = not path.exists()
    with writing(path):
        path.open("ab").close()
        if new:
            path.unlink()


def write_file(path: Path, data: bytes) -> None:
    """Give `path` (behind links) new contents in one step: readers see the old bytes or the new ones.

    Owner and permissions stay. A device or a pipe is written to. Raises WriteError.
    """
    with writing(path):
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        fresh = target.with_name(f".{os.urandom(8).hex()}.new")
        try:
            with fresh.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                found = target.stat()
                with suppress(PermissionError):
                    os.chown(fresh, found.st_uid, found.st_gid)
                fresh.chmod(found.st_mode & 0o7777)
            fresh.replace(target)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


def _told(name: Path | str, error: OSError) -> str:
    return f"{name} cannot be written: {error.strerror or error}."


def _remedy(error: OSError) -> str:
    return _REMEDIES.get(error.errno or 0, "Name another place.")
