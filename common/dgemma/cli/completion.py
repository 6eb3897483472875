"""`dgemma completion`: the script with which a shell completes commands, flags and model names."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from dgemma.cli.terminal import Terminal, exit_codes
from dgemma.outputs import writing

Shell = Annotated[Literal["bash", "zsh", "fish", "powershell"], Argument(help="The shell.")]


def completion(
    shell: Shell = "bash",
    install: Annotated[bool, Option("--install", help="Put it where the shell finds it.")] = False,
) -> None:
    """Print the completion script of a shell, or install it.

    Example: eval "$(dgemma completion bash)"
    """
    with exit_codes(verbose=False), Terminal() as terminal:
        from typer._completion_shared import get_completion_script
        from typer._completion_shared import install as put

        if install:
            with writing("The completion script"):
                name, path = put(shell=shell, prog_name="dgemma", complete_var="_DGEMMA_COMPLETE")
            terminal.note(f"{name} completion installed in {path}; it works in new shells.")
            return
        script = get_completion_script(prog_name="dgemma", complete_var="_DGEMMA_COMPLETE", shell=shell)
        terminal.write(script + "\n")
