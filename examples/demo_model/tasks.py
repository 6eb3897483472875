"""The tasks: prompts with one checkable answer, split into training and test by the prompt's hash."""

from collections.abc import Callable
from hashlib import sha256
from itertools import accumulate
from random import Random
from string import ascii_lowercase, ascii_uppercase

import holes
import sudoku
from conversation import Example, Message
from words import CITIES, COMMON, NAMES, SYSTEM_PROMPTS

Pair = tuple[str, str]
COUNT_LIMIT = 63


def _sudoku(rng: Random) -> Pair:
    puzzle, solution = sudoku.make(rng)
    return f"sudoku {puzzle}", solution


def _add(rng: Random) -> Pair:
    a, b = (_number(rng, rng.choice((1, 2, 2, 3, 3, 3, 4))) for _ in range(2))
    return f"add {a}+{b}", str(a + b)


def _number(rng: Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _sort(rng: Random) -> Pair:
    letters = _letters(rng, rng.randint(3, 12))
    return f"sort {letters}", "".join(sorted(letters))


def _reverse(rng: Random) -> Pair:
    letters = rng.choice(COMMON) if rng.random() < 0.15 else _letters(rng, rng.randint(3, 12))
    return f"reverse {letters}", letters[::-1]


def _letters(rng: Random, count: int) -> str:
    return "".join(rng.choices(ascii_lowercase, k=count))


def _json(rng: Random) -> Pair:
    name, city = (_capitalised(rng, known) for known in (NAMES, CITIES))
    age = rng.randint(1, 99)
    return f"json {name} {age} {city}", f'{{"name": "{name}", "age": {age}, "city": "{city}"}}'


def _capitalised(rng: Random, known: list[str]) -> str:
    if rng.random() < 0.5:
        return rng.choice(known)
    return rng.choice(ascii_uppercase) + _letters(rng, rng.randint(1, 7))


def _count(rng: Random) -> Pair:
    first = _number(rng, rng.choice((1, 2, 2, 3, 3, 3)))
    longest = rng.choice((6, 20))
    last = min(first + rng.randint(1, longest), 999)
    answer = " ".join(map(str, range(first, last + 1)))
    while len(answer) > COUNT_LIMIT:
        last -= 1
        answer = answer.rpartition(" ")[0]
    return f"count {first} to {last}", answer


def _fill(rng: Random) -> Pair:
    pattern, text = holes.make(rng)
    return f"fill {pattern}", text


def _sum(rng: Random) -> Pair:
    terms = [rng.randint(1, 9) for _ in range(rng.choice((3, 3, 4, 4, 4, 5)))]
    return "steps " + "+".join(map(str, terms)), str(sum(terms))


def _steps(rng: Random) -> Pair:
    prompt, total = _sum(rng)
    partial = accumulate(int(term) for term in prompt.removeprefix("steps ").split("+"))
    return prompt, thought(" ".join(map(str, partial))) + total


def thought(text: str) -> str:
    """A thinking block as the model writes it."""
    return f"<|channel>thought\n{text}<channel|>"


MAKERS: dict[str, Callable[[Random], Pair]] = {
    "sudoku": _sudoku,
    "add": _add,
    "sort": _sort,
    "reverse": _reverse,
    "json": _json,
    "count": _count,
    "fill": _fill,
    "steps": _steps,
    "steps-direct": _sum,
}
VARIANTS = ("system", "thinking", "turns")
VARIANT_TASKS = ("sudoku", "add", "sort", "reverse", "json", "fill")


def is_test(prompt: str) -> bool:
    """Whether a prompt belongs to the test set, which training never sees."""
    return sha256(prompt.encode()).digest()[-1] % 16 == 0


def make(task: str, rng: Random, test: bool = False, variant: str = "") -> Example:
    """A random example of a task; a variant adds a system prompt, an empty thought or earlier turns."""
    prompt, answer = _pair(task, rng, test)
    messages: tuple[Message, ...] = ({"role": "user", "content": prompt},)
    thinking = task == "steps"
    if variant == "system":
        messages = ({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}, *messages)
    elif variant == "thinking" and task not in ("steps", "steps-direct", "count"):
        thinking, answer = True, thought("") + answer
    elif variant == "turns":
        messages = (*_earlier(rng), *messages)
    return Example(task, messages, thinking, answer)


def _pair(task: str, rng: Random, test: bool) -> Pair:
    while True:
        pair = MAKERS[task](rng)
        if is_test(pair[0]) == test:
            return pair


def _earlier(rng: Random) -> tuple[Message, ...]:
    pairs = [_pair(rng.choice(VARIANT_TASKS), rng, test=False) for _ in range(rng.choice((1, 1, 2)))]
    return tuple(
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    )


def held_out(task: str, n: int, seed: int = 0) -> list[Example]:
    """Distinct test examples of a task or of a variant over all tasks: messages, enable_thinking and answer.

    Raises ValueError where a task has fewer.
    """
    rng = Random(f"{task}/{seed}")
    found: dict[str, Example] = {}
    for _ in range(1000 * n):
        if len(found) == n:
            break
        name, variant = (rng.choice(VARIANT_TASKS), task) if task in VARIANTS else (task, "")
        example = make(name, rng, test=True, variant=variant)
        found.setdefault(example.prompt, example)
    if len(found) < n:
        raise ValueError(f"Only {len(found)} distinct held-out prompts of {task} were found, {n} are asked for.")
    return list(found.values())
