"""Compile kernels for cards that are not there and read what became of them: run as a process of its own.

`python -m tests.cuda.ahead [--arch 80 90] [--kernel NAME ...]` prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHES = (80, 89, 90, 120)
_MMA = ("wgmma", "tcgen05.mma", "mma.sync")


@dataclass(frozen=True)
class Case:
    """A kernel as it is launched at real shapes; arguments that start with * are pointers."""

    name: str
    kernel: Any
    arguments: dict[str, str]
    constants: dict[str, Any] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3
    ragged: tuple[str, ...] = ()

    def compile(self, arch: int) -> dict[str, object]:
        names = self.kernel.arg_names
        signature = {name: self.arguments.get(name, "constexpr") for name in names}
        aligned = [name for name in self.arguments if name not in self.ragged and self.arguments[name] != "fp32"]
        attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
        constants = {(names.index(name),): value for name, value in self.constants.items()}
        source = ASTSource(self.kernel, signature, constants, attributes)
        options = {"num_warps": self.warps, "num_stages": self.stages}
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        found = [kind for kind in _MMA if kind in compiled.asm["ptx"]]
        registers, spilled = resources(compiled.asm["cubin"])
        shared = round(compiled.metadata.shared / 1024, 1)
        return {
            "kernel": self.name,
            "arch": arch,
            "registers": registers,
            "spill_bytes": spilled,
            "shared_kb": shared,
            "mma": found[0] if found else "",
        }


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread and bytes of local memory, from the compiled binary."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = max(int(each) for each in re.findall(r"REG:(\d+)", text))
    stack = max(int(each) for each in re.findall(r"STACK:(\d+)", text))
    local = max(int(each) for each in re.findall(r"LOCAL:(\d+)", text))
    return registers, max(stack, local)


def main() -> None:
    from tests.cuda.cases import CASES

    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", type=int, nargs="*", default=ARCHES)
    parser.add_argument("--kernel", nargs="*", default=[""])
    options = parser.parse_args()
    for case in CASES:
        for arch in options.arch:
            if any(wanted in case.name for wanted in options.kernel):
                print(json.dumps(case.compile(arch)), flush=True)


if __name__ == "__main__":
    main()
