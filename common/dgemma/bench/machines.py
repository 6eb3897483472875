"""Named machines: nominal bandwidth and matrix rates, each with its source and what is assumed of them.

`share` is the part of the nominal bandwidth that the memory time is computed with: NVIDIA rows use all of the data
sheet's, Apple rows 85 %. NVIDIA's rates are the data sheets' dense ones. Apple publishes none: there they are what
quantized matrix products were measured or are estimated to reach, half of it for attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dgemma.errors import UsageError

_NVIDIA = "NVIDIA data sheet: nominal bandwidth, dense rates without sparsity"


@dataclass(frozen=True, slots=True)
class Machine:
    """Bandwidth in GB/s; rates in TFLOP/s; `expert_rate` that of small groups of rows, where it was measured apart.

    `score_share` of the bf16 rate is what attention scores reach.
    """

    name: str
    bandwidth: float
    bf16: float
    source: str
    share: float = 1.0
    fp8: float | None = None
    fp4: float | None = None
    expert_rate: float | None = None
    score_share: float = 1.0
    aliases: tuple[str, ...] = ()

    def rate(self, bits: float) -> float:
        """TFLOP/s for weights of `bits` that the hardware multiplies as they are."""
        native = self.fp4 if bits <= 4 else self.fp8 if bits <= 8 else None
        return native or self.bf16


def _apple(name: str, bandwidth: float, rate: float, experts: float, rates_from: str) -> Machine:
    source = f"Apple's specification for bandwidth, taken at 85 %; rates: {rates_from}"
    return Machine(name, bandwidth, rate, source, share=0.85, expert_rate=experts, score_share=0.5)


MACHINES = (
    Machine("H100", 3350, 989, _NVIDIA, fp8=1979, aliases=("h100 80gb", "h100 sxm")),
    Machine("H200", 4800, 989, _NVIDIA, fp8=1979),
    Machine("RTX 5090", 1790, 209, _NVIDIA, fp8=419, fp4=1676, aliases=("5090",)),
    Machine("RTX 4090", 1008, 165, _NVIDIA, fp8=330, aliases=("4090",)),
    _apple("M1 Max", 400, 4.45, 2.2, "bf16, which this chip emulates, ml-explore/mlx#4216"),
    _apple("M1 Max fp16", 400, 7.9, 3.9, "fp16, ml-explore/mlx#4216"),
    _apple("M2 Ultra", 800, 20.0, 10.0, "estimated from the M3 Ultra's"),
    _apple("M3 Pro", 150, 3.9, 1.8, "mmastrac/diffgemma"),
    _apple("M3 Ultra", 819, 20.5, 9.8, "ml-explore/mlx#4246"),
    _apple("M4 Max", 546, 13.2, 6.5, "estimated from the number of cores"),
    _apple("M5 Pro", 307, 24.6, 12.9, "ml-explore/mlx#3925, scaled by cores"),
    _apple("M5 Max", 614, 49.0, 26.0, "ml-explore/mlx#3925, scaled by cores"),
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
