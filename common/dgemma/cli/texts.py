"""Arguments that are texts: what is not UTF-8 reaches a program as lone surrogates, which no tokenizer takes."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from dgemma.cli.terminal import exit_codes
from dgemma.errors import require

# The name of a file may be any bytes.
_NAMES = ("model", "source")


class TextCommand(TyperCommand):
    """A command whose text arguments must be UTF-8."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; a text that is not UTF-8 is a usage error."""
        with exit_codes(verbose=False):
            for parameter in self.params:
                value = None if parameter.name in _NAMES else ctx.params.get(parameter.name)
                for each in value if isinstance(value, list | tuple) else [value]:
                    is_text = not isinstance(each, str) or is_utf8(each)
                    require(is_text, f"{_spelled(parameter)} is not UTF-8 text.", "Give it in UTF-8.")
        return super().invoke(ctx)


def is_utf8(text: str) -> bool:
    """Whether `text` can be written as UTF-8: it holds no lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _spelled(parameter: Any) -> str:
    name = max(parameter.opts, key=len)
    return str(name if name.startswith("-") else name.upper())
