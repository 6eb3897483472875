"""Named machines: nominal bandwidth and matrix rates, each with its source and what is assumed of them.

`share` is the part of the nominal bandwidth that the memory time is computed with: NVIDIA rows use all of the data
sheet's, Apple rows 85 %. Apple's rates are what quantized matrix products were measured or are estimated to reach, as
Apple publishes no figure; NVIDIA's are the data sheets' dense rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dgemma.errors import UsageError

_NVIDIA = "NVIDIA data sheet: nominal bandwidth, dense rates without sparsity"
_APPLE = "Apple's specification for bandwidth, taken at 85 %"


@dataclass(frozen=True, slots=True)
class Machine:
    """Bandwidth in GB/s; rates in TFLOP/s; `expert_rate` that of small groups of rows, where it was measured apart."""

    name: str
    bandwidth: float
    bf16: float
    source: str
    share: float = 1.0
    fp8: float | None = None
    fp4: float | None = None
    expert_rate: float | None = None
    aliases: tuple[str, ...] = ()

    def rate(self, bits: float) -> float:
        """TFLOP/s for weights of `bits` that the hardware multiplies as they are."""
        native = self.fp4 if bits <= 4 else self.fp8 if bits <= 8 else None
        return native or self.bf16


MACHINES = (
    Machine("H100", 3350, 989, _NVIDIA, fp8=1979, aliases=("h100 80gb", "h100 sxm")),
    Machine("H200", 4800, 989, _NVIDIA, fp8=1979),
    Machine("RTX 5090", 1790, 209, _NVIDIA, fp8=419, fp4=1676, aliases=("5090",)),
    Machine("RTX 4090", 1008, 165, _NVIDIA, fp8=330, aliases=("4090",)),
    Machine(
        "M1 Max", 400, 4.45, f"{_APPLE}; bf16, which this chip emulates: ml-explore/mlx#4216", 0.85, None, None, 2.2
    ),
    Machine("M1 Max fp16", 400, 7.9, f"{_APPLE}; fp16: ml-explore/mlx#4216", 0.85, None, None, 3.9),
    Machine("M2 Ultra", 800, 20.0, f"{_APPLE}; rate estimated from the M3 Ultra's", 0.85, None, None, 10.0),
    Machine("M3 Pro", 150, 3.9, f"{_APPLE}; rate: mmastrac/diffgemma", 0.85, None, None, 1.8),
    Machine("M3 Ultra", 819, 20.5, f"{_APPLE}; rate: ml-explore/mlx#4246", 0.85, None, None, 9.8),
    Machine("M4 Max", 546, 13.2, f"{_APPLE}; rate estimated from the core count", 0.85, None, None, 6.5),
    Machine("M5 Pro", 307, 24.6, f"{_APPLE}; rate: ml-explore/mlx#3925, scaled by cores", 0.85, None, None, 12.9),
    Machine("M5 Max", 614, 49.0, f"{_APPLE}; rate: ml-explore/mlx#3925, scaled by cores", 0.85, None, None, 26.0),
)


def find(name: str) -> Machine:
    """The machine called `name` in any case. Raises UsageError with the names that exist."""
    wanted = name.casefold()
    for machine in MACHINES:
        if wanted in (machine.name.casefold(), *machine.aliases):
            return machine
    raise UsageError(f"No machine called {name!r}.", f"Choose of: {', '.join(names())}; or leave --machine out.")


def recognise(chip: str) -> Machine | None:
    """The machine that a chip's own name contains, the longest match first."""
    found = [each for each in MACHINES if each.name.casefold() in chip.casefold()]
    return max(found, key=lambda each: len(each.name), default=None)


def names() -> Iterable[str]:
    """Every name."""
    return [machine.name for machine in MACHINES]
