"""Texts with missing letters that can be completed in exactly one way."""

from itertools import chain
from random import Random
from string import ascii_lowercase

from words import SENTENCE_SLOTS

_WORDS = sorted(set(chain.from_iterable(SENTENCE_SLOTS)))


def completions(pattern: str) -> list[str]:
    """Every known word that fits a pattern such as `f_x`."""
    return [w for w in _WORDS if len(w) == len(pattern) and all(p in ("_", c) for p, c in zip(pattern, w, strict=True))]


def make(rng: Random) -> tuple[str, str]:
    """A text with holes and the whole text: a sentence, or a run of the alphabet."""
    return _run(rng) if rng.random() < 0.2 else _sentence(rng)


def _sentence(rng: Random) -> tuple[str, str]:
    slots = SENTENCE_SLOTS if rng.random() < 0.4 else SENTENCE_SLOTS[:4]
    words = [rng.choice(slot) for slot in slots]
    while True:
        chosen = rng.sample(range(len(words)), rng.randint(1, len(words)))
        patterns = [_punch(w, rng) if i in chosen else w for i, w in enumerate(words)]
        if all(len(completions(p)) == 1 for p in patterns):
            return " ".join(patterns), " ".join(words)


def _punch(word: str, rng: Random) -> str:
    most = 1 if len(word) < 5 else 2
    holes = rng.sample(range(len(word)), rng.randint(1, most))
    return "".join("_" if i in holes else c for i, c in enumerate(word))


def _run(rng: Random) -> tuple[str, str]:
    length = rng.randint(5, 12)
    start = rng.randrange(27 - length)
    text = ascii_lowercase[start : start + length]
    holes = rng.sample(range(length), rng.randint(1, length // 2))
    return "".join("_" if i in holes else c for i, c in enumerate(text)), text
