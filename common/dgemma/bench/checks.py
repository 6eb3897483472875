"""Whether an answer is right, by rules that need no judge. Nothing a model wrote is ever executed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from dgemma.bench.prompts import Check

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_FENCE = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


def is_right(text: str, check: Check) -> bool:
    """Judge `text`. Raises KeyError on a kind that does not exist."""
    return KINDS[check.kind](text, check.answer)


def _exact(text: str, answer: Any) -> bool:
    return text.strip() == str(answer).strip()


def _contains(text: str, answer: Any) -> bool:
    return str(answer).casefold() in text.casefold()


def _number(text: str, answer: Any) -> bool:
    """The last number of the text is the answer."""
    found = _NUMBER.findall(text)
    return bool(found) and abs(float(found[-1].replace(",", "")) - float(answer)) < 1e-6


def _output(text: str, answer: Any) -> bool:
    """The text, or what its only code fence holds, is the answer line for line."""
    lines = [line.strip() for line in _unfenced(text).strip().splitlines()]
    return lines == [line.strip() for line in str(answer).splitlines()]


def _json(text: str, answer: Any) -> bool:
    """The text is JSON equal to the answer."""
    try:
        return bool(json.loads(_unfenced(text)) == answer)
    except ValueError:
        return False


def _python(text: str, answer: Any) -> bool:
    """The text is Python that parses and defines the function called `answer`; it is not run."""
    try:
        tree = ast.parse(_unfenced(text))
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == answer for node in tree.body)


def _unfenced(text: str) -> str:
    fences = _FENCE.findall(text)
    return fences[0] if len(fences) == 1 else text


KINDS: dict[str, Callable[[str, Any], bool]] = {
    "exact": _exact,
    "contains": _contains,
    "number": _number,
    "output": _output,
    "json": _json,
    "python": _python,
}
