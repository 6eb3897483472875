"""One thread: tiny products only wait for one another."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
