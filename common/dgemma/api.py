"""The Python interface: load a model, generate from it, stream from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from dgemma import infill
from dgemma.answer import Answer
from dgemma.backend import Backend, BackendOptions, load_backend
from dgemma.config import GenerationDefaults
from dgemma.engine import Engine, Request
from dgemma.env import default_backend
from dgemma.errors import require
from dgemma.fit import check_fit
from dgemma.generation import Generation, Origin, Stream
from dgemma.hub import DEMO, Located, locate
from dgemma.infill import Filled
from dgemma.modes import mode_of
from dgemma.session import Session
from dgemma.settings import Settings
from dgemma.template import ChatTemplate, Message
from dgemma.tokenizer import Tokenizer

if TYPE_CHECKING:
    from dgemma.chat import Chat

Device = Literal["auto", "cpu", "gpu"]
Dtype = Literal["float32", "float16", "bfloat16"]
Prompt = str | Sequence[Message]


def load(
    model: str = DEMO,
    backend: str = "auto",
    *,
    device: Device = "auto",
    dtype: Dtype | None = None,
    offline: bool = False,
    kernels: Literal["auto", "reference"] = "auto",
    self_conditioning: Literal["auto", "exact", "sparse"] = "auto",
    report: Callable[[str], None] = lambda line: None,
) -> Model:
    """Load a model by alias, repository or folder.

    `backend` is "mlx", "cuda" or "auto" (see `dgemma.env.default_backend`); `dtype` None is the checkpoint's on an
    accelerator and float32 on a CPU; `kernels` and `self_conditioning` as in `dgemma.backend.BackendOptions`. `report`
    hears of a download. Raises DgemmaError.
    """
    located = locate(model, offline, report)
    name = default_backend() if backend == "auto" else backend
    check_fit(located.folder, name, device, dtype)
    tokenizer = Tokenizer.from_folder(located.folder)
    defaults = GenerationDefaults.from_folder(located.folder)
    options = BackendOptions(device, dtype, kernels, self_conditioning)
    return Model(located, tokenizer, defaults, load_backend(name, located.folder, options))


@dataclass(slots=True)
class Model:
    """A loaded model. Use it as a context manager, or call `close` to let its memory go."""

    located: Located
    tokenizer: Tokenizer
    defaults: GenerationDefaults
    backend: Backend
    _template: ChatTemplate | None = None

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self.located.folder

    @property
    def origin(self) -> Origin:
        """Its name, revision, backend, device and, where the backend tells them, kernels."""
        kernels = getattr(self.backend, "kernels", None)
        located, backend = self.located, self.backend
        return Origin(located.name, located.revision, backend.name, backend.device, kernels and dict(kernels))

    def generate(self, prompt: Prompt, settings: Settings | None = None, **overrides: Any) -> Generation:
        """Answer one prompt (a text, or messages with roles and contents). Overrides are fields of `Settings`."""
        return self.generate_batch([prompt], settings, **overrides)[0]

    def generate_batch(
        self, prompts: Sequence[Prompt], settings: Settings | None = None, **overrides: Any
    ) -> list[Generation]:
        """Answer several prompts in one batch; each result is that of its prompt alone with the same seed."""
        stream = self._stream(prompts, (settings or Settings()).with_(**overrides))
        with stream:
            for _ in stream:
                pass
        return stream.generations

    def stream(
        self,
        prompt: Prompt,
        settings: Settings | None = None,
        *,
        session: Session | None = None,
        finished: Callable[[Generation], None] = lambda generation: None,
        **overrides: Any,
    ) -> Stream:
        """The events of one answer: Draft after every step, Block for a final canvas, Finish. Closing it cancels.

        A `session` lends the cache that its last generation left. `finished` hears of the result with the last event.
        """
        return self._stream([prompt], (settings or Settings()).with_(**overrides), session, finished)

    def chat(self, settings: Settings | None = None, **overrides: Any) -> Chat:
        """A conversation; every turn encodes only what the cache does not hold yet. Overrides as in `generate`."""
        from dgemma.chat import Chat

        return Chat(self, (settings or Settings()).with_(**overrides))

    def fill(
        self,
        text: str,
        instruction: str | None = None,
        lengths: Iterable[int] | None = None,
        settings: Settings | None = None,
        *,
        listen: infill.Listen = infill.ignore,
        **overrides: Any,
    ) -> Filled:
        """Fill every `<fill>` and `<fill:N>` of a text; see `dgemma.infill.fill`."""
        return infill.fill(self, text, instruction, lengths, (settings or Settings()).with_(**overrides), listen)

    def edit(
        self,
        text: str,
        lines: tuple[int, int],
        instruction: str | None = None,
        lengths: Iterable[int] | None = None,
        warm: bool = False,
        settings: Settings | None = None,
        *,
        listen: infill.Listen = infill.ignore,
        **overrides: Any,
    ) -> Filled:
        """Rewrite some lines of a text; see `dgemma.infill.edit`."""
        chosen = (settings or Settings()).with_(**overrides)
        return infill.edit(self, text, lines, instruction, lengths, warm, chosen, listen)

    def prompt_text(self, prompt: Prompt, settings: Settings) -> str:
        """What the model reads: the prompt through the chat template, or with `raw` as it is behind a bos token."""
        if settings.raw:
            require(isinstance(prompt, str), "A raw prompt is a text, not messages.")
            bos = self.tokenizer.decode([self.bos_id], skip_special=False) if self.bos_id is not None else ""
            return str(prompt) if str(prompt).startswith(bos) else bos + str(prompt)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if settings.system is not None:
            twice = bool(messages) and messages[0].get("role") == "system"
            require(not twice, "The messages have a system message already.", "Leave the setting out.")
            messages.insert(0, {"role": "system", "content": settings.system})
        return self.template.render(messages, enable_thinking=settings.think, tools=settings.tools)

    @property
    def bos_id(self) -> int | None:
        """The id of the token every prompt begins with."""
        return self.tokenizer.id("<bos>")

    @property
    def template(self) -> ChatTemplate:
        """The chat template, read when first needed."""
        if self._template is None:
            self._template = ChatTemplate.from_folder(self.folder)
        return self._template

    def close(self) -> None:
        """Let the backend go; the model must not be used afterwards."""
        if hasattr(self, "backend"):
            del self.backend

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.close()

    def _stream(
        self,
        prompts: Sequence[Prompt],
        settings: Settings,
        session: Session | None = None,
        finished: Callable[[Generation], None] = lambda generation: None,
    ) -> Stream:
        settings = settings.seeded()
        texts = [self.prompt_text(prompt, settings) for prompt in prompts]
        answers = [Answer(self.tokenizer, text, settings.stop, settings.raw) for text in texts]
        requests = [self._request(text, answer, settings, session) for text, answer in zip(texts, answers, strict=True)]
        for request in requests:
            request.check(self.backend.config)
        return Stream(Engine(self.backend), requests, answers, self.origin, finished)

    def _request(self, text: str, answer: Answer, settings: Settings, session: Session | None) -> Request:
        return Request(
            prompt=self.tokenizer.encode(text),
            max_tokens=settings.max_tokens,
            denoising=settings.denoising(self.defaults),
            seed=settings.seed or 0,
            canvas_length=settings.canvas_length,
            stop=answer.rule,
            warm_start=self.tokenizer.encode(settings.warm_start) if settings.warm_start else (),
            mode=mode_of(settings, self.tokenizer, self.defaults),
            session=session,
        )
