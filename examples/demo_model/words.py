"""Word lists of the tasks, read from words.txt."""

import re
from pathlib import Path

_SECTIONS = re.findall(r"\[(\w+)\]([^\[]+)", Path(__file__).with_name("words.txt").read_text())
_LISTS = {name: text.split() for name, text in _SECTIONS}

SENTENCE_SLOTS = tuple(_LISTS[slot] for slot in ("determiners", "adjectives", "nouns", "verbs", "adverbs"))
NAMES, CITIES, COMMON = _LISTS["names"], _LISTS["cities"], _LISTS["common"]
SYSTEM_PROMPTS = (
    "Be brief.",
    "You are a helpful model.",
    "Answer only.",
    "Be exact.",
    "You solve small tasks.",
    "Reply with the answer.",
)
