"""The `dgemma` command."""
