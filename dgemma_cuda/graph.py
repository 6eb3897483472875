"""CUDA graphs: a pass of a thousand launches as one."""

from __future__ import annotations

import os

import torch

from dgemma_cuda.model import Model
from dgemma_cuda.step import Run

SWITCH = "DGEMMA_CUDA_GRAPHS"


def obstacle(model: Model) -> str:
    """Why passes of `model` cannot be recorded; empty where they can."""
    if model.device.type != "cuda":
        return "no CUDA device"
    if os.environ.get(SWITCH) == "off":
        return f"{SWITCH}=off"
    if model.kernels.unfinished_head is None:
        return "the chosen kernels look at the device"
    from dgemma_cuda.kernels.operand import of

    stacks = [stack for layer in model.layers for stack in (layer.moe.gate_up_proj, layer.moe.down_proj)]
    if any(of(stack) is None for stack in stacks):
        return "no kernel reads the format of the experts"
    return ""


class Graphs:
    """Records passes as CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """`run` as one launch. What it reads and writes must stay where it is."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        return graph.replay
