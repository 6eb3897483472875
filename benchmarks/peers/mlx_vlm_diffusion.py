"""mlx-vlm's DiffusionGemma with the checkpoint's entropy-bound sampler instead of its command line's default one."""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict
from typing import Any

import mlx.core as mx
import mlx_vlm
from mlx.utils import tree_flatten
from mlx_vlm.generate.diffusion import stream_diffusion_generate
from mlx_vlm.utils import load_model

from benchmarks import rates
from benchmarks.peers.prompting import Source, single
from dgemma.bench.engines import Identity, Limits, Outcome, Target
from dgemma.bench.identity import describe
from dgemma.bench.meters import Cost, host_rates
from dgemma.bench.prompts import Prompt
from dgemma.errors import UnsupportedError
from dgemma.jsonfile import read_json
from dgemma.memory import peak_resident_bytes


class MlxVlmDiffusion:
    """The other MLX implementation. Its stream carries no time of single steps: a step is a canvas over its steps."""

    def __init__(self, target: Target) -> None:
        self._source = Source.find(target.model, target.offline)
        cpu = target.device == "cpu" or not mx.metal.is_available()
        if cpu:
            mx.set_default_device(mx.cpu)
        self._model = load_model(self._source.folder, strict=False)
        self._model.config.generation_config = read_json(self._source.folder / "generation_config.json")
        self._length = int(self._model.config.canvas_length)
        measured = host_rates() if cpu else rates.mlx()
        self.identity = Identity(
            engine="mlx-vlm",
            engine_version=mlx_vlm.__version__,
            backend="mlx",
            model=self._source.name,
            revision=self._source.revision,
            device="cpu" if cpu else "gpu",
            dtype=self._dtype(),
            sampler="entropy bound, the checkpoint's schedule and stop rule; mlx's random numbers",
            **describe(self._source.folder),
            **asdict(measured),
        )

    def run(self, prompts: tuple[Prompt, ...], limits: Limits) -> Outcome:
        """See `Engine`."""
        ids = self._source.encode(single(prompts, "mlx-vlm"), limits)
        if limits.entropy_bound not in (None, self._source.defaults.entropy_bound):
            raise UnsupportedError("mlx-vlm reads the entropy bound from the checkpoint only.")
        mx.random.seed(limits.seed)
        cost, watch = Cost(self.identity.device), _Watch()
        for result in stream_diffusion_generate(
            self._model,
            _Processor(),
            _Tokenizer(() if limits.mode == "fixed" else self._source.defaults.eos_token_ids),
            mx.array([ids]),
            None,
            None,
            max_tokens=limits.max_tokens,
            skip_special_token_ids=(),
            temperature=1.0,
            max_denoising_steps=limits.steps,
            diffusion_sampler="entropy-bound",
            diffusion_full_canvas=limits.canvas_length is None,
            diffusion_max_canvas_length=limits.canvas_length,
        ):
            watch.take(result)
        made = self._source.cut(watch.tokens, limits)
        return Outcome(
            prompt_tokens=len(ids),
            tokens=len(made),
            canvas_tokens=watch.canvas_tokens,
            total_s=watch.now(),
            prefill_s=watch.prefill_s,
            block_s=tuple(watch.blocks),
            steps_per_canvas=tuple(watch.steps),
            commit_passes=len(watch.blocks) - 1,
            step_ms=tuple(watch.step_ms()),
            cpu_s=cost.cpu_s(),
            energy_j=cost.energy_j(),
            texts=(self._source.text(made),),
        )

    def peak_memory(self) -> int | None:
        """See `Engine`."""
        return peak_resident_bytes() if self.identity.device == "cpu" else int(mx.get_peak_memory())

    def close(self) -> None:
        """See `Engine`."""
        del self._model

    def _dtype(self) -> str:
        """What plain weights are held in."""
        kinds = {str(each.dtype).rpartition(".")[2] for _, each in tree_flatten(self._model.parameters())}
        return next((kind for kind in ("bfloat16", "float16", "float32") if kind in kinds), "unknown")


class _Watch:
    """What the stream of results says, and when."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.tokens: list[int] = []
        self.blocks: list[float] = []
        self.steps: list[int] = []
        self.canvas_tokens = 0
        self.prefill_s: float | None = None

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def take(self, result: Any) -> None:
        """A token, the end of a block, or the end; a block's tokens come in one burst, so its first tells its time."""
        if result.diffusion_denoising_steps > sum(self.steps):
            self.steps.append(result.diffusion_denoising_steps - sum(self.steps))
            self.blocks.append(self.now())
            self.canvas_tokens = result.diffusion_canvas_tokens
            self.prefill_s = result.prompt_tokens / result.prompt_tps if result.prompt_tps else None
        if result.generation_tokens > len(self.tokens) and result.token is not None:
            self.tokens.append(int(result.token))

    def step_ms(self) -> list[float]:
        """The mean step of each canvas; behind the first one that includes the commit of the canvas before."""
        edges = [self.prefill_s or 0.0, *self.blocks]
        seconds = (stop - start for start, stop in itertools.pairwise(edges))
        return [1e3 * each / steps for each, steps in zip(seconds, self.steps, strict=True)]


class _Processor:
    """Takes the place of a detokenizer: text is decoded afterwards, outside the clock, as for every peer."""

    def __init__(self) -> None:
        self.detokenizer = self
        self.last_segment = ""

    def reset(self) -> None:
        """Nothing is held."""

    def add_token(self, token: int, skip_special_token_ids: Any = ()) -> None:
        """Nothing is decoded here."""

    def finalize(self) -> None:
        """Nothing is held back."""


class _Stops:
    """Whether an answer ends at a token."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self._ids = ids

    def __call__(self, token: int) -> bool:
        """Whether it does."""
        return token in self._ids

    def add_eos_token_ids(self, ids: Any) -> None:
        """The checkpoint's are known already, and fixed mode wants none."""


class _Tokenizer:
    """Stop tokens only."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.stopping_criteria = _Stops(ids)


def open_engine(target: Target) -> MlxVlmDiffusion:
    """Load the model."""
    return MlxVlmDiffusion(target)
