"""Trains the demo model; an interrupted run continues from its last checkpoint."""

import argparse
import time
from pathlib import Path

import batches
import checkpoint
import objective
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import workers
from model import Model
from muon import Muon
from rich.console import Console
from shape import Shape
from tensors import adopt
from torch.optim import AdamW, Optimizer

MUON_RATE, ADAM_RATE, DECAY = 0.02, 3e-3, 0.01
BASE_WEIGHTS = {
    "sudoku": 1.4,
    "add": 1.7,
    "sort": 0.8,
    "reverse": 0.6,
    "json": 0.6,
    "count": 2.4,
    "fill": 1.7,
    "steps": 1.9,
    "steps-direct": 0.7,
}


def build_optimizers(model: Model) -> list[Optimizer]:
    """Muon for the matrices and stacked experts, AdamW for the embedding, routers and vectors."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() > 1 and name != "embed_tokens" and "router" not in name
        (matrices if matrix else others).append(parameter)
    adam = AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    return [Muon(matrices, lr=MUON_RATE, decay=DECAY), adam]


def rate(examples: int, options: argparse.Namespace) -> float:
    """Share of the full learning rates: warmup, plateau, then a linear decay to zero over the last examples."""
    start = options.examples * (1 - options.decay_share)
    decay = (options.examples - examples) / (options.examples - start) if examples > start else 1.0
    return options.peak * min(1.0, (examples + 1) / options.warmup) * max(0.0, decay)


def task_weights(accuracy: dict[str, float], given: dict[str, float]) -> dict[str, float]:
    """More examples for the tasks that still fail; `given` replaces base weights."""
    return {task: base * (1.12 - accuracy.get(task, 0.0)) for task, base in (BASE_WEIGHTS | given).items()}


def weight(text: str) -> tuple[str, float]:
    """TASK=WEIGHT of the command line."""
    task, _, number = text.partition("=")
    if task not in BASE_WEIGHTS:
        raise argparse.ArgumentTypeError(f"no task {task!r}: {', '.join(BASE_WEIGHTS)}")
    return task, float(number)


class Trainer:
    """The state of a run on one worker."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.console = options, Console(width=240)
        self.model = Model(Shape())
        self.model.initialise(torch.Generator().manual_seed(options.seed))
        if options.start is not None:
            adopt(self.model, options.start)
        self.optimizers = build_optimizers(self.model)
        self.path = Path(options.work) / "checkpoint.pt"
        self.progress = checkpoint.load(self.path, self.model, self.optimizers)

    def run(self) -> None:
        """Rounds until the example budget is spent."""
        while self.progress.examples < self.options.examples:
            self._round()
            if workers.rank() == 0:
                self._save()

    def _round(self) -> None:
        began, names = time.perf_counter(), list(BASE_WEIGHTS)
        seed = f"{self.options.seed}/{self.progress.round}"
        weights = task_weights(self.progress.accuracy, dict(self.options.weight))
        drawn = list(batches.draw_round(weights, seed, self.model.shape.canvas))
        generator = torch.Generator().manual_seed(hash((self.options.seed, self.progress.round, workers.rank())))
        tallies, losses = torch.zeros(2, len(names)), torch.zeros(3)
        before = self.progress.examples
        for batch in drawn[workers.rank() :: workers.count()]:
            loss = self._step(batch, generator)
            losses += torch.tensor([loss.canvas, loss.causal, 1.0])
            _tally(tallies, names, batch, loss)
        self._note(workers.total(tallies), names)
        self.progress.round += 1
        if workers.rank() == 0:
            self._report(losses, (self.progress.examples - before) / (time.perf_counter() - began))

    def _step(self, batch: batches.Batch, generator: torch.Generator) -> objective.Loss:
        factor = rate(self.progress.examples, self.options)
        loss = objective.compute(self.model, batch, generator)
        loss.total.backward()
        workers.average_gradients(self.model)
        for optimizer, base in zip(self.optimizers, (MUON_RATE, ADAM_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * factor
            optimizer.step()
            optimizer.zero_grad()
        self.progress.examples += len(batch.ids) * workers.count()
        return loss

    def _note(self, tallies: torch.Tensor, names: list[str]) -> None:
        for name, correct, seen in zip(names, *tallies.tolist(), strict=True):
            if seen:
                old = self.progress.accuracy.get(name, 0.0)
                self.progress.accuracy[name] = old + 0.3 * (correct / seen - old)

    def _report(self, losses: torch.Tensor, speed: float) -> None:
        canvas, causal = (losses[:2] / losses[2]).tolist()
        accuracy = " ".join(f"{name} {value:.2f}" for name, value in self.progress.accuracy.items())
        head = f"{time.strftime('%H:%M:%S')} {self.progress.examples} examples {speed:.0f}/s"
        self.console.print(f"{head} canvas {canvas:.4f} causal {causal:.4f} | {accuracy}", highlight=False)

    def _save(self) -> None:
        checkpoint.save(self.path, self.progress, self.model, self.optimizers)
        if self.progress.examples < self.options.examples * (1 - self.options.decay_share):
            checkpoint.save(self.path.with_name("before_decay.pt"), self.progress, self.model, self.optimizers)


def _tally(tallies: torch.Tensor, names: list[str], batch: batches.Batch, loss: objective.Loss) -> None:
    hard = loss.noise > 0.7
    columns = torch.tensor([names.index(task) for task in batch.tasks]).repeat_interleave(batches.CANVASES)
    tallies[0].index_add_(0, columns, (hard & loss.correct).float())
    tallies[1].index_add_(0, columns, hard.float())


def work(rank: int, options: argparse.Namespace) -> None:
    """One worker process."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if options.workers > 1:
        dist.init_process_group(
            "gloo", f"file://{Path(options.work).resolve()}/rendezvous", rank=rank, world_size=options.workers
        )
    Trainer(options).run()


def main() -> None:
    """Parses the options and starts the workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, help="folder of the checkpoints")
    parser.add_argument("--examples", type=int, default=400_000, help="examples in all, decay included")
    parser.add_argument(
        "--decay-share", type=float, default=0.5, help="share of the examples over which the rate falls to zero"
    )
    parser.add_argument("--peak", type=float, default=1.0, help="the plateau, as a share of the full learning rate")
    parser.add_argument("--warmup", type=int, default=4096, help="examples until the full learning rate")
    parser.add_argument(
        "--weight", type=weight, action="append", default=[], metavar="TASK=WEIGHT", help="base weight of a task"
    )
    parser.add_argument("--workers", type=int, default=2, help="single-threaded processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=Path, help="exported model folder whose weights a new run begins with")
    options = parser.parse_args()
    Path(options.work).mkdir(parents=True, exist_ok=True)
    Path(options.work, "rendezvous").unlink(missing_ok=True)
    if options.workers == 1:
        work(0, options)
    else:
        mp.spawn(work, (options,), nprocs=options.workers)


if __name__ == "__main__":
    main()
