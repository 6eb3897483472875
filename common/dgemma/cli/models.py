"""`dgemma models`: the models in the Hugging Face cache, and their aliases."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dgemma.cli import options as o
from dgemma.cli.terminal import Terminal, exit_codes

if TYPE_CHECKING:
    from dgemma.cached import Cached

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, download and remove models. They live in the Hugging Face cache and nowhere else.",
)
_ASK_FROM = 5_000_000_000
Name = Annotated[str, Argument(help="Alias or owner/name[@revision].", autocompletion=o.known_models)]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Yes = Annotated[bool, Option("-y", "--yes", help="Do not ask.")]


@app.command("list")
def list_(json_: Json = False, no_color: o.NoColor = False, verbose: o.Verbose = False) -> None:
    """Show the DiffusionGemma models on this machine. Others in the cache are left out.

    Example: dgemma models list --json
    """
    with exit_codes(verbose):
        from dgemma.cached import cache_folder, cached_models

        rows = [_row(each) for each in cached_models()]
        if json_:
            _print(json.dumps({"schema": 1, "cache": str(cache_folder()), "models": rows}))
        elif rows:
            names = ("name", "revision", "format", "size", "needs", "fits")
            _print(_table(names, [[_cell(row[name]) for name in names] for row in rows]))
        else:
            Terminal().note(f"No model in {cache_folder()}. Download one: dgemma models pull dgemma:4bit")


@app.command()
def pull(model: Name, yes: Yes = False, offline: o.Offline = False, verbose: o.Verbose = False) -> None:
    """Download a model, or the files of it that are missing. An interrupted download keeps those that have arrived.

    Example: dgemma models pull dgemma:4bit
    """
    with exit_codes(verbose), Terminal() as terminal:
        from dgemma.errors import UsageError
        from dgemma.hub import locate, offline_by_environment, resolve

        named = resolve(model)
        offline = offline or offline_by_environment()
        if named is None:
            raise UsageError(f"{model} is not a repository.", "Name one: owner/name[@revision], or an alias.")
        located = locate(model, offline=True) if offline else _fetch(*named, yes, terminal)
        _print(str(located.folder))


@app.command()
def show(model: Name, json_: Json = False, verbose: o.Verbose = False) -> None:
    """Describe one model: files, format, size, and whether it fits. A folder will do, too.

    Example: dgemma models show demo
    """
    with exit_codes(verbose):
        from dgemma.describe import describe
        from dgemma.hub import locate

        found = describe(locate(model, offline=True))
        _print(json.dumps(found) if json_ else "\n".join(f"{name:<14}{_cell(value)}" for name, value in found.items()))


@app.command()
def rm(model: Name, yes: Yes = False, verbose: o.Verbose = False) -> None:
    """Delete a model from the cache; with @revision only that revision.

    Example: dgemma models rm mlx-community/diffusiongemma-26B-A4B-it-4bit
    """
    with exit_codes(verbose):
        from dgemma.cached import find, remove
        from dgemma.fit import gigabytes
        from dgemma.hub import resolve

        named = resolve(model)
        found = find(model if named is None else "@".join(part for part in named if part))
        size = gigabytes(sum(each.size for each in found))
        _confirm(f"Delete {len(found)} revision(s) of {found[0].repo}, {size}?", yes)
        Terminal().note(f"Freed {gigabytes(remove(found))}.")


@app.command()
def path(model: Name, verbose: o.Verbose = False) -> None:
    """Print the folder of a model that is on this machine.

    Example: ls "$(dgemma models path demo)"
    """
    with exit_codes(verbose):
        from dgemma.hub import locate

        _print(str(locate(model, offline=True).folder))


@app.command()
def alias(
    name: Annotated[str | None, Argument(help="The alias.", show_default=False)] = None,
    target: Annotated[str | None, Argument(help="What it stands for.", show_default=False)] = None,
    remove: Annotated[bool, Option("--remove", help="Remove one of your own aliases.")] = False,
    verbose: o.Verbose = False,
) -> None:
    """List aliases, or define one: NAME TARGET. Your own are in a TOML file that you may edit.

    Example: dgemma models alias mine owner/name@main
    """
    with exit_codes(verbose):
        from dgemma.aliases import alias_file, aliases, remove_alias, set_alias
        from dgemma.errors import require

        require(not remove or (name is not None and target is None), "--remove takes the alias and nothing else.")
        if name is not None and (remove or target is not None):
            set_alias(name, target) if target is not None else remove_alias(name)
            Terminal().note(f"Written to {alias_file()}.")
            return
        known = aliases()
        require(name is None or name in known, f"There is no alias {name!r}.")
        _print(_table(("alias", "model"), [[key, value] for key, value in known.items() if name in (None, key)]))


def _fetch(repo: str, revision: str | None, yes: bool, terminal: Terminal) -> Any:
    from dgemma.fit import gigabytes
    from dgemma.hub import fetch, missing_bytes

    size = missing_bytes(repo, revision)
    if size >= _ASK_FROM and sys.stdin.isatty():
        _confirm(f"Download {gigabytes(size)} of {repo}?", yes)
    terminal.note(f"Downloading {gigabytes(size)} of {repo}." if size else f"{repo} is complete.")
    with terminal.bar(repo, size) as progress:
        return fetch(repo, revision, progress)


def _row(each: Cached) -> dict[str, Any]:
    from dgemma.describe import fit_of

    found: dict[str, Any] = {
        "name": each.repo,
        "revision": each.revision[:8],
        "refs": list(each.refs),
        "format": each.format,
    }
    found |= {"size": each.size, "complete": each.complete, "path": str(each.folder)}
    return found | (fit_of(each.folder) if each.complete else {"needs": None, "fits": "incomplete"})


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [[name.upper() for name in head], *rows]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(value: Any) -> str:
    from dgemma.fit import gigabytes

    if isinstance(value, Path | str):
        return str(value)
    return "-" if value is None else gigabytes(value) if isinstance(value, int) and value > 10_000 else str(value)


def _confirm(question: str, yes: bool) -> None:
    from dgemma.errors import UsageError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} This needs an answer.", "Say --yes.")
    typer.confirm(question, abort=True, err=True)


def _print(text: str) -> None:
    Terminal().write(text + "\n")
