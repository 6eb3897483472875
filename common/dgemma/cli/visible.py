"""What a terminal may be sent of a text that somebody else wrote: no control character but newline and tab."""

from __future__ import annotations

_PICTURES = 0x2400
_SHOWN = {code: chr(_PICTURES + code) for code in range(32) if chr(code) not in "\n\t"}
_SHOWN |= {0x7F: "␡"} | dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], "\ufffd")


def visible(text: str) -> str:
    """`text` with a picture in place of each control character, so that no escape sequence survives."""
    return text if text.isascii() and text.isprintable() else text.translate(_SHOWN)
