"""Conversations and the ids that the chat template gives them."""

import re
from dataclasses import dataclass

from vocabulary import BOS, encode

THOUGHT = re.compile(r"<\|channel>thought\n.*?<channel\|>", re.DOTALL)
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its only correct answer."""

    task: str
    messages: tuple[Message, ...]
    enable_thinking: bool
    answer: str

    @property
    def prompt(self) -> str:
        """The last user message, which decides between training and test."""
        return self.messages[-1]["content"]


def render(messages: tuple[Message, ...], enable_thinking: bool) -> str:
    """The prompt text; chat_template.jinja says the same."""
    system = "<|think|>\n" if enable_thinking else ""
    if messages[0]["role"] == "system":
        system, messages = system + messages[0]["content"].strip(), messages[1:]
    turns = [_turn("system", system)] if system else []
    turns += [_turn(m["role"], m["content"]) for m in messages]
    return "<bos>" + "".join(turns) + "<|turn>model\n"


def _turn(role: str, content: str) -> str:
    if role == "assistant":
        role, content = "model", THOUGHT.sub("", content)
    return f"<|turn>{role}\n{content if role == 'system' else content.strip()}<turn|>\n"


def prompt_ids(example: Example) -> list[int]:
    """The ids of the rendered prompt."""
    ids = encode(render(example.messages, example.enable_thinking))
    assert ids[0] == BOS
    return ids


def answer_ids(example: Example) -> list[int]:
    """The ids of the answer and the end-of-turn token."""
    return encode(example.answer + "<turn|>")
