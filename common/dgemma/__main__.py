"""The `dgemma` command and `python -m dgemma`: signals are in hand before anything slow is imported."""

import os
import sys

from dgemma.signals import install


def main() -> None:
    """Run the command line."""
    install()
    _reopen_closed()
    from dgemma.cli import main as run

    run()


def _reopen_closed() -> None:
    """Give standard files that the caller closed to the null device, so that no other file gets their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
