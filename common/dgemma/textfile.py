"""A text file that is changed in place: its encoding, newlines and permissions stay what they are."""

from __future__ import annotations

import codecs
import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dgemma.errors import DgemmaError, UsageError

# A UTF-32 mark begins like one of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class TextFile:
    """Bytes as text, newlines untranslated. `mark` is the byte order mark, which is no part of the text."""

    text: str
    encoding: str
    mark: bytes = b""

    @classmethod
    def of(cls, data: bytes) -> TextFile:
        """UTF-8, UTF-16 or UTF-32 with a mark, or otherwise Latin-1, which gives every byte back."""
        mark, encoding = next(((m, e) for m, e in _MARKS if data.startswith(m)), (b"", "utf-8"))
        body = data[len(mark) :]
        try:
            return cls(body.decode(encoding), encoding, mark)
        except UnicodeDecodeError:
            if b"\0" in data:
                raise UsageError("This is not a text file.") from None
            return cls(data.decode("latin-1"), "latin-1")

    @property
    def newline(self) -> str:
        """The line end it uses most."""
        windows, lines, returns = (self.text.count(each) for each in ("\r\n", "\n", "\r"))
        counts = {"\n": lines - windows, "\r\n": windows, "\r": returns - windows}
        return max(counts, key=lambda each: counts[each])

    def encode(self, text: str) -> bytes:
        """Bytes of another text in this file's encoding; UsageError where it cannot express it."""
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.end]
            raise UsageError(
                f"The file's encoding ({self.encoding}) has no {wrong!r}.", "Convert it to UTF-8."
            ) from None

    def adapt(self, text: str) -> str:
        """A generated text with this file's line ends."""
        return text.replace("\r\n", "\n").replace("\n", self.newline)


def read(path: Path) -> TextFile:
    """Raises UsageError where `path` cannot be read."""
    try:
        return TextFile.of(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def check_replaceable(path: Path) -> None:
    """Raise UsageError where `replace` must not touch `path`: it is no regular file, or read-only."""
    if not path.is_file():
        raise UsageError(f"{path} is no file that could be changed in place.", "Leave --in-place out.")
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path} is read-only.", "Leave --in-place out, or make it writable.")


def replace(path: Path, old: TextFile, text: str) -> None:
    """Give `path` (behind links), which holds `old`, new contents in one step: readers see the old or the new bytes."""
    target, data = path.resolve(), old.encode(text)
    try:
        if target.read_bytes() != old.encode(old.text):
            raise DgemmaError(f"{path} has changed in the meantime and was left alone.", "Run it again.")
        _swap(target, data)
    except OSError as error:
        raise DgemmaError(f"{path} cannot be changed: {error.strerror or error}.") from error


def _swap(target: Path, data: bytes) -> None:
    found = target.stat()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(PermissionError):
            os.chown(temporary, found.st_uid, found.st_gid)
        temporary.chmod(found.st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
