"""The `dgemma` command and `python -m dgemma`: signals are in hand before anything slow is imported."""

from __future__ import annotations

from dgemma.signals import install


def main() -> None:
    """Run the command line."""
    install()
    from dgemma.cli import main as run

    run()


if __name__ == "__main__":
    main()
