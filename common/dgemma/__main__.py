"""`python -m dgemma`."""

from dgemma.cli import main

if __name__ == "__main__":
    main()
