"""How far written weights are from the source's own values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgemma.errors import UnsupportedError
from dgemma_convert.floats import Floats

_PIECE = 1 << 16
ERRORS = ("max_error", "rms_error", "relative_rms_error")


@dataclass(slots=True)
class Deviation:
    """The largest and the mean square difference, gathered run by run."""

    largest: float = 0.0
    squares: float = 0.0
    power: float = 0.0
    count: int = 0

    @classmethod
    def between(cls, values: Floats, written: Floats) -> Deviation:
        """Of some rows. Raises UnsupportedError where the written format cannot hold them."""
        difference = np.subtract(written, values, dtype=np.float32)
        largest = float(np.abs(difference).max(initial=0))
        if not np.isfinite(largest):  # infinities that are kept differ by nothing
            kept = np.isinf(values) & (written == values)
            values, difference = np.where(kept, np.float32(0), values), np.where(kept, np.float32(0), difference)
            largest = float(np.abs(difference).max(initial=0))
        if not np.isfinite(largest):
            raise UnsupportedError("The weights do not fit the range of the format.", "Use --dtype bf16 or fp32.")
        return cls(largest, _squares(difference), _squares(values), values.size)

    def merge(self, other: Deviation) -> None:
        """Take in what another one has gathered."""
        self.largest = max(self.largest, other.largest)
        self.squares += other.squares
        self.power += other.power
        self.count += other.count

    @property
    def rms(self) -> float:
        """Root of the mean square difference."""
        return float((self.squares / max(1, self.count)) ** 0.5)

    @property
    def relative(self) -> float:
        """The same over the root mean square of the values."""
        return float((self.squares / self.power) ** 0.5) if self.power else 0.0

    def as_dict(self) -> dict[str, float]:
        """For the report."""
        return dict(zip(ERRORS, (self.largest, self.rms, self.relative), strict=True))


def _squares(values: Floats) -> float:
    """Their sum in float64: that of float32 depends on the processor, and records are compared between machines."""
    flat = values.reshape(-1)
    pieces = (flat[first : first + _PIECE].astype(np.float64) for first in range(0, flat.size, _PIECE))
    return float(sum(np.vdot(piece, piece) for piece in pieces))
