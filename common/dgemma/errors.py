"""The errors a user can meet: what happened, why, and what to do about it. Each carries its exit code."""

from __future__ import annotations


class DgemmaError(Exception):
    """Base of every error raised on purpose; `str(error)` is one line, `remedy` one short sentence or empty."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def line(self) -> str:
        """The message and its remedy as one line, as the command line prints it."""
        return f"{self} {self.remedy}".strip()


class UsageError(DgemmaError):
    """The caller asked for something contradictory or malformed."""

    exit_code = 2


class WriteError(DgemmaError):
    """A file cannot be written."""


class BusyError(DgemmaError):
    """Another process is at work on the same thing."""


class StandardOutputError(WriteError):
    """Standard output takes no more, so that nothing further can be answered."""


class ModelNotFoundError(DgemmaError):
    """No such folder, alias or repository, or not downloaded while offline."""

    exit_code = 3


class UnsupportedError(DgemmaError):
    """A model, weight format, device or combination of options that this version cannot run."""

    exit_code = 4


class CheckpointError(UnsupportedError):
    """A model folder whose files are missing, damaged or contradict one another."""


class OutOfMemoryError(DgemmaError):
    """The model or the request does not fit this machine's memory."""

    exit_code = 5


class NetworkError(DgemmaError):
    """A download failed."""

    exit_code = 6


def require(condition: bool, message: str, remedy: str = "") -> None:
    """Raise UsageError with `message` unless `condition` holds."""
    if not condition:
        raise UsageError(message, remedy)
