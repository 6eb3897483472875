"""How the process ends on SIGINT and SIGTERM: at once, without a word, the terminal as it was found.

Imports nothing slow, so that it is in place before anything that is; `signal` itself would bring `enum`.
"""

import os
from _signal import SIGINT, SIGTERM, signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_AS_FOUND = b"\x1b[?2026l\x1b[0m\x1b[?25h\r\n"
_modes: list[int | list[bytes | int]] = []
_drawing = False
_last_acts: "list[Callable[[], object]]" = []


def install() -> None:
    """Let both signals end the process; what was written so far stays."""
    for number in (SIGINT, SIGTERM):
        signal(number, leave)
    import termios

    try:
        _modes[:] = termios.tcgetattr(0)
    except termios.error:
        _modes.clear()


def drawing(active: bool) -> None:
    """Note whether standard error shows something that hides the cursor."""
    global _drawing
    _drawing = active


class before_leaving:
    """A context manager: where a signal ends the process within it, `act` is called first."""

    def __init__(self, act: "Callable[[], object]") -> None:
        self._act = act

    def __enter__(self) -> None:
        _last_acts.append(self._act)

    def __exit__(self, *error: object) -> None:
        _last_acts.remove(self._act)


def leave(number: int, frame: object = None) -> None:
    """End with the code 128 + `number`; as a handler it runs wherever the program is."""
    try:
        if _drawing:
            os.write(2, _AS_FOUND)
        for act in _last_acts:
            act()
        if _modes:
            import termios

            termios.tcsetattr(0, termios.TCSANOW, list(_modes))
    finally:
        os._exit(128 + number)
