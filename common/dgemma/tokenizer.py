"""Text to ids and back, through the `tokenizers` library, and text from ids that arrive block by block."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgemma.config import GenerationDefaults
from dgemma.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Tokenizer

_MOST_BYTES = 200_000_000
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A folder's tokenizer.json with the stop ids of its generation_config.json."""

    inner: _Tokenizer
    stop_ids: tuple[int, ...]
    special_ids: frozenset[int]

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read `folder`; raises CheckpointError where tokenizer.json is missing or damaged."""
        return cls.of(_read(folder / "tokenizer.json"), GenerationDefaults.from_folder(folder).eos_token_ids)

    @classmethod
    def of(cls, inner: Any, stop_ids: Iterable[int]) -> Tokenizer:
        """Wrap a `tokenizers.Tokenizer`."""
        inner.no_truncation()
        inner.no_padding()
        special = {index for index, token in inner.get_added_tokens_decoder().items() if token.special}
        return cls(inner, tuple(stop_ids), frozenset(special))

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """The ids of `text`; special tokens spelled out in it become their ids."""
        return list(self.inner.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`; ids that no token claims are left out."""
        kept = [int(i) for i in ids if not (skip_special and i in self.special_ids)]
        return str(self.inner.decode(kept, skip_special_tokens=False))

    def id(self, token: str) -> int | None:
        """The id of one token, by its exact spelling."""
        found: int | None = self.inner.token_to_id(token)
        return found

    def detokenizer(self, keep: Collection[str] | None = None) -> Detokenizer:
        """Incremental decoding; of the special tokens only those in `keep` are spelled out (None: all)."""
        if keep is None:
            return Detokenizer(self, frozenset())
        return Detokenizer(self, self.special_ids - {self.id(token) for token in keep})


class Detokenizer:
    """Ids in, text out: the deltas and the flush together are exactly the text of all ids decoded at once.

    Text is held back while more ids could still change it: inside a run of byte tokens (one stray byte spoils the
    whole run) and after a broken character.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer, self._hidden = tokenizer, hidden
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """Take more ids; return the text that has become final."""
        self._pending += [int(i) for i in ids if i not in self._hidden and self._token(i) is not None]
        cut = len(self._pending)
        while cut and self._is_byte(self._pending[cut - 1]):
            cut -= 1
        return self._emit(cut, final=False)

    def flush(self) -> str:
        """Return what is still held back; the stream ends here."""
        return self._emit(len(self._pending), final=True)

    def _emit(self, cut: int, final: bool) -> str:
        group = self._pending[:cut]
        before = self._text(self._context)
        after = self._text(self._context + group)
        if not group or (after.endswith("\ufffd") and not final):
            return ""
        self._pending = self._pending[cut:]
        self._context = group if len(after) > len(before) else self._context + group
        return after[len(before) :]

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=False)

    def _token(self, index: int) -> str | None:
        token: str | None = self._tokenizer.inner.id_to_token(int(index))
        return token

    def _is_byte(self, index: int) -> bool:
        return _BYTE.fullmatch(self._token(index) or "") is not None


def _read(path: Path) -> _Tokenizer:
    from tokenizers import Tokenizer as Reader

    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name}.", "Download the model again.")
    if path.stat().st_size > _MOST_BYTES:
        raise CheckpointError(f"{path} is larger than any model's.", "Download the model again.")
    try:
        return Reader.from_file(str(path))
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {error}.", "Download the model again.") from error
