"""Conversions under limits that the system enforces: too much memory or processor time ends them, however busy the
machine is. One process imports everything and forks for every case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CODE = """
import json, os, resource, sys
import dgemma.cli, dgemma_convert.readers, dgemma_convert.report, gguf, tokenizers
from dgemma_convert import convert
cases, seconds, growth = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for name, arguments in cases.items():
    child = os.fork()
    if not child:
        taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + growth,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds,) * 2)
        log = os.open(name + ".log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1), os.dup2(log, 2)
        sys.argv = ["dgemma", "convert", *arguments]
        dgemma.cli.main()
        os._exit(0)
    print(json.dumps([name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]))
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended; a negative code is the signal that killed it."""

    code: int
    said: str


def conversions(cases: Mapping[str, list[str]], folder: Path, seconds: int, growth: int) -> dict[str, Ended]:
    """`dgemma convert` with each list of arguments; `growth` bytes may be added to what importing takes."""
    command = [sys.executable, "-c", _CODE, json.dumps(cases), str(seconds), str(growth)]
    paths = {"PYTHONPATH": os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | paths, capture_output=True, text=True, timeout=400, check=True
    )
    codes = dict(json.loads(line) for line in done.stdout.splitlines())
    return {name: Ended(code, (folder / f"{name}.log").read_text(errors="replace")) for name, code in codes.items()}
