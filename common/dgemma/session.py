"""One conversation's cache between its generations: what a new prompt shares with it is not encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dgemma.errors import require

if TYPE_CHECKING:
    from dgemma.backend import Backend, Context


class Session:
    """Holds one context and the ids in it; one generation at a time borrows it.

    Its sliding layers are settled only where a turn begins, so that the last turn can be taken back exactly. What was
    taken back further than the keys reach is encoded again.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._context: Context | None = None
        self._ids: tuple[int, ...] = ()
        self._lent = False

    @property
    def cached(self) -> int:
        """Tokens held."""
        return len(self._ids)

    def borrow(self, prompt: Sequence[int]) -> Context:
        """A context that holds as much of `prompt` as can be kept, and nothing else. Give it back afterwards.

        The last token is always left to encode, because the causal modes begin with what follows it.
        """
        require(not self._lent, "The conversation is already generating.", "Finish or close its stream first.")
        context, keep = self._context, min(_common(self._ids, prompt), len(prompt) - 1)
        self._context, self._ids = None, ()
        if context is not None and not (keep and context.truncate(keep)):
            context.close()
            context = None
        self._lent = True
        if context is None:
            return self._backend.open()
        if keep < len(prompt) - 1:
            context.settle()
        return context

    def give_back(self, context: Context, ids: Sequence[int]) -> None:
        """Keep `context` for the next prompt; it holds the first `context.length` of `ids`."""
        self._context, self._ids, self._lent = context, tuple(ids[: context.length]), False

    def drop(self, context: Context) -> None:
        """Free a borrowed context whose content is in doubt."""
        context.close()
        self._lent = False

    def close(self) -> None:
        """Free what is held; the session stays usable and starts from nothing."""
        if self._context is not None:
            self._context.close()
        self._context, self._ids = None, ()


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))
