"""What every local peer shares: the folder, the prompt's ids by our template and tokenizer, the stop tokens."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from dgemma.bench.engines import Limits
from dgemma.bench.fitting import fit
from dgemma.bench.prompts import Prompt
from dgemma.config import GenerationDefaults
from dgemma.errors import UnsupportedError
from dgemma.hub import locate
from dgemma.template import ChatTemplate
from dgemma.tokenizer import Tokenizer

THOUGHT_END = "<channel|>"


@dataclass(frozen=True)
class Source:
    """A model folder; the same prompt gives every engine the same ids."""

    folder: Path
    name: str
    revision: str | None

    @classmethod
    def find(cls, model: str, offline: bool) -> Source:
        """Locate a model as `dgemma generate` does."""
        found = locate(model, offline)
        return cls(found.folder, found.name, found.revision)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer.from_folder(self.folder)

    @functools.cached_property
    def defaults(self) -> GenerationDefaults:
        """The checkpoint's sampler settings."""
        return GenerationDefaults.from_folder(self.folder)

    @functools.cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate.from_folder(self.folder)

    def encode(self, prompt: Prompt, limits: Limits) -> list[int]:
        """The prompt's ids."""
        messages = [dict(message) for message in prompt.messages]
        text = self._template.render(messages, enable_thinking=prompt.think, tools=None)
        return fit(self.tokenizer.encode(text), limits.prompt_tokens)

    def cut(self, ids: list[int], limits: Limits) -> list[int]:
        """What the user receives of generated ids: up to the first stop token and the budget."""
        ids = ids[: limits.max_tokens]
        if limits.mode == "fixed":
            return ids
        stop = next((i for i, token in enumerate(ids) if token in self.defaults.eos_token_ids), len(ids))
        return ids[:stop]

    def text(self, ids: list[int]) -> str:
        """The answer without its thoughts, as `dgemma` separates them."""
        return self.tokenizer.decode(ids, skip_special=False).rpartition(THOUGHT_END)[2]


def single(prompts: tuple[Prompt, ...], who: str) -> Prompt:
    """The only prompt. Raises UnsupportedError on several."""
    if len(prompts) != 1:
        raise UnsupportedError(f"{who} is measured with one prompt at a time.", "Leave --batch out.")
    return prompts[0]
