"""`dgemma doctor`: does it work here, with what, and how fast."""

from __future__ import annotations

import json as json_
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from dgemma.cli import options as o
from dgemma.cli.terminal import Terminal, exit_codes

_UNUSABLE = 4


def doctor(
    model: o.Model = "demo",
    json: o.Json = False,
    no_color: o.NoColor = False,
    verbose: o.Verbose = False,
) -> None:
    """Check this machine: versions, memory, kernels, cache, and two seconds of generation on each backend.

    Ends with 4 where no backend works. Bug reports should contain its output.
    """
    with exit_codes(verbose):
        from dgemma.doctor import diagnose

        with Terminal() as terminal:
            terminal.progress("loading and trying the backends")
            found = diagnose(model)
            terminal.write((json_.dumps(found, ensure_ascii=False) if json else "\n".join(_lines(found))) + "\n")
        raise typer.Exit(0 if found["usable"] else _UNUSABLE)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    from dgemma.fit import gigabytes

    machine, cache = found["machine"], found["cache"]
    packages = [f"{name} {version}" for name, version in machine["versions"].items() if name != "platform"]
    yield from _row("versions", ", ".join(packages))
    yield from _row("system", f"{machine['versions']['platform']}, {machine['chip']}, {machine['cores']} cores")
    yield from _row("memory", f"{gigabytes(machine['memory_free'])} of {gigabytes(machine['memory_bytes'] or 0)} free")
    if machine["gpu"]:
        yield from _row("gpu", ", ".join(f"{name} {value}" for name, value in machine["gpu"].items()))
    token = "a token is set" if cache["token"] else "no token"
    yield from _row("cache", f"{cache['path']}, {gigabytes(cache['free'])} free, {token}")
    for name, value in found["settings"].items():
        yield from _row(name, value)
    for name, backend in found["backends"].items():
        yield from _row(name, _outcome(backend))
        for reason in backend.get("slower_because", []):
            yield from _row("", reason)
    for each in found["timed"]:
        yield from _row("timed", _timing(each))
    yield from _row("result", "works" if found["usable"] else "no backend works")


def _outcome(backend: Mapping[str, Any]) -> str:
    if not backend["usable"]:
        return f"fails: {backend['error']}"
    kernels = backend["kernels"]
    named = ", ".join(f"{key} {value}" for key, value in kernels.items()) if isinstance(kernels, dict) else kernels
    speed = f"{backend['ms_per_step']} ms a step, {backend['steps']} steps, {backend['tokens']} tokens"
    return f"works on {backend['device']}; kernels: {named}; loaded in {backend['load_s']} s; {speed}"


def _timing(choice: Mapping[str, Any]) -> str:
    laps = [f"{name} {1000 * seconds:.2f} ms" for name, seconds in choice["seconds"].items()]
    failed = [f"{name} failed: {why}" for name, why in choice["failures"].items()]
    return f"{choice['name']} for {choice['work']} on {choice['device']} ({', '.join(laps + failed)})"


def _row(name: str, text: str) -> Iterator[str]:
    yield f"{name:<16}{text}" if name else f"{'':<16}({text})"
